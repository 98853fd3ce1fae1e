//! `fake-gpu`: runs a program on a machine of fake GPUs. `cargo xtask fake-gpu` builds and starts it.

use std::collections::BTreeMap;
use std::env;
use std::ffi::OsString;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, anyhow, bail};
use clap::Parser;
use dtrain_fake_gpu::layout::{self, Layout};
use dtrain_fake_gpu::machine::{FILE, MOST_GPUS, Machine, VARIABLES};

/// Run a program on a machine of fake GPUs
///
/// Memory, copies, streams, events, graphs and NCCL are real; kernels compute nothing.
/// Programs are dtrain, and Python programs with PyTorch 2.11.0 (CUDA 13.0).
#[derive(Parser)]
#[command(name = "cargo xtask fake-gpu", bin_name = "cargo xtask fake-gpu", after_help = after_help())]
struct Args {
    /// Number of GPUs [default: 1, or from the machine file]
    #[arg(long, value_name = "N")]
    gpus: Option<usize>,
    /// TOML file that describes the machine
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,
    /// Folder of PyTorch [default: LIBTORCH, or target/libtorch/torch]
    #[arg(long, value_name = "DIR")]
    torch: Option<PathBuf>,
    /// Run although this machine has an NVIDIA driver
    #[arg(long)]
    beside_a_driver: bool,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

fn after_help() -> String {
    let rows = VARIABLES.iter().filter(|(name, _)| *name != "FAKE_GPU_LIBRARY");
    let rows: Vec<_> = rows.map(|(name, meaning)| format!("  {name:20} {meaning}")).collect();
    format!(
        "A machine file:\n  link = \"nvlink\"\n  [[gpu]]\n  count = 2\n  name = \"NVIDIA A100-SXM4-40GB\"\n  \
         memory = \"40GiB\"\n  compute-capability = \"8.0\"\n\nVariables:\n{}\n\nExamples:\n  \
         cargo xtask fake-gpu --gpus 2 -- dtrain launch --nproc 2 demo\n  \
         cargo xtask fake-gpu --gpus 4 -- torchrun --nproc-per-node 4 train.py\n",
        rows.join("\n")
    )
}

fn main() -> ExitCode {
    // A program that starts replaces this one.
    let Err(error) = run(&Args::parse());
    eprintln!("error: {error:#}");
    ExitCode::from(1)
}

fn run(args: &Args) -> Result<std::convert::Infallible> {
    if let Some(found) = layout::real_driver().filter(|_| !args.beside_a_driver) {
        bail!("this machine has an NVIDIA driver ({}): use it, or pass --beside-a-driver", found.display());
    }
    if args.gpus.is_some_and(|gpus| gpus > MOST_GPUS) {
        bail!("more than {MOST_GPUS} GPUs: ask for {MOST_GPUS} at most");
    }
    let mut variables: BTreeMap<String, String> = env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect();
    if let Some(gpus) = args.gpus {
        variables.insert("FAKE_GPU_COUNT".into(), gpus.to_string());
    }
    if let Some(file) = &args.machine {
        let file = file.canonicalize().with_context(|| format!("cannot read {}", file.display()))?;
        variables
            .insert(FILE.into(), file.to_str().context("the machine file's path is not UTF-8")?.to_owned());
    }
    Machine::load(&variables).map_err(|why| anyhow!("{why}"))?;

    let build = own_folder()?;
    let target = build.parent().context("no target folder")?;
    let layout = Layout::of_build(&build)?;
    let torch = args.torch.clone().or_else(|| env::var_os("LIBTORCH").map(PathBuf::from));
    let torch = torch.unwrap_or_else(|| target.join("libtorch/torch"));
    layout.add_torch(&torch)?;
    if let Ok(packages) = target.join("pytorch/packages").canonicalize() {
        layout.add_packages(&packages)?;
    }

    let (program, arguments) = args.command.split_first().context("no program")?;
    let program = find(program, &build, &layout)?;
    let mut command = Command::new(&program);
    command.args(arguments).envs(layout.variables());
    for name in ["FAKE_GPU_COUNT", FILE] {
        command.envs(variables.get(name).map(|value| (name, value)));
    }
    Err(command.exec()).with_context(|| format!("cannot start {}", program.display()))
}

/// Returns the folder of this program's build, also if a test built it.
fn own_folder() -> Result<PathBuf> {
    let program = env::current_exe().context("cannot find this program")?;
    let folder = program.parent().context("this program is in no folder")?;
    Ok(if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder }.to_owned())
}

/// Returns the path to start. dtrain's programs and others of this build are put beside the fake libraries: they find libtorch
/// relative to themselves.
fn find(program: &OsString, build: &Path, layout: &Layout) -> Result<PathBuf> {
    let path = Path::new(program);
    let is_built = path.canonicalize().is_ok_and(|path| path.starts_with(build));
    let is_name = path.components().count() == 1;
    let is_own = is_name && (path == "dtrain" || path == "dtrain-worker");
    if !is_built && !is_own {
        return Ok(path.to_owned());
    }
    let found = if is_name { build.join(path) } else { path.to_owned() };
    if !found.is_file() {
        let profile = if build.ends_with("release") { " --release" } else { "" };
        bail!("no {}: run `cargo build{profile} -p dtrain -p dtrain-worker`", found.display());
    }
    let mut programs = vec![found.clone()];
    for name in ["dtrain", "dtrain-worker", "dtrain-recipes"] {
        let other = found.with_file_name(name);
        if other != found && fs::exists(&other).unwrap_or(false) {
            programs.push(other);
        }
    }
    layout.add_programs(&programs)
}
