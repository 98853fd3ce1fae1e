//! Packs the suite into a folder that needs no Rust, no repository and no network.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use xtask::files::{copy, create, write};
use xtask::process::Signals;
use xtask::setup::{self, Problem, SetArgs};
use xtask::workspace::Workspace;

/// Packages, and the programs of each that the suite starts.
const PROGRAMS: [(&str, &str); 5] = [
    ("dtrain", "dtrain"),
    ("dtrain-worker", "dtrain-worker"),
    ("dtrain-tests", "conformance-rank"),
    ("dtrain-tests", "gpu-rank"),
    ("lab", "lab"),
];

/// The folders of a pack.
pub(super) const BIN: &str = "bin";
pub(super) const BENCH: &str = "bench";
pub(super) const REFERENCE: &str = "reference";

/// The script that starts the pack's suite.
const RUN: &str = r#"#!/bin/sh
# Runs dtrain's checks on this machine's GPUs: see README.md.
here=$(cd "$(dirname "$0")" && pwd) || exit 1
exec "$here/bin/lab" gpu-test --pack "$here" "$@"
"#;

const README: &str = "\
# dtrain on a GPU

`./run` checks dtrain on the GPUs of this machine, compares it with PyTorch, prints a table and writes `results.json`. It needs an
NVIDIA driver and libtorch 2.11.0 with CUDA. It uses the libtorch of a Python with `torch`, or of `--libtorch`:

```
./run --first                           # what matters most, in at most 8 minutes; writes results-first.json
./run --second                          # graphs, faults and data loaders, in at most 8 minutes
./run                                   # all checks
./run --calls                           # list calls of at most 8 minutes each, with estimated times
./run --call training-1                 # one of these calls; writes results-training-1.json
./run machine nccl kernels training graphs memory faults     # without the benchmarks, which take longest
./run benchmarks --rounds 5 --python venv/bin/python         # needs torch 2.11.0 and torchvision
./run --libtorch /path/to/torch/lib     # with this libtorch
./run --help
```

`bench/requirements.txt` lists the Python packages that the benchmarks need.

The exit code is 0 if all checks pass, 1 if one fails, and 2 without a GPU.
";

/// Builds the programs for release; returns their folder, or cargo's exit code if the build fails.
pub(super) fn build(workspace: &Workspace, signals: &Signals, set: &SetArgs) -> Result<Result<PathBuf, u8>> {
    let ready = setup::run(workspace, signals, &set.clone().into())?;
    eprintln!("building dtrain and the suite; the first build takes some minutes");
    let mut build = ready.cargo(workspace);
    build.args(["build", "--release"]);
    for (package, program) in PROGRAMS {
        build.args(["--package", package, "--bin", program]);
    }
    let code = signals.run(&mut build)?.code;
    signals.check()?;
    if code != 0 {
        eprintln!("gpu-test failed: cannot build dtrain, see cargo's output");
        return Ok(Err(code));
    }
    Ok(Ok(ready.build_folder(workspace)?.join("release")))
}

/// Creates a pack in `folder` from the programs in `programs`.
pub(super) fn pack(workspace: &Workspace, programs: &Path, folder: &Path) -> Result<()> {
    let bin = folder.join(BIN);
    create(&bin)?;
    for (_, program) in PROGRAMS {
        let (from, to) = (programs.join(program), bin.join(program));
        copy(&from, &to)?;
        // Debug information is ten times the program's size. Without binutils, it is not stripped.
        match Command::new("strip").arg(&to).status() {
            Ok(status) if status.success() => {}
            _ => eprintln!("warning: {} is not stripped: strip is missing or failed", to.display()),
        }
    }
    for (from, to) in [("tests/bench", BENCH), ("tests/parity/reference", REFERENCE)] {
        let (from, to) = (workspace.root().join(from), folder.join(to));
        create(&to)?;
        for entry in fs::read_dir(&from).with_context(|| format!("cannot read {}", from.display()))? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                copy(&entry.path(), &to.join(entry.file_name()))?;
            }
        }
    }
    write(&folder.join("README.md"), README)?;
    let run = folder.join("run");
    write(&run, RUN)?;
    fs::set_permissions(&run, fs::Permissions::from_mode(0o755))
        .map_err(|error| Problem::write(&run, error))?;
    Ok(())
}

/// The largest archive in bytes: small enough to send to a machine with a GPU.
pub(super) const LARGEST: u64 = 60_000_000;

/// Writes the folder as a compressed file beside it; returns path and bytes, or `None` if there is no tar.
pub(super) fn archive(folder: &Path) -> Result<Option<(PathBuf, u64)>> {
    let folder = folder.canonicalize().with_context(|| format!("cannot open {}", folder.display()))?;
    let (Some(parent), Some(name)) = (folder.parent(), folder.file_name()) else {
        return Ok(None);
    };
    let mut archive = folder.clone().into_os_string();
    archive.push(".tar.gz");
    let archive = PathBuf::from(archive);
    let status = Command::new("tar").arg("-czf").arg(&archive).arg("-C").arg(parent).arg(name).status();
    if !status.is_ok_and(|status| status.success()) {
        return Ok(None);
    }
    let bytes = fs::metadata(&archive).with_context(|| format!("cannot read {}", archive.display()))?.len();
    Ok(Some((archive, bytes)))
}

/// Returns the bytes of all files in a folder.
pub(super) fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        bytes += match entry.file_type()?.is_dir() {
            true => size(&entry.path())?,
            false => entry.metadata()?.len(),
        };
    }
    Ok(bytes)
}
