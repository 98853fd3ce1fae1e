//! `test` and `check`: the tests of every crate, and all checks before a change is merged.

use std::cell::RefCell;
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::hidden_tools::{self, HiddenTools};
use crate::lanes::THREADS;
use crate::process::Signals;
use crate::setup::{self, SetArgs};
use crate::workspace::Workspace;
use crate::{book, demo, lanes, mpi, pytorch, wheel};

/// The arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Run all cases of all tests
    #[arg(long)]
    thorough: bool,
}

/// The arguments of `test`.
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Arguments for `cargo test --workspace`, for example `-- batch`
    #[arg(last = true)]
    args: Vec<String>,
}

/// Cargo's steps in order: the name of the check, a variable for rustdoc, and cargo's arguments.
const STEPS: [(&str, &str, &str); 3] = [
    ("formatting", "", "fmt --all --check"),
    ("lints", "", "clippy --workspace --all-targets -- -D warnings"),
    ("documentation", "-Dwarnings", "doc --workspace --no-deps"),
];

/// A step: its name, its command for people, and what runs it.
type Step<'a> = (&'a str, String, &'a dyn Fn() -> Result<u8>);

/// The variable by which tests run all their cases: `dtrain_test_kit::thorough`.
const THOROUGH: &str = "DTRAIN_THOROUGH";

/// The epochs of the demo, which runs last with the tests' build: enough to see that it learns.
const DEMO_EPOCHS: u32 = 2;

/// Runs the tests and returns cargo's exit code.
pub fn test(workspace: &Workspace, signals: &Signals, args: &TestArgs) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut cargo = ready.cargo(workspace);
    cargo.args(["test", "--workspace"]).args(&args.args);
    Ok(signals.run(set_test_threads(&mut cargo))?.code)
}

/// Runs twice as many tests at once as there are cores, unless the user sets a number: most tests wait.
fn set_test_threads(cargo: &mut Command) -> &mut Command {
    if std::env::var_os(THREADS).is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        cargo.env(THREADS, (2 * cores).to_string());
    }
    cargo
}

/// Runs the steps until one fails, and returns its exit code.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let mut set_up = setup::Args::from(args.set.clone());
    set_up.builds = Some("dev".to_owned());
    let ready = setup::run(workspace, signals, &set_up)?;
    pytorch::prepare(workspace, signals, ready.compiler.as_deref())?;
    let hidden = HiddenTools::new(workspace)?;
    let count = STEPS.len() + 6;
    let times = RefCell::new(Vec::new());
    let check = |number: usize, what: &str, shown: &str, step: &dyn Fn() -> Result<u8>| -> Result<u8> {
        eprintln!("check {number}/{count}: {what}: {shown}");
        let begun = Instant::now();
        let code = step()?;
        times.borrow_mut().push((what.to_owned(), begun.elapsed()));
        signals.check()?;
        if code != 0 {
            eprintln!("check failed at {what}; to repeat it: {shown}");
        }
        Ok(code)
    };
    for (index, (what, rustdoc, args)) in STEPS.into_iter().enumerate() {
        let mut shown = format!("cargo {args}");
        if !rustdoc.is_empty() {
            shown = format!("RUSTDOCFLAGS={rustdoc} {shown}");
        }
        let step = || {
            let mut cargo = ready.cargo(workspace);
            cargo.args(args.split(' '));
            if !rustdoc.is_empty() {
                cargo.env("RUSTDOCFLAGS", rustdoc);
            }
            Ok(signals.run(&mut cargo)?.code)
        };
        let code = check(index + 1, what, &shown, &step)?;
        if code != 0 {
            return Ok(code);
        }
    }
    let demo = format!("cargo xtask demo --profile dev --epochs {DEMO_EPOCHS}");
    let train = || demo::train(workspace, signals, &ready, "dev", Some(DEMO_EPOCHS));
    let without = || hidden.test(workspace, signals, ready.cargo(workspace));
    // One run shows all tests that fail.
    let test = || {
        lanes::run(workspace, signals, &ready, || {
            let mut cargo = ready.cargo(workspace);
            set_test_threads(&mut cargo).env(hidden_tools::RECORD, hidden.record());
            if args.thorough {
                cargo.env(THOROUGH, "1");
            }
            cargo
        })
    };
    let more: [Step<'_>; 5] = [
        ("tests", "cargo test --workspace --no-fail-fast".to_owned(), &test),
        ("tests without tools", hidden.shown(), &without),
        ("book", "cargo xtask book".to_owned(), &|| book::run(workspace, signals, &ready)),
        ("demo", demo, &train),
        ("wheel", "cargo xtask wheel --profile dev --try".to_owned(), &|| {
            if !wheel::has_strip() {
                eprintln!("wheel skipped: no strip on PATH; install binutils");
                return Ok(0);
            }
            wheel::write_all(workspace, signals, &ready, "dev", true)
        }),
    ];
    for (index, (what, shown, step)) in more.into_iter().enumerate() {
        let code = check(STEPS.len() + index + 1, what, &shown, step)?;
        if code != 0 {
            return Ok(code);
        }
    }
    let begun = Instant::now();
    let code = mpi::run(workspace, signals, &ready, |text| eprintln!("check {count}/{count}: MPI: {text}"))?;
    if code != 0 {
        eprintln!("check failed at MPI");
    }
    times.borrow_mut().push(("MPI".to_owned(), begun.elapsed()));
    for (what, took) in times.take() {
        eprintln!("{what:<20}{:>6.0} s", took.as_secs_f64());
    }
    Ok(code)
}
