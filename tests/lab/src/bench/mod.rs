//! `bench`: dtrain and PyTorch on one machine in one run. Not a test: the figures depend on the machine.
//!
//! Every round runs each case once, dtrain and PyTorch in turn. Ratios are computed within a round: a slow
//! phase of the machine affects both sides. Reports show median, minimum and maximum over the rounds.

mod benchmarks;
mod case;
mod checkpoint;
mod figures;
mod inputs;
mod launch;
mod report;
mod runner;
mod table;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use crate::python::environment;
use xtask::process::{Interrupted, Signals};
use xtask::setup::{self, Ready, SetArgs};
use xtask::workspace::Workspace;

use crate::files::{canonical, create};
use crate::machine::Machine;
use crate::report::{Group, Report, Row, Verdict};
use benchmarks::Benchmark;
use case::Case;
pub(crate) use case::Steps;
use figures::Figures;
pub(crate) use figures::number;
pub(crate) use inputs::numbers;
use runner::Runner;

/// The folder with the recipes and PyTorch's programs, from the workspace's root.
const SOURCES: &str = "tests/bench";

/// The version of PyTorch to compare with.
const TORCH: &str = "2.11.0";

/// The arguments of `bench`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Benchmarks to run [default: all]
    #[arg(value_enum)]
    names: Vec<Benchmark>,
    /// Runs of each case
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// JSON file of the results [default: target/bench/results.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// A Python with torch 2.11.0 and torchvision [default: target/bench-venv]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Folder of built programs [default: a new release build]
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cpu", "cuda"])]
    bin_dir: Option<PathBuf>,
    /// Folder of JPEG class folders for `loader` [default: generated images]
    #[arg(long, value_name = "DIR")]
    images: Option<PathBuf>,
}

/// Measures, prints and writes. The exit code is 1 if a case could not be measured, even if others could.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let benchmarks = chosen(&args.names);
    ensure!(
        args.images.is_none() || benchmarks.contains(&Benchmark::Loader),
        "--images has no effect without the benchmark loader: name loader too, or omit --images"
    );
    // The launcher needs no libtorch, so its benchmark needs none either.
    let ready = if args.bin_dir.is_some() {
        Ready::without_libtorch()
    } else if benchmarks.iter().any(|benchmark| benchmark.needs_libtorch()) {
        setup::run(workspace, signals, &args.set.clone().into())?
    } else {
        ensure!(
            !args.set.is_given(),
            "--cpu and --cuda have no effect: launch and cluster need no libtorch; omit them"
        );
        Ready::without_libtorch()
    };
    let folder = workspace.target().join("bench");
    let out = args.out.clone().unwrap_or_else(|| folder.join("results.json"));
    create(&folder)?;
    // Fails now, not after ten minutes.
    if let Some(parent) = out.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        create(parent)?;
    }
    let programs = match &args.bin_dir {
        Some(programs) => canonical("--bin-dir", programs)?,
        None => {
            let code = build(workspace, signals, &ready, &benchmarks)?;
            if code != 0 {
                eprintln!("bench failed: cannot build dtrain, see cargo's output");
                return Ok(code);
            }
            ready.build_folder(workspace)?.join("release")
        }
    };
    let python = match &args.python {
        Some(python) => python.clone(),
        None => environment(workspace, signals, "bench-venv", &format!("{SOURCES}/requirements.txt"))?,
    };
    let (torch, torchvision) = versions(&python)?;
    let sources = workspace.root().join(SOURCES);
    let images = if benchmarks.contains(&Benchmark::Loader) {
        let script = sources.join("make_images.py");
        inputs::images(args.images.as_deref(), &folder, &python, &script, signals)?
    } else {
        PathBuf::new()
    };
    let runner = Runner {
        signals,
        sources,
        programs,
        python,
        text: inputs::text(&folder)?,
        images,
        work: folder.join("work"),
    };

    let versions = serde_json::json!({"torch": torch, "torchvision": torchvision});
    let machine = Machine::describe(Some(workspace), versions)?;
    if let Some(warning) = machine.warning() {
        eprintln!("warning: {warning}");
    }
    let started = Instant::now();
    let (measured, failed) = measure(&runner, &parts(&benchmarks), usize::from(args.rounds))?;
    let mut report = Report::new(command(args), machine);
    for benchmark in benchmarks {
        report.groups.extend(report::groups(benchmark, &measured));
    }
    let is_whole = failed.rows.is_empty();
    report.groups.extend((!is_whole).then_some(failed));
    report.publish(&out)?;
    eprintln!("benchmarks took {:.0} s", started.elapsed().as_secs_f64());
    Ok(u8::from(!is_whole))
}

