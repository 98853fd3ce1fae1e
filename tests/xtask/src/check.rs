//! `check`: all that must hold before a change goes in.

use anyhow::Result;

use crate::process::Signals;
use crate::setup::{self, Ready, SetArgs};
use crate::workspace::Workspace;

/// What `check` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
}

/// One step: what it looks at, the variables it is run with and cargo's arguments.
struct Step {
    what: &'static str,
    vars: &'static [(&'static str, &'static str)],
    args: &'static str,
}

const STEPS: [Step; 4] = [
    Step {
        what: "formatting",
        vars: &[],
        args: "fmt --all --check",
    },
    Step {
        what: "lints",
        vars: &[],
        args: "clippy --workspace --all-targets -- -D warnings",
    },
    Step {
        what: "documentation",
        vars: &[("RUSTDOCFLAGS", "-Dwarnings")],
        args: "doc --workspace --no-deps",
    },
    Step {
        what: "tests",
        vars: &[],
        args: "test --workspace",
    },
];

impl Step {
    /// The command, as one would type it.
    fn shown(&self) -> String {
        let vars: String = self
            .vars
            .iter()
            .map(|(name, value)| format!("{name}={value} "))
            .collect();
        format!("{vars}cargo {}", self.args)
    }

    fn run(&self, workspace: &Workspace, signals: &Signals, ready: &Ready) -> Result<u8> {
        let mut cargo = ready.cargo(workspace);
        cargo.args(self.args.split(' ')).envs(self.vars.iter().copied());
        Ok(signals.run(&mut cargo)?.code)
    }
}

/// Runs the steps until one fails, and returns its exit code.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
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
    // The last words are those of `cargo test`, with its counts.
    Ok(0)
}
