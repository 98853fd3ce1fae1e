//! Checks promises of the architecture: the libraries that a binary names, the folders where it finds them,
//! and dependencies that source folders must not have.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_tests::process::output_text;
use dtrain_tests::programs::{build_folder, dtrain, worker};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns the libraries that a binary names directly.
fn needed(binary: &Path) -> Vec<String> {
    let output = Command::new("readelf").arg("-d").arg(binary).env("LC_ALL", "C").output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let names = text.lines().filter(|line| line.contains("(NEEDED)"));
    names.map(|line| line.split(['[', ']']).nth(1).unwrap().to_owned()).collect()
}

fn is_torch(library: &str) -> bool {
    ["torch", "c10", "cuda", "cudart", "nccl", "cupti"].iter().any(|word| library.contains(word))
}

#[test]
fn the_launcher_links_no_torch_library() {
    let libraries = needed(&dtrain());
    assert!(!libraries.is_empty() && !libraries.iter().any(|library| is_torch(library)), "{libraries:?}");
    let output = Command::new("ldd").arg(dtrain()).output().unwrap();
    let listed = output_text(&output);
    // The addresses, in parentheses, may contain any letters.
    let mut names = listed.split_whitespace().filter(|word| !word.starts_with('('));
    assert!(!names.any(is_torch), "{listed}");
}

#[test]
fn the_worker_links_only_libtorch_cpu_and_c10() {
    let mut libraries = needed(&worker());
    libraries.retain(|library| is_torch(library));
    libraries.sort();
    assert_eq!(libraries, ["libc10.so", "libtorch_cpu.so"]);
}

/// GPU libraries are loaded only to use a GPU. The CUDA runtime and CUPTI are exceptions: the wheel's
/// libtorch_cpu.so names them, the wheel contains them, and they need no driver.
#[test]
fn ldd_shows_no_library_of_a_gpu() {
    const OF_GPUS: &[&str] = &[
        "libcuda.",
        "libnvidia",
        "torch_cuda",
        "c10_cuda",
        "cublas",
        "cudnn",
        "cufft",
        "curand",
        "cusolver",
        "cusparse",
        "nvrtc",
        "nvshmem",
        "nccl",
    ];
    for program in [dtrain(), worker()] {
        let output = Command::new("ldd").arg(&program).output().unwrap();
        let listed = output_text(&output);
        assert!(listed.contains("libc.so"), "{listed}");
        // Compares names only: a library's path may contain any words.
        let names = listed.lines().filter_map(|line| line.split_whitespace().next());
        let of_gpus: Vec<&str> =
            names.filter(|name| OF_GPUS.iter().any(|word| name.contains(word))).collect();
        assert_eq!(of_gpus, [] as [&str; 0], "{}", program.display());
    }
}

#[test]
fn a_moved_worker_finds_its_libraries() {
    let folder = tempfile::tempdir_in(build_folder()).unwrap();
    // A hard link costs no space; a symbolic link would lead back to the original folder.
    let copy = |from: &Path, to: PathBuf| {
        if fs::hard_link(from, &to).is_err() {
            fs::copy(from, &to).unwrap();
        }
    };
    let libtorch = libtorch_of(&worker());
    for layout in ["beside/lib", "split/../lib"] {
        let root = folder.path().join(layout.split('/').next().unwrap());
        let bin = if layout.contains("..") { root.join("bin") } else { root.clone() };
        fs::create_dir_all(&bin).unwrap();
        let lib = root.join("lib");
        fs::create_dir_all(&lib).unwrap();
        copy(&worker(), bin.join("dtrain-worker"));
        for library in &libtorch {
            copy(library, lib.join(library.file_name().unwrap()));
        }
        let output = Command::new("ldd").arg(bin.join("dtrain-worker")).output().unwrap();
        let text = output_text(&output);
        let line = text.lines().find(|line| line.contains("libtorch_cpu.so")).unwrap_or_default();
        assert!(line.contains(root.to_str().unwrap()), "{layout}: {text}");
        assert!(!text.contains("not found"), "{layout}: {text}");
        let output = Command::new(bin.join("dtrain-worker")).arg("--version").output().unwrap();
        assert!(output.status.success(), "{layout}: {}", output_text(&output));
    }
}

/// Returns the libtorch libraries that the worker uses.
fn libtorch_of(binary: &Path) -> Vec<PathBuf> {
    let output = Command::new("ldd").arg(binary).output().unwrap();
    let text = output_text(&output);
    let paths = text.lines().filter_map(|line| line.split("=> ").nth(1)?.split(" (").next());
    let own: Vec<PathBuf> = paths
        .map(PathBuf::from)
        .filter(|path| {
            path.components().any(|part| part.as_os_str() == "lib")
                && path.to_string_lossy().contains("torch")
        })
        .collect();
    assert!(own.len() >= 2, "{text}");
    own
}

/// Returns the files with these extensions below a folder of the workspace.
fn sources(folder: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![workspace().join(folder)];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            let name = entry.file_name();
            if path.is_dir() {
                if name != "target" && !name.to_string_lossy().starts_with('.') {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|end| extensions.iter().any(|wanted| end == *wanted)) {
                found.push(path);
            }
        }
    }
    found
}

fn mentions(folder: &str, word: &str) -> Vec<PathBuf> {
    let files = sources(folder, &["rs"]);
    assert!(!files.is_empty(), "{folder} has no source");
    files.into_iter().filter(|path| fs::read_to_string(path).unwrap().contains(word)).collect()
}

#[test]
fn forbidden_words_are_absent_from_folders() {
    assert_eq!(mentions("worker/models/src", "collectives"), [] as [PathBuf; 0]);
    assert_eq!(mentions("common/src", "use tch"), [] as [PathBuf; 0]);
    assert_eq!(mentions("common/src", "unsafe {"), [] as [PathBuf; 0]);
    // Only these may contain unsafe code: NCCL and MPI are C libraries.
    let edges = ["nccl", "mpi/memory.rs"].map(|edge| workspace().join("worker/collectives/src").join(edge));
    let mut unsafe_code = Vec::new();
    for folder in ["worker/src", "worker/models", "worker/collectives"] {
        unsafe_code.extend(mentions(folder, "unsafe {"));
    }
    unsafe_code.retain(|path| !edges.iter().any(|edge| path.starts_with(edge)));
    assert_eq!(unsafe_code, [] as [PathBuf; 0]);
    for package in ["launcher", "common", "worker/data"] {
        let manifest = fs::read_to_string(workspace().join(package).join("Cargo.toml")).unwrap();
        let dependencies: Vec<&str> =
            manifest.lines().filter(|line| line.contains("workspace = true")).collect();
        assert!(dependencies.len() > 5, "{package}: {dependencies:?}");
        for crate_name in ["tch", "torch-sys", "dtrain-worker", "dtrain-torch-shim"] {
            let depends = dependencies.iter().any(|line| line.starts_with(crate_name));
            assert!(!depends, "{package} depends on {crate_name}");
        }
    }
}

#[test]
fn cpp_is_only_in_the_shim() {
    let outside: Vec<PathBuf> = sources("", &["cpp", "cc", "h", "hpp", "c"])
        .into_iter()
        .filter(|path| !path.starts_with(workspace().join("worker/torch-shim/csrc")))
        // Stand-ins for file systems, and programs on fake GPUs, which tests compile.
        .filter(|path| !path.starts_with(workspace().join("tests/tests/fixtures/file_systems")))
        .filter(|path| !path.starts_with(workspace().join("tests/fake-gpu/tests/programs")))
        .collect();
    assert_eq!(outside, [] as [PathBuf; 0]);
}
