//! Passes libtorch's folder to the linker.

fn main() {
    for rpath in std::env::var("DEP_DTRAIN_WORKER_RPATHS").unwrap_or_default().split(':') {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
}
