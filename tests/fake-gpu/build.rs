//! Writes a stub for each function that libtorch imports and no source defines, and the linker's version script.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// A library: its file, whether its symbols have the file's name as their version, and its code for "not supported".
const LIBRARIES: [(&str, Version, i32); 15] = [
    ("libcublas.so.13", Version::File, 15),
    ("libcublasLt.so.13", Version::File, 15),
    ("libcuda.so.1", Version::None, 801),
    ("libcudart.so.13", Version::File, 801),
    ("libcudnn.so.9", Version::File, 3000),
    ("libcufft.so.12", Version::File, 16),
    ("libcufile.so.0", Version::None, 5000),
    ("libcupti.so.13", Version::File, 27),
    ("libcurand.so.10", Version::File, 999),
    ("libcusolver.so.12", Version::File, 16),
    ("libcusparse.so.12", Version::File, 10),
    ("libcusparseLt.so.0", Version::None, 10),
    ("libnccl.so.2", Version::None, 3),
    ("libnvrtc.so.13", Version::File, 11),
    ("libnvshmem_host.so.3", Version::Named("NVSHMEM"), 1),
];

/// The version of a library's symbols.
enum Version {
    None,
    File,
    Named(&'static str),
}

fn main() {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));
    println!("cargo::rerun-if-changed=sym");
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rustc-link-lib=dylib=stdc++");
    let mut written = BTreeSet::new();
    collect_functions(&package.join("src"), &mut written);
    let (mut stubs, mut script, mut others) = (String::new(), String::new(), String::new());
    for (file, version, code) in LIBRARIES {
        let list = package.join("sym").join(format!("{file}.need"));
        let names = fs::read_to_string(&list).unwrap_or_else(|error| panic!("{}: {error}", list.display()));
        let mut globals = String::new();
        for name in names.lines() {
            let _ = write!(globals, " {name};");
            if written.contains(name) {
                continue;
            }
            let kind = match file {
                "libcublas.so.13" => "product",
                _ if name.ends_with("ErrorString") => "text",
                _ => "missing",
            };
            let _ = writeln!(stubs, "stub! {{ {kind} {name} {file:?} {code} }}");
        }
        let node = match version {
            Version::File => file,
            Version::Named(node) => node,
            Version::None => {
                others += &globals;
                continue;
            }
        };
        if !globals.is_empty() {
            let _ = writeln!(script, "{node} {{ global:{globals} }};");
        }
    }
    let _ = writeln!(
        script,
        "FAKE_GPU {{ global:{others} cu[A-Z]*; cuda*; cudnn*; nccl*; nvml*; fake_gpu*; local: *; }};"
    );
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
    fs::write(out.join("versions.map"), script).expect("OUT_DIR is writable");
}

/// Adds the names of the functions that the sources define: each begins a line of a table of `api!`.
fn collect_functions(folder: &Path, names: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).expect("sources are readable").flatten() {
        let path = entry.path();
        if path.is_dir() {
            collect_functions(&path, names);
            continue;
        }
        let text = fs::read_to_string(&path).expect("sources are readable");
        for line in text.lines() {
            let declared = line
                .trim_start()
                .trim_start_matches("unsafe ")
                .trim_start_matches("extern \"C\" ")
                .strip_prefix("fn ");
            if let Some((name, _)) = declared.and_then(|rest| rest.split_once('(')) {
                names.insert(name.to_owned());
            }
        }
    }
}
