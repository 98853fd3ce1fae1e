//! `gpu-test`: dtrain on real GPUs. No part of the tests, which run without one: whoever has a GPU verifies the project with it.

mod bench;
mod checks;
mod pack;
mod report;
mod site;
mod started;

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use dtrain_common::env::CUDA_VISIBLE_DEVICES;
use dtrain_common::gpu::{Driver, Nvidia, Status};
use dtrain_common::units::ByteSize;

use crate::process::{Interrupted, Signals};
use crate::python::environment;
use crate::setup::{Problem, SetArgs};
use crate::workspace::Workspace;
use checks::Part;
use report::{Finding, Outcome, Report, Row};
use site::Site;

/// The exit code where there is nothing to check on, as for other mistakes of usage.
const NO_GPU: u8 = 2;

/// Says where Python's torch has its libraries, and its version.
const TORCH_LIBRARIES: &str =
    "import os, torch; print(os.path.join(os.path.dirname(torch.__file__), 'lib')); print(torch.__version__)";

/// The libtorch that the programs are built with.
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
    /// Where the JSON goes; results.json in the suite's folder without it
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

impl Args {
    fn wants(&self, part: Part) -> bool {
        self.parts.is_empty() || self.parts.contains(&part)
    }
}

/// Checks, prints and writes. The exit code is 1 where something does not hold, and 2 without a GPU.
pub(crate) fn run(signals: &Signals, args: &Args) -> Result<u8> {
    if let Some(folder) = &args.make_pack {
        return make_pack(signals, args, folder);
    }
    // Found out before anything is built.
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
    let place = match Place::find(signals, args)? {
        Ok(place) => place,
        Err(code) => return Ok(code),
    };
    let out = args.out.clone().unwrap_or_else(|| place.own.join("results.json"));
    let work = place.own.join("gpu-test-work");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    }
    fs::create_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
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
        commands: RefCell::new(Vec::new()),
    };
    let report = Report {
        format: 1,
        command: command(args),
        machine: serde_json::to_value(&status)?,
        rows: check(&site, args)?,
    };
    print!("{report}");
    let mut json = serde_json::to_vec_pretty(&report)?;
    json.push(b'\n');
    fs::write(&out, json).map_err(|error| Problem::write(&out, error))?;
    eprintln!("all figures and commands are in {}", out.display());
    let failed = report.count(Outcome::Failed);
    if failed == 0 {
        // What a check left tells why it failed; otherwise nobody needs it.
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    } else {
        eprintln!("what the runs have left is in {}", work.display());
    }
    Ok(u8::from(failed > 0))
}

/// The names of the GPUs to be used: those that the user has made visible, or all that there are.
fn devices(visible: Option<String>, count: usize) -> Vec<String> {
    match visible {
        Some(list) => list
            .split(',')
            .map(|name| name.trim().to_owned())
            .filter(|name| !name.is_empty())
            .collect(),
        None => (0..count).map(|index| index.to_string()).collect(),
    }
}

/// The GPUs that the driver tells of with the names of those to be used, or why there is none.
fn gpus() -> Result<(Status, Vec<String>), String> {
    let status = Nvidia::open()
        .and_then(|mut nvidia| nvidia.status())
        .map_err(|error| error.to_string())?;
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
    Ok(0)
}

/// Where things are found: in a pack, or in the workspace.
struct Place {
    programs: PathBuf,
    bench: PathBuf,
    reference: PathBuf,
    libraries: Option<PathBuf>,
    python: Option<PathBuf>,
    /// Where the suite writes.
    own: PathBuf,
}

impl Place {
    /// The exit code where the programs do not build.
    fn find(signals: &Signals, args: &Args) -> Result<Result<Self, u8>> {
        let python = python(args)?;
        let torch = python.as_ref().and_then(|(_, libraries)| libraries.clone());
        let named = args
            .libtorch
            .as_ref()
            .map(|folder| {
                folder
                    .canonicalize()
                    .with_context(|| format!("--libtorch names {}, which cannot be opened", folder.display()))
            })
            .transpose()?;
        let python = python.map(|(python, _)| python);
        if let Some(pack) = &args.pack {
            let pack = pack
                .canonicalize()
                .with_context(|| format!("--pack names {}, which cannot be opened", pack.display()))?;
            return Ok(Ok(Self {
                programs: pack.join(pack::BIN),
                bench: pack.join(pack::BENCH),
                reference: pack.join(pack::REFERENCE),
                libraries: named.or(torch),
                python,
                own: pack,
            }));
        }
        let workspace = Workspace::find()?;
        let programs = match pack::build(&workspace, signals, &args.set)? {
            Ok(programs) => programs,
            Err(code) => {
                eprintln!("gpu-test failed: dtrain does not build");
                return Ok(Err(code));
            }
        };
        let python = match python {
            None if args.wants(Part::Benchmarks) => peer(&workspace, signals)?,
            other => other,
        };
        Ok(Ok(Self {
            programs,
            bench: workspace.root().join("tests/bench"),
            reference: workspace.root().join("tests/parity/reference"),
            // The programs find the one of set-up themselves.
            libraries: named,
            python,
            own: workspace.target(),
        }))
    }
}

