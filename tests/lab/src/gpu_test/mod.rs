//! `gpu-test`: checks dtrain on real GPUs, for anyone with a GPU. Not a test: tests run without a GPU.

mod bench;
mod calls;
mod checks;
mod finding;
mod pack;
mod paths;
mod proof;
mod scope;
mod suite;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use dtrain_common::env::CUDA_VISIBLE_DEVICES;
use dtrain_common::gpu::{Driver, Nvidia, Status};
use dtrain_common::units::ByteSize;

use xtask::process::{Interrupted, Signals};
use xtask::setup::{Problem, SetArgs};
use xtask::workspace::Workspace;

use crate::files::create_empty;
use crate::machine::Machine;
use crate::report::{Group, Report, Row, Verdict};
use checks::Part;
use finding::Finding;
use paths::Paths;
use proof::Proofs;
use scope::Scope;
use suite::Suite;

/// The exit code if there is no GPU to check, the same as for other usage errors.
const NO_GPU: u8 = 2;

/// The version of libtorch that the programs are built with.
const TORCH: &str = "2.11.0";

/// The arguments of `gpu-test`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Parts to run [default: all]
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// Runs of each benchmark
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Run only checks whose names contain this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// List the suite's calls of at most eight minutes each
    #[arg(long, conflicts_with_all = ["parts", "only", "make_pack", "call"])]
    calls: bool,
    /// Run one of the calls that --calls lists
    #[arg(long, value_name = "NAME", conflicts_with_all = ["parts", "only", "make_pack"])]
    call: Option<String>,
    /// Create a folder that runs the suite without Rust and network
    #[arg(long, value_name = "DIR", conflicts_with_all = ["parts", "pack", "only", "out", "libtorch", "python"])]
    make_pack: Option<PathBuf>,
    /// Run from a folder that --make-pack created
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cpu", "cuda"])]
    pack: Option<PathBuf>,
    /// Folder of libtorch's libraries [default: from Python's torch or set-up]
    #[arg(long, value_name = "DIR")]
    libtorch: Option<PathBuf>,
    /// Python with torch 2.11.0 and torchvision [default: python3 or target/bench-venv]
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// JSON file of the results [default: results.json or results-CALL.json]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// Checks, prints and writes. The exit code is 1 if a check fails, and 2 without a GPU.
pub(crate) fn run(signals: &Signals, args: &Args) -> Result<u8> {
    if let Some(folder) = &args.make_pack {
        return make_pack(signals, args, folder);
    }
    if args.calls {
        let rounds = args.rounds.into();
        println!("{}", calls::table(&calls::calls(rounds), rounds));
        return Ok(0);
    }
    let scope = Scope::new(args)?;
    // Checked before the build, which takes long.
    let (status, devices) = match gpus() {
        Ok(found) => found,
        Err(reason) => {
            eprintln!(
                "error: gpu-test needs a GPU: {reason}; run `cargo xtask test` for the tests without a GPU, or \
                 `cargo xtask gpu-test --make-pack DIR` to create a folder for a machine with a GPU"
            );
            return Ok(NO_GPU);
        }
    };
    let paths = match Paths::find(signals, &scope)? {
        Ok(paths) => paths,
        Err(code) => return Ok(code),
    };
    let out = args.out.clone().unwrap_or_else(|| paths.own.join(scope.results()));
    let work = paths.own.join("gpu-test-work");
    create_empty(&work)?;
    let suite = Suite {
        signals,
        programs: paths.programs,
        bench: paths.bench,
        reference: paths.reference,
        libraries: paths.libraries,
        python: paths.python,
        work: work.canonicalize()?,
        gpus: devices.len(),
        devices,
        rounds: args.rounds.into(),
        // The time for building and set-up does not count.
        deadline: scope.call.as_ref().map(|_| Instant::now() + calls::LONGEST),
        commands: RefCell::new(Vec::new()),
        proofs: Proofs::default(),
    };
    let workspace = Workspace::find().ok();
    let machine = Machine::describe(workspace.as_ref(), serde_json::to_value(&status)?)?;
    let mut report = Report::new(command(args), machine);
    report.groups = check(&suite, &scope)?;
    report.publish(&out)?;
    let failed = report.count(Verdict::Failed);
    if failed == 0 {
        // Files remain only if a check failed, to show the reason.
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    } else {
        eprintln!("files of the runs: {}", work.display());
    }
    Ok(u8::from(failed > 0))
}