/// Returns the named benchmarks, each once and in the order of the list; all if none is named.
fn chosen(names: &[Benchmark]) -> Vec<Benchmark> {
    let wanted = |benchmark: &Benchmark| names.is_empty() || names.contains(benchmark);
    Benchmark::value_variants().iter().copied().filter(wanted).collect()
}

/// Returns the cases that the benchmarks need, each once, part by part.
fn parts(benchmarks: &[Benchmark]) -> Vec<Vec<Case>> {
    let mut parts: Vec<Vec<Case>> = Vec::new();
    let tables = benchmarks.iter().flat_map(|benchmark| benchmark.tables());
    for case in tables.flat_map(|table| table.cases) {
        match parts.iter_mut().find(|part| part.iter().any(|other| other.part() == case.part())) {
            Some(part) if part.contains(&case) => {}
            Some(part) => part.push(case),
            None => parts.push(vec![case]),
        }
    }
    parts
}

type Measured = BTreeMap<Case, Vec<Figures>>;

/// Runs every part. Omits a failed part and reports its error; a signal ends everything.
fn measure(runner: &Runner<'_>, parts: &[Vec<Case>], rounds: usize) -> Result<(Measured, Group)> {
    let (mut measured, mut failed) = (Measured::new(), Group::new("failed measurements"));
    for part in parts {
        let Some(name) = part.first().map(|case| case.part()) else {
            continue;
        };
        match measure_part(runner, part, &name, rounds) {
            Ok(own) => measured.extend(own),
            Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
            Err(error) => {
                eprintln!("error: cannot measure {name}: {error:#}");
                failed.rows.push(Row::new(name).with_verdict(Verdict::Failed, format!("{error:#}")));
            }
        }
    }
    Ok((measured, failed))
}

/// Runs every case of a part once per round: a slow phase of the machine affects all cases.
fn measure_part(runner: &Runner<'_>, part: &[Case], name: &str, rounds: usize) -> Result<Measured> {
    let mut measured = Measured::new();
    for round in 1..=rounds {
        for case in part {
            eprintln!("{name}: round {round} of {rounds}: {}", case.name());
            measured.entry(*case).or_default().push(runner.run(*case)?);
        }
    }
    runner::check_same_work(&measured, name)?;
    Ok(measured)
}

fn build(workspace: &Workspace, signals: &Signals, ready: &Ready, benchmarks: &[Benchmark]) -> Result<u8> {
    eprintln!("building dtrain; the first build takes some minutes");
    let mut build = ready.cargo(workspace);
    build.args(["build", "--release"]);
    for (package, program) in programs(benchmarks) {
        build.args(["--package", package, "--bin", program]);
    }
    let code = signals.run(&mut build)?.code;
    signals.check()?;
    Ok(code)
}

/// Returns the packages and programs to build for these benchmarks.
fn programs(benchmarks: &[Benchmark]) -> Vec<(&'static str, &'static str)> {
    let mut programs = vec![("dtrain", "dtrain")];
    if benchmarks.iter().any(|benchmark| benchmark.needs_libtorch()) {
        programs.extend([("dtrain-worker", "dtrain-worker"), ("dtrain-tests", "loader-bench")]);
    }
    if benchmarks.iter().any(|benchmark| matches!(benchmark, Benchmark::Launch | Benchmark::Cluster)) {
        programs.push(("lab", "launch-bench"));
    }
    programs
}

/// Returns the versions of torch and torchvision, which must match dtrain's libtorch.
fn versions(python: &Path) -> Result<(String, String)> {
    let output = Command::new(python)
        .args(["-c", "import torch, torchvision; print(torch.__version__, torchvision.__version__)"])
        .output()
        .with_context(|| format!("cannot start {}", python.display()))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let mut parts = stdout.split_whitespace().map(str::to_owned);
    let (Some(torch), Some(torchvision), true) = (parts.next(), parts.next(), output.status.success()) else {
        let error = String::from_utf8_lossy(&output.stderr);
        let last = error.lines().last().unwrap_or("no output").to_owned();
        return Err(anyhow::anyhow!(
            "{} cannot import torch and torchvision: {last}; install {SOURCES}/requirements.txt there, or omit --python",
            python.display()
        ));
    };
    ensure!(
        torch.split('+').next() == Some(TORCH),
        "{} has torch {torch}, not {TORCH}: install {TORCH}, or omit --python",
        python.display()
    );
    Ok((torch, torchvision))
}

/// Returns the command without paths, which do not affect the figures.
fn command(args: &Args) -> String {
    let mut words = "cargo xtask bench".to_owned();
    for name in &args.names {
        words += &format!(" {}", name.name());
    }
    words += &format!(" --rounds {}", args.rounds);
    for (flag, given) in [("--images", args.images.is_some()), ("--bin-dir", args.bin_dir.is_some())] {
        if given {
            words += &format!(" {flag} DIR");
        }
    }
    words
}
