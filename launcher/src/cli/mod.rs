//! The command line.

/// A text that stands behind the flags in a command's help, of the files in `help/`. No line of them is longer than 90 columns,
/// since a wrapped line loses its indentation.
macro_rules! help {
    ($($file:literal),+) => { concat!($(include_str!(concat!("help/", $file, ".txt"))),+) };
}

mod ckpt;
mod contract;
mod eval;
mod gpu;
mod gpus;
mod launch;
mod limits;
mod output;
mod parse;
mod plan;

pub(crate) use ckpt::{CkptCommand, Dtype, ExportArgs, LsArgs, PruneArgs, ShowArgs, VerifyArgs, Weights};
pub(crate) use contract::{Binding, ContractArgs};
pub(crate) use eval::EvalArgs;
pub(crate) use gpu::{GpuCommand, InfoArgs, KillArgs, MonitorArgs};
pub(crate) use gpus::{GpuArgs, GpuIds};
pub(crate) use launch::{Form, LaunchArgs, Nproc, Target};
pub(crate) use limits::{Limit, LimitArgs};
pub(crate) use output::{Choice, OutputArgs, Place, PrefixTemplate};
pub(crate) use parse::read_command;
pub(crate) use plan::{PlanArgs, ProfileArgs, RecipeArgs, SuggestArgs};

use clap::{Parser, Subcommand};

/// Train on all GPUs of this machine, or start any program on them.
#[derive(Debug, Parser)]
#[command(name = "dtrain", version, arg_required_else_help = true, after_help = help!("launch-examples"))]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start one worker process per GPU: a training recipe, a Python script, or any program.
    #[command(override_usage = USAGE, after_help = help!("launch-examples"), after_long_help = help!("launch-examples", "launch"), infer_long_args = true)]
    Launch(Box<LaunchArgs>),
    /// Say before the run what fits: micro-batch, accumulation, precision and recompute for each GPU.
    #[command(after_help = help!("plan-examples"), after_long_help = help!("plan-examples", "plan"))]
    Plan(PlanArgs),
    /// Measure real steps, and find the largest micro-batch that fits.
    #[command(after_help = help!("profile"))]
    Profile(ProfileArgs),
    /// Evaluate a checkpoint on the whole test set.
    #[command(after_help = help!("eval"))]
    Eval(Box<EvalArgs>),
    /// The checkpoints of a run: list, show, check, remove and export them.
    #[command(subcommand, after_help = help!("ckpt"))]
    Ckpt(CkptCommand),
    /// The GPUs of this machine: what they do, what fits on them, and ending what holds them.
    #[command(subcommand, after_help = help!("gpu"))]
    Gpu(GpuCommand),
}

const USAGE: &str = "\
dtrain launch [FLAGS] RECIPE [FLAGS]
       dtrain launch [FLAGS] SCRIPT.py [ARGS]...
       dtrain launch [FLAGS] -m MODULE [ARGS]...
       dtrain launch [FLAGS] -- PROGRAM [ARGS]...";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::ffi::OsString;
    use std::time::Duration;

    fn parse(line: &[&str]) -> Result<LaunchArgs, clap::Error> {
        let words = ["dtrain", "launch"].iter().chain(line);
        parse::launch(words.map(OsString::from).collect(), false)
    }

    #[test]
    fn a_recipe_takes_flags_before_and_after_it() {
        let args = parse(&[
            "--nproc", "2", "a.toml", "--set", "x=1", "--set", "y=2", "--resume", "never",
        ])
        .unwrap();
        assert_eq!(args.nproc, Nproc::Count(2));
        assert_eq!(args.set, ["x=1", "y=2"]);
        assert_eq!(args.resume.as_deref(), Some("never"));
        assert_eq!(args.shutdown_timeout(), Duration::from_secs(30));
    }

    #[test]
    fn torchruns_names_for_the_number_of_workers_are_known() {
        for flag in ["--nproc", "--nproc-per-node", "--nproc_per_node"] {
            assert_eq!(parse(&[flag, "3", "r"]).unwrap().nproc, Nproc::Count(3));
        }
        for (word, expected) in [("auto", Nproc::Auto), ("gpu", Nproc::Gpu), ("cpu", Nproc::Cpu)] {
            assert_eq!(parse(&["--nproc", word, "r"]).unwrap().nproc, expected);
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_usage_errors() {
        for line in [
            ["--nproc", "0"],
            ["--nproc", "-1"],
            ["--nproc", "x"],
            ["--nproc", "1.5"],
            ["--nproc", ""],
        ] {
            assert_eq!(parse(&line).unwrap_err().exit_code(), 2, "{line:?}");
        }
        for line in [
            ["--nproc", "1025"],
            ["--shutdown-timeout", "604801"],
            ["--shutdown-timeout", "-1"],
        ] {
            assert_eq!(parse(&line).unwrap_err().exit_code(), 2, "{line:?}");
        }
        assert_eq!(
            parse(&["--shutdown-timeout", "0", "r"])
                .unwrap()
                .shutdown_timeout(),
            Duration::ZERO
        );
    }

    #[test]
    fn help_lines_fit_a_common_terminal() {
        let longest = help!("launch-examples", "launch")
            .lines()
            .map(|line| line.chars().count())
            .max();
        assert!(longest <= Some(90), "{longest:?}");
    }
}
