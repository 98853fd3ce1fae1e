//! The checked-in lists of imported functions are those of libtorch.
//!
//! After an update of libtorch, `FAKE_GPU_WRITE_NAMES=1 cargo test -p dtrain-fake-gpu names` writes them again.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use dtrain_test_kit::need::{Need, Skipped, output, require};

/// Libraries whose symbols have no versions, by the beginnings of their functions' names.
const UNVERSIONED: [(&str, &str); 5] = [
    ("cuFile", "libcufile.so.0"),
    ("cusparseLt", "libcusparseLt.so.0"),
    ("nccl", "libnccl.so.2"),
    ("nvshmem", "libnvshmem_host.so.3"),
    ("cu", "libcuda.so.1"),
];

pub(crate) fn libtorch() -> Result<PathBuf, Skipped> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
    let library = root.join("target/libtorch/torch/lib/libtorch_cuda.so");
    let why = || format!("{} is missing: run `cargo xtask setup --cuda`", library.display());
    require(Need::LibtorchCuda, if library.exists() { Ok(()) } else { Err(why()) })?;
    Ok(library.parent().unwrap().to_owned())
}

/// Returns the functions that libtorch's libraries import, by library.
fn imported(folder: &Path) -> Result<BTreeMap<String, BTreeSet<String>>, Skipped> {
    let mut all: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_none_or(|extension| extension != "so") {
            continue;
        }
        let mut nm = Command::new("nm");
        nm.args(["-D", "--undefined-only", "--with-symbol-versions"]).arg(entry.path());
        let lines = String::from_utf8(output(Need::LibtorchCuda, &mut nm)?.stdout).unwrap();
        for symbol in lines.lines().filter_map(|line| line.split_whitespace().nth(1)) {
            let (name, version) = symbol.split_once('@').unwrap_or((symbol, ""));
            let version = version.trim_start_matches('@');
            let by_name =
                UNVERSIONED.iter().find(|(start, _)| name.starts_with(start)).map(|(_, library)| *library);
            let library = match version {
                "" => by_name,
                "NVSHMEM" => Some("libnvshmem_host.so.3"),
                _ if version.starts_with("libcu") || version.starts_with("libnv") => Some(version),
                _ => None,
            };
            if let Some(library) = library {
                all.entry(library.to_owned()).or_default().insert(name.to_owned());
            }
        }
    }
    Ok(all)
}

#[test]
fn names_are_those_of_libtorch() {
    let Ok(imported) = libtorch().and_then(|folder| imported(&folder)) else { return };
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("sym");
    let listed: BTreeMap<String, BTreeSet<String>> = fs::read_dir(&folder)
        .unwrap()
        .map(Result::unwrap)
        .filter_map(|entry| {
            let library = entry.file_name().to_str().unwrap().strip_suffix(".need")?.to_owned();
            let names = fs::read_to_string(entry.path()).unwrap().lines().map(str::to_owned).collect();
            Some((library, names))
        })
        .collect();
    if std::env::var_os("FAKE_GPU_WRITE_NAMES").is_some() {
        for (library, names) in &imported {
            let text: String = names.iter().map(|name| format!("{name}\n")).collect();
            fs::write(folder.join(format!("{library}.need")), text).unwrap();
        }
        return;
    }
    for (library, names) in &imported {
        let known = listed.get(library).cloned().unwrap_or_default();
        let missing: Vec<_> = names.difference(&known).collect();
        let unused: Vec<_> = known.difference(names).collect();
        assert!(
            missing.is_empty() && unused.is_empty(),
            "{library}: missing {missing:?}, not imported {unused:?}"
        );
    }
}
