//! `test` and `check`: the tests of every crate, and all that must hold before a change goes in.

use std::process::Command;
use std::thread;

use anyhow::Result;

use crate::process::Signals;
use crate::setup::{self, Ready, SetArgs};
use crate::workspace::Workspace;
use crate::{demo, pytorch};

/// What `check` is asked for.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    set: SetArgs,
}

/// What `test` is asked for.
#[derive(Debug, clap::Args)]
pub struct TestArgs {
    #[command(flatten)]
    set: SetArgs,
    /// Passed on to `cargo test --workspace`, for example `-- batch` or `-- --release`
    #[arg(last = true)]
    args: Vec<String>,
}

/// One step: what it looks at, and what it does.
struct Step {
    what: &'static str,
    work: Work,
}

enum Work {
    /// Cargo with these variables and arguments.
    Cargo(&'static [(&'static str, &'static str)], &'static str),
    /// The demo, with what the tests have built.
    Demo,
}

const STEPS: [Step; 5] = [
    Step {
        what: "formatting",
        work: Work::Cargo(&[], "fmt --all --check"),
    },
    Step {
        what: "lints",
        work: Work::Cargo(&[], "clippy --workspace --all-targets -- -D warnings"),
    },
    Step {
        what: "documentation",
        work: Work::Cargo(&[("RUSTDOCFLAGS", "-Dwarnings")], "doc --workspace --no-deps"),
    },
    Step {
        what: "tests",
        work: Work::Cargo(&[], "test --workspace"),
    },
    Step {
        what: "demo",
        work: Work::Demo,
    },
];

/// Enough to see that it learns.
const DEMO_EPOCHS: u32 = 2;

impl Step {
    /// The command, as one would type it.
    fn shown(&self) -> String {
        match self.work {
            Work::Cargo(vars, args) => {
                let vars: String = vars
                    .iter()
                    .map(|(name, value)| format!("{name}={value} "))
                    .collect();
                format!("{vars}cargo {args}")
            }
            Work::Demo => format!("cargo xtask demo --profile dev --epochs {DEMO_EPOCHS}"),
        }
    }

    fn run(&self, workspace: &Workspace, signals: &Signals, ready: &Ready) -> Result<u8> {
        match self.work {
            Work::Cargo(vars, args) => {
                let mut cargo = ready.cargo(workspace);
                cargo.args(args.split(' ')).envs(vars.iter().copied());
                Ok(signals.run(side_by_side(&mut cargo))?.code)
            }
            Work::Demo => demo::train(workspace, signals, ready, "dev", Some(DEMO_EPOCHS)),
        }
    }
}

/// Runs the tests and returns cargo's exit code.
pub fn test(workspace: &Workspace, signals: &Signals, args: &TestArgs) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let mut cargo = ready.cargo(workspace);
    cargo.args(["test", "--workspace"]).args(&args.args);
    Ok(signals.run(side_by_side(&mut cargo))?.code)
}

/// Most tests wait for processes: twice as many of them as there are cores run at once, where the user has not said otherwise.
fn side_by_side(cargo: &mut Command) -> &mut Command {
    const THREADS: &str = "RUST_TEST_THREADS";
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
    for (index, step) in STEPS.iter().enumerate() {
        eprintln!(
            "check {}/{}: {}: {}",
            index + 1,
            STEPS.len(),
            step.what,
            step.shown()
        );
        let code = step.run(workspace, signals, &ready)?;
        signals.check()?;
        if code != 0 {
            eprintln!("check failed at {}; repeat it with: {}", step.what, step.shown());
            return Ok(code);
        }
    }
    // The last words are the demo's.
    Ok(0)
}