/// A Python with PyTorch, set up for the benchmarks; none where that cannot be, which is no reason to check nothing.
fn peer(workspace: &Workspace, signals: &Signals) -> Result<Option<PathBuf>> {
    let requirements = "tests/bench/requirements.txt";
    match environment(workspace, signals, "bench-venv", requirements) {
        Ok(python) => Ok(Some(python)),
        Err(error) if error.downcast_ref::<Interrupted>().is_some() => Err(error),
        Err(error) => {
            eprintln!("warning: there is no PyTorch to compare with: {error:#}");
            Ok(None)
        }
    }
}

/// A Python, and the libraries of its torch where that is the one that the programs need. One that is named must have it; python3 may.
fn python(args: &Args) -> Result<Option<(PathBuf, Option<PathBuf>)>> {
    let (python, named) = match &args.python {
        Some(python) => (python.clone(), true),
        None => (PathBuf::from("python3"), false),
    };
    let output = Command::new(&python).args(["-c", TORCH_LIBRARIES]).output();
    let said = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        _ if named => anyhow::bail!(
            "{} does not import torch: install torch {TORCH}",
            python.display()
        ),
        _ => return Ok(None),
    };
    Ok(Some((python, libraries(&said))))
}

/// The folder in what Python says, where its torch is of the right version.
fn libraries(said: &str) -> Option<PathBuf> {
    let mut lines = said.lines();
    let (folder, version) = (lines.next()?, lines.next()?);
    (version.split('+').next() == Some(TORCH)).then(|| PathBuf::from(folder))
}

/// Runs what is asked for, one after the other; a signal ends all.
fn check(site: &Site<'_>, args: &Args) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for part in Part::ALL {
        if !args.wants(part) {
            continue;
        }
        for check in part.checks() {
            if args
                .only
                .as_ref()
                .is_some_and(|only| !check.name.contains(only.as_str()))
            {
                continue;
            }
            eprintln!("{}: {}", part.name(), check.name);
            let begun = Instant::now();
            site.commands.borrow_mut().clear();
            let found = match (check.run)(site) {
                Ok(found) => found,
                Err(error) if error.downcast_ref::<Interrupted>().is_some() => return Err(error),
                Err(error) => Finding::failed(format!("{error:#}")),
            };
            let Finding {
                outcome,
                note,
                figures,
            } = found;
            eprintln!("  {}: {note}", outcome.word());
            rows.push(Row {
                part: part.name(),
                check: check.name,
                outcome,
                seconds: begun.elapsed().as_secs_f64(),
                note,
                figures,
                commands: site.commands.take(),
            });
        }
    }
    Ok(rows)
}

/// The command, without the paths, which say nothing about the figures.
fn command(args: &Args) -> String {
    let mut words = match &args.pack {
        Some(_) => "./run".to_owned(),
        None => "cargo xtask gpu-test".to_owned(),
    };
    for part in &args.parts {
        words += &format!(" {}", part.name());
    }
    words += &format!(" --rounds {}", args.rounds);
    if let Some(only) = &args.only {
        words += &format!(" --only '{only}'");
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_visible_is_used() {
        assert_eq!(devices(None, 2), ["0", "1"]);
        assert_eq!(devices(Some("3, GPU-7".to_owned()), 8), ["3", "GPU-7"]);
        assert!(devices(Some(String::new()), 8).is_empty());
    }

    #[test]
    fn only_the_libtorch_that_the_programs_were_built_with_is_taken() {
        let said = "/site-packages/torch/lib\n2.11.0+cu130\n";
        assert_eq!(libraries(said), Some(PathBuf::from("/site-packages/torch/lib")));
        assert_eq!(libraries("/site-packages/torch/lib\n2.12.0\n"), None);
        assert_eq!(libraries(""), None);
    }
}
