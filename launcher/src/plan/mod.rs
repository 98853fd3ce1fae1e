//! Plans a launch: every check that is possible before the start.

mod devices;
pub(crate) mod gpu_check;
mod kinds;
mod limit;
mod numa;
mod overfit;
mod placement;
mod program;
mod routing;
mod size;
mod training;

pub(crate) use devices::Devices;
pub(crate) use kinds::{LaunchPlan, Seat};
#[cfg(test)]
pub(crate) use routing::Home;
pub(crate) use routing::{Route, Routing, Sinks};
pub(crate) use size::cores;

use crate::cli::{Form, LaunchArgs};
use anyhow::{Context, bail};
use dtrain_agent::clock::StartTime;

const NEITHER: &str = "nothing to launch: give a recipe (`dtrain launch RECIPE`), a Python script (`dtrain launch \
                       SCRIPT.py ARGS`) or a program after two dashes (`dtrain launch -- PROGRAM ARGS`); `dtrain \
                       launch --help` has examples";

/// Checks the command, and last prepares a recipe's run directory. On an error no file was written.
pub(crate) fn check(args: &LaunchArgs, seat: Seat, start_time: StartTime) -> anyhow::Result<LaunchPlan> {
    let target = args.target()?.context(NEITHER)?;
    match target.form {
        Form::Recipe => match target.name.to_str() {
            Some(name) => training::plan(name, args, seat, start_time),
            None => bail!("the recipe's name `{}` is not valid UTF-8", target.name.display()),
        },
        Form::Script | Form::Module | Form::Program | Form::File => {
            program::plan(&target, args, seat, start_time)
        }
    }
}
