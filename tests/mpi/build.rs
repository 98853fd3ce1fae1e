//! Passes libtorch's folder to binary, tests and examples (cargo does not inherit link arguments).

fn main() {
    for rpath in std::env::var("DEP_DTRAIN_TORCH_SHIM_RPATHS").unwrap_or_default().split(':') {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
}
