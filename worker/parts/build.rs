//! Links the tests with libtorch's path: cargo does not pass link arguments to dependents.

fn main() {
    let rpaths = std::env::var("DEP_DTRAIN_TORCH_SHIM_RPATHS").unwrap_or_default();
    for rpath in rpaths.split(':') {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
}
