//! `wheel`: writes the Python wheel of dtrain, and an archive of the same programs, to `target/wheel`.
//!
//! The wheel holds the command `dtrain`, which pip puts into the folder of scripts, and the Python package `dtrain` with the trainer.
//! The trainer finds libtorch in the package `torch` beside it: see docs/decisions/0127-wheel.md.

mod share;
mod tools;
mod trial;

use std::env::consts::ARCH;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use self::share::write_share;
use self::tools::{Tools, answer};
use crate::files::{copy, create, create_empty, write};
use crate::process::Signals;
use crate::setup::{self, Problem, Ready, SetArgs};
use crate::workspace::{LIBTORCH_VERSION, Workspace};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The launcher, the trainer, and what answers about recipes for it.
const PROGRAMS: [&str; 3] = ["dtrain", "dtrain-worker", "dtrain-recipes"];
const PACKAGE: [(&str, &str); 2] = [
    ("__init__.py", include_str!("python/__init__.py")),
    ("__main__.py", include_str!("python/__main__.py")),
];

/// The newest glibc that a wheel may need: that of RHEL 9 and Debian 12.
const NEWEST_GLIBC: u32 = 34;

/// Where the trainer searches libtorch first: in the package `torch`, beside the package `dtrain`.
const TORCH: &str = "$ORIGIN/../torch/lib";

/// The arguments of `wheel`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Build profile of the programs: release, or dev as the tests are built
    #[arg(long, default_value = "release", value_name = "PROFILE")]
    profile: String,
    /// Also install the wheel in a new environment beside set-up's libtorch, and train there
    #[arg(long = "try")]
    tries: bool,
}

/// Builds the programs, and writes wheel and archive. Returns the exit code.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    if !has_strip() {
        bail!("no strip on PATH; install binutils");
    }
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let code = ready.build_dtrain(workspace, signals, &args.profile)?;
    if is_changed(workspace) {
        eprintln!(
            "warning: the working tree has uncommitted changes; `dtrain --version` names the commit without them"
        );
    }
    match code {
        0 => write_all(workspace, signals, &ready, &args.profile, args.tries),
        code => Ok(code),
    }
}

/// Returns whether the working tree of a clone differs from its commit.
fn is_changed(workspace: &Workspace) -> bool {
    let mut git = Command::new("git");
    git.args(["status", "--porcelain"]).current_dir(workspace.root());
    git.output().is_ok_and(|output| output.status.success() && !output.stdout.is_empty())
}

/// Returns whether this machine can remove debug information, without which the programs are ten times as large.
pub(crate) fn has_strip() -> bool {
    Command::new("strip").arg("--version").output().is_ok_and(|output| output.status.success())
}

/// Writes wheel and archive of the programs that are built in this profile.
pub(crate) fn write_all(
    workspace: &Workspace,
    signals: &Signals,
    ready: &Ready,
    profile: &str,
    tries: bool,
) -> Result<u8> {
    // A wheel of the tests' programs must not be taken for one of a release.
    let output = workspace.target().join(if profile == "release" {
        "wheel".into()
    } else {
        format!("wheel-{profile}")
    });
    let profile = if profile == "dev" { "debug" } else { profile };
    let programs = ready.build_folder(workspace)?.join(profile);
    let tools = Tools::prepare(workspace, signals)?;
    let stage = output.join("stage");
    create_empty(&output)?;
    let staged = stage_programs(&tools, &programs, &stage)?;
    write_package(workspace, &stage)?;
    write_share(&staged[0], &stage.join(format!("dtrain-{VERSION}.data/data/share")))?;
    signals.check()?;
    tools.python(&["-m", "wheel", "pack", "--dest-dir"], &[&output, &stage])?;
    let wheel = tag(&tools, &output)?;
    let archive = archive(workspace, &output, &staged)?;
    fs::remove_dir_all(&stage).map_err(|error| Problem::write(&stage, error))?;
    for file in [&wheel, &archive] {
        let bytes = fs::metadata(file).with_context(|| format!("cannot read {}", file.display()))?.len();
        eprintln!("{} ({:.1} MB)", workspace.show(file), bytes as f64 / 1e6);
    }
    if tries {
        trial::run(workspace, signals, &wheel)?;
    }
    eprintln!("install it by `python3 -m pip install {}`", workspace.show(&wheel));
    Ok(0)
}

/// Copies the programs, without debug information, to their places in the wheel.
fn stage_programs(tools: &Tools, programs: &Path, stage: &Path) -> Result<[PathBuf; 3]> {
    let scripts = format!("dtrain-{VERSION}.data/scripts");
    let [dtrain, ..] = PROGRAMS;
    let staged = PROGRAMS.map(|name| stage.join(if name == dtrain { &scripts } else { "dtrain" }).join(name));
    for (name, to) in PROGRAMS.into_iter().zip(&staged) {
        create(to.parent().unwrap_or(stage))?;
        copy(&programs.join(name), to)?;
        answer(Command::new("strip").arg(to))?;
    }
    let [_, trainer, recipes] = &staged;
    tools.patchelf(&["--remove-rpath"], recipes)?;
    // The folder of this machine's libtorch says nothing elsewhere.
    let paths = tools.patchelf(&["--print-rpath"], trainer)?;
    let paths = paths.trim().split(':').filter(|path| path.starts_with("$ORIGIN") && *path != TORCH);
    let paths: Vec<&str> = [TORCH].into_iter().chain(paths).collect();
    tools.patchelf(&["--set-rpath", &paths.join(":")], trainer)?;
    Ok(staged)
}