/// Returns the names of the GPUs to use: those that the user made visible, or all.
fn devices(visible: Option<String>, count: usize) -> Vec<String> {
    match visible {
        Some(list) => {
            list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
        }
        None => (0..count).map(|index| index.to_string()).collect(),
    }
}

/// Returns the driver's GPUs and the names of those to use, or the reason why there is no GPU.
fn gpus() -> Result<(Status, Vec<String>), String> {
    let status = Nvidia::open().and_then(|mut nvidia| nvidia.status()).map_err(|error| error.to_string())?;
    if status.gpus.is_empty() {
        return Err("the NVIDIA driver finds no GPU".to_owned());
    }
    let devices = devices(std::env::var(CUDA_VISIBLE_DEVICES).ok(), status.gpus.len());
    match devices.is_empty() {
        true => Err("CUDA_VISIBLE_DEVICES hides all GPUs".to_owned()),
        false => Ok((status, devices)),
    }
}

fn make_pack(signals: &Signals, args: &Args, folder: &Path) -> Result<u8> {
    let workspace = Workspace::find()?;
    let programs = match pack::build(&workspace, signals, &args.set)? {
        Ok(programs) => programs,
        Err(code) => {
            eprintln!("gpu-test failed: cannot build dtrain, see cargo's output");
            return Ok(code);
        }
    };
    pack::pack(&workspace, &programs, folder)?;
    eprintln!(
        "{} ({}): copy it to a machine with a GPU and libtorch {TORCH} with CUDA, and run `./run` there",
        folder.display(),
        ByteSize(pack::size(folder)?)
    );
    let Some((archive, bytes)) = pack::archive(folder)? else {
        eprintln!("warning: the pack is not compressed: tar is missing or failed");
        return Ok(0);
    };
    let limit = ByteSize(pack::LARGEST);
    eprintln!("{} ({}, limit {limit})", archive.display(), ByteSize(bytes));
    if bytes > pack::LARGEST {
        eprintln!("gpu-test failed: the pack exceeds {limit}: install binutils, whose strip reduces it");
        return Ok(1);
    }
    Ok(0)
}

/// Runs the wanted checks one after another; a signal ends everything.
fn check(suite: &Suite<'_>, scope: &Scope<'_>) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for part in Part::ALL {
        let mut group = Group::new(part.name());
        for (number, check) in part.checks(suite.rounds).into_iter().enumerate() {
            if !scope.wants(part, number, &check.name) {
                continue;
            }
            eprintln!("{}: {}", part.name(), check.name);
            let begun = Instant::now();
            suite.commands.borrow_mut().clear();
            let late = suite.deadline.is_some_and(|deadline| begun > deadline);
            let found = match late {
                true => Ok(Finding::failed("the call's time limit is over")),
                false => (check.run)(suite),
            };
            let found = match found {
                Ok(found) => found,
                Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
                Err(error) => Finding::failed(format!("{error:#}")),
            };
            let found = suite.proofs.judge(found);
            eprintln!("  {}: {}", found.verdict.as_str(), found.note);
            let mut row = Row::new(check.name)
                .with("seconds", (10.0 * begun.elapsed().as_secs_f64()).round() / 10.0)
                .with_verdict(found.verdict, found.note);
            row.details = found.figures;
            row.commands = suite.commands.take();
            group.rows.push(row);
        }
        if !group.rows.is_empty() {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// Returns the command without paths, which do not affect the figures.
fn command(args: &Args) -> String {
    let mut words = match &args.pack {
        Some(_) => "./run".to_owned(),
        None => "cargo xtask gpu-test".to_owned(),
    };
    for part in &args.parts {
        words += &format!(" {}", part.name());
    }
    words += &format!(" --rounds {}", args.rounds);
    if let Some(call) = &args.call {
        words += &format!(" --call {call}");
    }
    if let Some(only) = &args.only {
        words += &format!(" --only '{only}'");
    }
    words
}
