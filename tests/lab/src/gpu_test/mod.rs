//! `gpu-test`: checks dtrain on real GPUs, for anyone with a GPU. Not a test: tests run without a GPU.

mod bench;
mod calls;
mod check;
mod checks;
mod finding;
mod hour;
mod pack;
mod paths;
mod proof;
mod scope;
mod suite;

use std::cell::{Cell, RefCell};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use dtrain_common::env::CUDA_VISIBLE_DEVICES;
use dtrain_common::gpu::{Driver, Nvidia, Status};
use dtrain_common::units::ByteSize;
use dtrain_test_kit::no_values;

use xtask::process::{Interrupted, Signals};
use xtask::setup::{Problem, SetArgs};
use xtask::workspace::Workspace;

use crate::files::create_empty;
use crate::machine::Machine;
use crate::report::{Report, Row};
use checks::{Check, Part};
use finding::Finding;
use hour::{Hour, Section};
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
    /// Run what matters most, in eight minutes; writes results-first.json
    #[arg(long, conflicts_with_all = ["parts", "only", "make_pack", "call", "calls"])]
    first: bool,
    /// Run graphs, faults and data loaders in eight minutes
    #[arg(long, conflicts_with_all = ["parts", "only", "make_pack", "call", "calls", "first"])]
    second: bool,
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
    let Gpus { status, devices, are_fake } = match gpus() {
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
        is_fake: are_fake,
        rounds: args.rounds.into(),
        // The time for building and set-up does not count.
        deadline: Cell::new(scope.call.as_ref().map(|_| Instant::now() + calls::LONGEST)),
        commands: RefCell::new(Vec::new()),
        proofs: Proofs::default(),
        background: RefCell::default(),
    };
    let workspace = Workspace::find().ok();
    let machine = Machine::describe(workspace.as_ref(), serde_json::to_value(&status)?)?;
    let mut report = Report::new(command(args), machine);
    check(&suite, scope.sections(), &mut report, &out)?;
    let code = report.publish(&out)?;
    if code == 0 {
        // Files remain only if a check failed, to show the reason.
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    } else {
        eprintln!("files of the runs: {}", work.display());
    }
    Ok(code)
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

/// The GPUs of this machine.
struct Gpus {
    status: Status,
    /// The names of those to use.
    devices: Vec<String>,
    /// Whether the driver is that of fake GPUs.
    are_fake: bool,
}

/// Asks the driver, or returns the reason why there is no GPU.
fn gpus() -> Result<Gpus, String> {
    let mut nvidia = Nvidia::open().map_err(|error| error.to_string())?;
    let status = nvidia.status().map_err(|error| error.to_string())?;
    // While its library is loaded.
    let are_fake = no_values::is_fake_gpu();
    drop(nvidia);
    if status.gpus.is_empty() {
        return Err("the NVIDIA driver finds no GPU".to_owned());
    }
    let devices = devices(std::env::var(CUDA_VISIBLE_DEVICES).ok(), status.gpus.len());
    match devices.is_empty() {
        true => Err("CUDA_VISIBLE_DEVICES hides all GPUs".to_owned()),
        false => Ok(Gpus { status, devices, are_fake }),
    }
}

fn make_pack(signals: &Signals, args: &Args, folder: &Path) -> Result<u8> {
    let workspace = Workspace::find()?;
    let programs = match pack::build(&workspace, signals, &args.set)? {
        Ok(programs) => programs,
        Err(code) => return Ok(code),
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

/// Runs the checks of the sections one after another, and writes the results after each; a signal ends everything.
fn check(suite: &Suite<'_>, sections: Vec<Section>, report: &mut Report, out: &Path) -> Result<()> {
    let (begun, mut granted) = (Instant::now(), Duration::ZERO);
    for section in sections {
        if let Some(time) = section.time {
            granted += time;
            suite.deadline.set(Some(begun + granted));
        }
        if let Some(before) = section.before {
            before(suite)?;
        }
        for check in section.checks {
            eprintln!("{}: {}", section.title, check.name);
            let row = run_check(suite, check, section.time.is_some())?;
            // Without a result, the results of earlier rounds remain.
            let Some(row) = row else { continue };
            report.add(&section.title, row);
            report.write(out)?;
        }
    }
    Ok(())
}

/// Runs a check. `None` if there is no time left for it, and it `may_be_left_out`.
fn run_check(suite: &Suite<'_>, check: Check, may_be_left_out: bool) -> Result<Option<Row>> {
    let begun = Instant::now();
    suite.commands.borrow_mut().clear();
    let found = match suite.is_late() {
        true if may_be_left_out => {
            eprintln!("  left out: the time of its section is over");
            return Ok(None);
        }
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
    row.figures.extend(found.columns);
    row.details = found.figures;
    row.commands = suite.commands.take();
    Ok(Some(row))
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
    if let Some(hour) = Hour::of(args) {
        return format!("{words} --{}", hour.name());
    }
    if let Some(call) = &args.call {
        words += &format!(" --call {call}");
    }
    if let Some(only) = &args.only {
        words += &format!(" --only '{only}'");
    }
    words
}
