//! Compiles the C++ of `csrc` against libtorch's headers and passes the libraries' paths to dependents.
//!
//! Dependents with binaries or tests print `DEP_DTRAIN_TORCH_SHIM_RPATHS` as link arguments: see
//! worker/build.rs.

use std::env;
use std::error::Error;
use std::path::{Path, PathBuf};

/// Where a binary searches for libtorch, relative to itself: in the build folder (`target/<profile>`, and for
/// tests and examples `target/<profile>/deps`), then beside itself, for binaries moved with their libraries.
const RPATHS: [&str; 5] = [
    "$ORIGIN/../libtorch/torch/lib",
    "$ORIGIN/../../libtorch/torch/lib",
    "$ORIGIN/lib",
    "$ORIGIN/../lib",
    "$ORIGIN",
];

/// Returns the folder of CUDA's headers, if set-up has installed them. They check assumptions about
/// libtorch's classes and enable the clean-up after a failed graph; nothing is linked.
fn cuda_headers(include: &Path) -> Option<PathBuf> {
    if !include.join("c10/cuda/impl/cuda_cmake_macros.h").is_file() {
        return None;
    }
    let packages = include.parent()?.parent()?;
    let cuda = packages.join("nvidia/cu13/include");
    cuda.join("cuda_runtime_api.h").is_file().then_some(cuda)
}

/// Returns libtorch's lib folder. torch-sys reports it too late, after compiling its C++.
fn libtorch_lib() -> Result<PathBuf, Box<dyn Error>> {
    println!("cargo:rerun-if-env-changed=LIBTORCH");
    println!("cargo:rerun-if-env-changed=LIBTORCH_LIB");
    println!("cargo:rerun-if-env-changed=LIBTORCH_USE_PYTORCH");
    if env::var_os("LIBTORCH_USE_PYTORCH").is_some() {
        return Err("LIBTORCH_USE_PYTORCH is not supported; set LIBTORCH to PyTorch's folder instead".into());
    }
    let folder = env::var_os("LIBTORCH_LIB").or_else(|| env::var_os("LIBTORCH"));
    let folder =
        folder.ok_or("LIBTORCH is not set; run `cargo xtask setup`, and cargo inside the repository")?;
    Ok(PathBuf::from(folder).join("lib"))
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=csrc");
    let lib = libtorch_lib()?;
    let include = lib.parent().ok_or("libtorch's lib folder has no parent")?.join("include");
    let header = include.join("torch/csrc/distributed/c10d/ProcessGroupGloo.hpp");
    if !header.is_file() {
        return Err(format!("{} is missing; run `cargo xtask setup`", header.display()).into());
    }

    compile(&include);
    let mut rpaths: Vec<String> = RPATHS.map(String::from).into();
    // The absolute path of a libtorch that the user installed elsewhere.
    rpaths.push(lib.display().to_string());
    println!("cargo:rpaths={}", rpaths.join(":"));
    for rpath in &rpaths {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{rpath}");
    }
    Ok(())
}

fn compile(include: &Path) {
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++17")
        // Debugging information would double the compile time.
        .debug(false)
        .opt_level(2)
        .define("_GLIBCXX_USE_CXX11_ABI", "1")
        .define("USE_C10D_GLOO", None)
        .include("csrc/gloo_declarations")
        .flag("-isystem")
        .flag(include)
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include"))
        .warnings(true)
        // libtorch's templates cause warnings under -Wextra.
        .extra_warnings(false);
    if let Some(cuda) = cuda_headers(include) {
        build
            .define("DT_HAS_CUDA_HEADERS", None)
            .include("csrc/cuda_declarations")
            .flag("-isystem")
            .flag(cuda);
    }
    build.files(["csrc/shim.cpp", "csrc/graph.cpp", "csrc/program.cpp"]);
    build.compile("dtrain_torch_shim");
}
