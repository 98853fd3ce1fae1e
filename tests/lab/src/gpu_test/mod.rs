//! `gpu-test`: checks dtrain on real GPUs, for anyone with a GPU. Not a test: tests run without a GPU.

mod bench;
mod calls;
mod checks;
mod finding;
mod pack;
mod place;
mod scope;
mod site;

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

use crate::machine::Machine;
use crate::place::empty;
use crate::report::{Group, Report, Row, Verdict};
use checks::Part;
use finding::Finding;
use place::Place;
use scope::Scope;
use site::Site;

/// The exit code if there is no GPU to check, the same as for other usage errors.
const NO_GPU: u8 = 2;

/// The version of libtorch that the programs are built with.
const TORCH: &str = "2.11.0";

/// What `gpu-test` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// The parts to run; all without any
    #[arg(value_enum)]
    parts: Vec<Part>,
    /// How often each benchmark is run
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Only checks whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Show the calls that the suite can be run in, each of at most eight minutes, and end
    #[arg(long, conflicts_with_all = ["parts", "only", "make_pack", "call"])]
    calls: bool,
    /// Run one of these calls
    #[arg(long, value_name = "NAME", conflicts_with_all = ["parts", "only", "make_pack"])]
    call: Option<String>,
    /// Make a folder of programs and scripts that runs all this without Rust and without a network, and end
    #[arg(long, value_name = "DIR", conflicts_with_all = ["parts", "pack", "only", "out", "libtorch", "python"])]
    make_pack: Option<PathBuf>,
    /// Run from such a folder
    #[arg(long, value_name = "DIR", conflicts_with_all = ["cpu", "cuda"])]
    pack: Option<PathBuf>,
    /// libtorch's folder of libraries, instead of that of Python's torch or of set-up
    #[arg(long, value_name = "DIR")]
    libtorch: Option<PathBuf>,
    /// A Python with torch 2.11.0 and torchvision, for the benchmarks; without it python3, where that has torch, and otherwise one that is
    /// set up, where there is a repository
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
    /// Run on the CPU what can be run there, as if it were one GPU, to see that the suite itself works
    #[arg(long, hide = true)]
    rehearse: bool,
    /// Where the JSON goes; without it results.json in the suite's folder, or results-NAME.json after a call
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
    let scope = Scope::of(args)?;
    // Checked before the build, which takes long.
    let (status, devices) = match gpus() {
        Ok(found) => found,
        Err(_) if args.rehearse => (Status::default(), Vec::new()),
        Err(reason) => {
            eprintln!(
                "gpu-test needs a GPU, and {reason}. Nothing was checked. The tests that need none are `cargo xtask test`; \
                 `cargo xtask gpu-test --make-pack DIR` makes a folder to be run on a machine that has one"
            );
            return Ok(NO_GPU);
        }
    };
    let place = match Place::find(signals, &scope)? {
        Ok(place) => place,
        Err(code) => return Ok(code),
    };
    let out = args.out.clone().unwrap_or_else(|| place.own.join(scope.results()));
    let work = place.own.join("gpu-test-work");
    empty(&work)?;
    let site = Site {
        signals,
        programs: place.programs,
        bench: place.bench,
        reference: place.reference,
        libraries: place.libraries,
        python: place.python,
        work: work.canonicalize()?,
        gpus: devices.len().max(1),
        devices,
        rehearses: args.rehearse,
        rounds: args.rounds.into(),
        // The time for building and set-up does not count.
        deadline: scope.call.as_ref().map(|_| Instant::now() + calls::LONGEST),
        commands: RefCell::new(Vec::new()),
    };
    let workspace = Workspace::find().ok();
    let machine = Machine::look(workspace.as_ref(), serde_json::to_value(&status)?)?;
    let mut report = Report::new(command(args), machine);
    report.groups = check(&site, &scope)?;
    report.publish(&out)?;
    let failed = report.count(Verdict::Failed);
    if failed == 0 {
        // Files remain only if a check failed, to show the reason.
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    } else {
        eprintln!("what the runs have left is in {}", work.display());
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
        return Err("the NVIDIA driver finds none here".to_owned());
    }
    let devices = devices(std::env::var(CUDA_VISIBLE_DEVICES).ok(), status.gpus.len());
    match devices.is_empty() {
        true => Err("CUDA_VISIBLE_DEVICES hides all of them".to_owned()),
        false => Ok((status, devices)),
    }
}

fn make_pack(signals: &Signals, args: &Args, folder: &Path) -> Result<u8> {
    let workspace = Workspace::find()?;
    let programs = match pack::build(&workspace, signals, &args.set)? {
        Ok(programs) => programs,
        Err(code) => {
            eprintln!("gpu-test failed: dtrain does not build");
            return Ok(code);
        }
    };
    pack::pack(&workspace, &programs, folder)?;
    eprintln!(
        "{} ({}): copy it to a machine with a GPU and libtorch {TORCH} with CUDA, and start `./run` there",
        folder.display(),
        ByteSize(pack::size(folder)?)
    );
    let Some((archive, bytes)) = pack::archive(folder)? else {
        eprintln!("the pack is not compressed: there is no tar that does it");
        return Ok(0);
    };
    let limit = ByteSize(pack::LARGEST);
    eprintln!("{} ({}, of at most {limit})", archive.display(), ByteSize(bytes));
    if bytes > pack::LARGEST {
        eprintln!(
            "gpu-test failed: the pack is too large to be sent: install binutils, whose strip makes it small"
        );
        return Ok(1);
    }
    Ok(0)
}

/// Runs the wanted checks one after another; a signal ends everything.
fn check(site: &Site<'_>, scope: &Scope<'_>) -> Result<Vec<Group>> {
    let mut groups = Vec::new();
    for part in Part::ALL {
        let mut group = Group::new(part.name());
        for (number, check) in part.checks(site.rounds).into_iter().enumerate() {
            if !scope.wants(part, number, &check.name) {
                continue;
            }
            eprintln!("{}: {}", part.name(), check.name);
            let begun = Instant::now();
            site.commands.borrow_mut().clear();
            let late = site.deadline.is_some_and(|deadline| begun > deadline);
            let found = match late {
                true => Ok(Finding::failed("the call has taken its time already")),
                false => (check.run)(site),
            };
            let found = match found {
                Ok(found) => found,
                Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
                Err(error) => Finding::failed(format!("{error:#}")),
            };
            eprintln!("  {}: {}", found.verdict.word(), found.note);
            let mut row = Row::new(check.name)
                .with("seconds", (10.0 * begun.elapsed().as_secs_f64()).round() / 10.0)
                .judged(found.verdict, found.note);
            row.details = found.figures;
            row.commands = site.commands.take();
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
