//! Tells the tests where libtorch lies: cargo hands no link arguments down.

fn main() {
    let rpaths = std::env::var("DEP_DTRAIN_TORCH_SHIM_RPATHS").unwrap_or_default();
    for rpath in rpaths.split(':') {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
}