/// Writes the Python files, and what pip reads about the package.
fn write_package(workspace: &Workspace, stage: &Path) -> Result<()> {
    for (name, text) in PACKAGE {
        write(&stage.join("dtrain").join(name), text)?;
    }
    let about = stage.join(format!("dtrain-{VERSION}.dist-info"));
    create(&about.join("licenses"))?;
    copy_licenses(workspace, &about.join("licenses"))?;
    // libtorch keeps its binary interface within a minor version.
    let torch = LIBTORCH_VERSION.rsplit_once('.').map_or(LIBTORCH_VERSION, |(minor, _)| minor);
    let metadata = format!("{METADATA}Version: {VERSION}\nRequires-Dist: torch=={torch}.*\n\n{DESCRIPTION}");
    write(&about.join("METADATA"), metadata)?;
    let wheel = format!(
        "Wheel-Version: 1.0\nGenerator: xtask {VERSION}\nRoot-Is-Purelib: false\nTag: py3-none-linux_{ARCH}\n"
    );
    write(&about.join("WHEEL"), wheel)
}

/// What pip reads. torch 2.11 needs Python 3.10.
const METADATA: &str = "\
Metadata-Version: 2.4
Name: dtrain
Summary: A torchrun-style launcher and a data-parallel trainer on libtorch
License-Expression: MIT OR Apache-2.0
License-File: LICENSE-APACHE
License-File: LICENSE-MIT
Requires-Python: >=3.10
";

const DESCRIPTION: &str = "\
dtrain starts PyTorch scripts as torchrun does, and trains models from a recipe that states data, model, effective batch and learning \
rate. It chooses micro-batch, accumulation, precision and recompute so that the run fits into memory. `dtrain launch demo` tries it.
";

/// Names the wheel by the glibc that its programs need, which auditwheel finds, and returns its new path.
fn tag(tools: &Tools, output: &Path) -> Result<PathBuf> {
    let linux = find_wheel(output)?;
    let shown = tools.python(&["-m", "auditwheel", "show"], &[&linux])?;
    let tag = glibc_tag(&shown).with_context(|| format!("auditwheel names no glibc: {shown}"))?;
    let minor = tag.split('_').nth(2).and_then(|minor| minor.parse::<u32>().ok()).unwrap_or(u32::MAX);
    if minor > NEWEST_GLIBC {
        eprintln!(
            "warning: the wheel needs glibc 2.{minor}, of the C++ compiler's machine; wheels for others need 2.{NEWEST_GLIBC}"
        );
    }
    tools.python(&["-m", "wheel", "tags", "--remove", "--platform-tag", &tag], &[&linux])?;
    find_wheel(output)
}

/// Finds the tag in auditwheel's words. It breaks lines anywhere.
fn glibc_tag(shown: &str) -> Option<String> {
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, after) = words.split_once("constrains the platform tag to \"")?;
    after.split('"').next().map(str::to_owned)
}

fn find_wheel(output: &Path) -> Result<PathBuf> {
    let files = fs::read_dir(output).with_context(|| format!("cannot read {}", output.display()))?;
    let mut files = files.flatten().map(|entry| entry.path());
    files
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
        .with_context(|| format!("no wheel was written to {}", output.display()))
}

/// Writes the programs as a compressed archive, and checksums of them and of the wheel.
fn archive(workspace: &Workspace, output: &Path, programs: &[PathBuf; 3]) -> Result<PathBuf> {
    let name = format!("dtrain-{VERSION}-linux-{ARCH}");
    let folder = output.join(&name);
    create(&folder)?;
    for program in programs {
        let to = folder.join(program.file_name().unwrap_or_default());
        copy(program, &to)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755))
            .map_err(|error| Problem::write(&to, error))?;
    }
    copy_licenses(workspace, &folder)?;
    write_share(&programs[0], &folder.join("share"))?;
    let file = format!("{name}.tar.gz");
    answer(Command::new("tar").args(["-czf", &file, &name]).current_dir(output))?;
    let wheel = find_wheel(output)?;
    let files = PROGRAMS.map(|program| format!("{name}/{program}"));
    let mut sums = Command::new("sha256sum");
    sums.current_dir(output).args(files).arg(&file).arg(wheel.file_name().unwrap_or_default());
    write(&output.join("SHA256SUMS"), answer(&mut sums)?)?;
    fs::remove_dir_all(&folder).map_err(|error| Problem::write(&folder, error))?;
    Ok(output.join(file))
}

fn copy_licenses(workspace: &Workspace, folder: &Path) -> Result<()> {
    ["LICENSE-APACHE", "LICENSE-MIT"]
        .into_iter()
        .try_for_each(|name| copy(&workspace.root().join(name), &folder.join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tag_is_found_across_broken_lines() {
        let shown = "provided shared libraries.\n\nThis constrains the\nplatform tag to \"manylinux_2_34_x86_64\". In order";
        assert_eq!(glibc_tag(shown).as_deref(), Some("manylinux_2_34_x86_64"));
        assert_eq!(glibc_tag("nothing"), None);
    }
}
