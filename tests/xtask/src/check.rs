//! `check`: all that must hold before a change goes in.

use anyhow::Result;

use crate::process::Signals;
use crate::setup::{self, Ready, SetArgs};
use crate::workspace::Workspace;
use crate::{demo, pytorch};

/// What `check` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
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
                Ok(signals.run(&mut cargo)?.code)
            }
            Work::Demo => demo::train(workspace, signals, ready, "dev", Some(DEMO_EPOCHS)),
        }
    }
}

/// Runs the steps until one fails, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
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
