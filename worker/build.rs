//! Tells the binary, the tests and the examples where libtorch lies (cargo hands no link arguments down), and the build scripts
//! of trainers that are made with this library: they print `DEP_DTRAIN_WORKER_RPATHS` as this one does.

fn main() {
    let rpaths = std::env::var("DEP_DTRAIN_TORCH_SHIM_RPATHS").unwrap_or_default();
    println!("cargo:rpaths={rpaths}");
    for rpath in rpaths.split(':') {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
}
