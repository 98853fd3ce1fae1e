//! `test` and `check`: the tests of every crate, and all checks before a change is merged.

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Instant;

use anyhow::Result;

use crate::hidden_tools::{self, HiddenTools};
use crate::process::Signals;
use crate::setup::{self, SetArgs};
use crate::workspace::Workspace;
use crate::{book, demo, lanes, mpi, pytorch, wheel};

/// The arguments of `check`.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// Run all cases of all tests, and make the pages of rustdoc and the book
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

/// A step of a check.
struct Step<'a> {
    what: &'static str,
    /// The command that repeats it.
    shown: String,
    /// Whether this check has it.
    is_wanted: bool,
    run: Box<dyn Fn() -> Result<u8> + 'a>,
}

impl<'a> Step<'a> {
    fn new(what: &'static str, shown: impl Into<String>, run: impl Fn() -> Result<u8> + 'a) -> Self {
        Self { what, shown: shown.into(), is_wanted: true, run: Box::new(run) }
    }

    fn only_if(self, is_wanted: bool) -> Self {
        Self { is_wanted, ..self }
    }
}

/// The variable by which tests run all their cases: `dtrain_test_kit::thorough`.
const THOROUGH: &str = "DTRAIN_THOROUGH";

/// The epochs of the demo, which runs last with the tests' build: enough to see that it learns.
const DEMO_EPOCHS: u32 = 1;

/// Runs the tests and returns cargo's exit code.
pub fn test(workspace: &Workspace, signals: &Signals, args: &TestArgs) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut cargo = ready.cargo(workspace);
    cargo.args(["test", "--workspace"]).args(&args.args);
    Ok(signals.run(set_test_threads(&mut cargo))?.code)
}

/// The number of tests of a binary that run at once.
const THREADS: &str = "RUST_TEST_THREADS";

/// Runs twice as many tests at once as there are cores, unless the user sets a number: most tests wait. With one thread,
/// libtest would not give threads the names of tests.
fn set_test_threads(cargo: &mut Command) -> &mut Command {
    if env::var_os(THREADS).is_none() {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        cargo.env(THREADS, (2 * cores).to_string());
    }
    cargo
}

/// Returns the source files below a folder, without hidden and build folders. Of itself `cargo fmt` does not find those that
/// `automod::dir!` makes modules.
fn sources(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let is_left_out = name == "target" || name.as_encoded_bytes().starts_with(b".");
        if entry.file_type()?.is_dir() && !is_left_out {
            files.extend(sources(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Runs the steps until one fails, and returns its exit code. Only a thorough check makes the pages of rustdoc and of the book.
pub fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let mut set_up = setup::Args::from(args.set.clone());
    set_up.builds = Some("dev".to_owned());
    let ready = &setup::run(workspace, signals, &set_up)?;
    let hidden = &HiddenTools::new(workspace)?;
    let cargo = |what, variable: Option<(&'static str, &'static str)>, arguments: &'static str| {
        let shown = variable.map_or_else(String::new, |(name, value)| format!("{name}={value} "));
        Step::new(what, format!("{shown}cargo {arguments}"), move || {
            let mut cargo = ready.cargo(workspace);
            cargo.args(arguments.split(' ')).envs(variable);
            Ok(signals.run(&mut cargo)?.code)
        })
    };
    let cargo_of_tests = || {
        let mut cargo = ready.cargo(workspace);
        if args.thorough {
            cargo.env(THOROUGH, "1");
        }
        cargo
    };
    // One run shows all tests that fail.
    let test = || {
        let cargo = || {
            let mut cargo = cargo_of_tests();
            set_test_threads(&mut cargo).env(hidden_tools::RECORD, hidden.record());
            cargo
        };
        let prepare = || pytorch::prepare(workspace, signals, ready.compiler.as_deref());
        lanes::run(workspace, signals, ready, cargo, prepare)
    };
    let wheel = || {
        if !wheel::has_strip() {
            eprintln!("wheel skipped: no strip on PATH; install binutils");
            return Ok(0);
        }
        wheel::write_all(workspace, signals, ready, "dev", true)
    };
    // `.ci/run` sets it: the build of the tests reports the lints.
    let is_clippy_compiler = env::var_os("RUSTC_WORKSPACE_WRAPPER").is_some_and(|it| it == "clippy-driver");
    let mut steps = vec![
        Step::new("formatting", "cargo fmt --all --check -- $(git ls-files '*.rs')", || {
            let mut cargo = ready.cargo(workspace);
            cargo.args(["fmt", "--all", "--check", "--"]).args(sources(workspace.root())?);
            Ok(signals.run(&mut cargo)?.code)
        }),
        cargo("lints", None, "clippy --workspace --all-targets -- -D warnings").only_if(!is_clippy_compiler),
        cargo("documentation", Some(("RUSTDOCFLAGS", "-Dwarnings")), "doc --workspace --no-deps")
            .only_if(args.thorough),
        Step::new("links of pages", "cargo xtask book", || book::check_pages(workspace)),
        Step::new("tests", "cargo test --workspace --no-fail-fast", test),
        Step::new("tests without tools", hidden.shown(), || {
            hidden.test(workspace, signals, cargo_of_tests())
        }),
        Step::new("book", "cargo xtask book", || book::run(workspace, signals, ready)).only_if(args.thorough),
        Step::new("demo", format!("cargo xtask demo --profile dev --epochs {DEMO_EPOCHS}"), || {
            demo::train(workspace, signals, ready, "dev", Some(DEMO_EPOCHS))
        }),
        Step::new("wheel", "cargo xtask wheel --profile dev --try", wheel),
        Step::new("MPI", mpi::shown(), || {
            let libraries = if args.thorough { mpi::Libraries::All } else { mpi::Libraries::First };
            mpi::run(workspace, signals, ready, libraries)
        }),
    ];
    steps.retain(|step| step.is_wanted);
    let mut times = Vec::new();
    for (index, Step { what, shown, run, .. }) in steps.iter().enumerate() {
        eprintln!("check {}/{}: {what}: {shown}", index + 1, steps.len());
        let begun = Instant::now();
        let code = run()?;
        times.push((what, begun.elapsed()));
        signals.check()?;
        if code != 0 {
            eprintln!("check failed at {what}; to repeat it: {shown}");
            return Ok(code);
        }
    }
    for (what, took) in times {
        eprintln!("{what:<20}{:>6.0} s", took.as_secs_f64());
    }
    Ok(0)
}
