//! The command line.

/// Joins texts after the flags in a command's help: at most 90 columns, since wrapping loses indentation.
macro_rules! help {
    ($($file:literal),+) => { concat!($(include_str!(concat!("help/", $file, ".txt"))),+) };
}

mod batch;
mod ckpt;
mod command;
mod complete;
mod contract;
mod diff;
mod doctor;
mod eval;
mod gpu;
mod gpus;
mod import;
mod launch;
mod limits;
mod new;
mod numbers;
mod output;
mod parse;
mod passed_on;
mod plan;
mod predict;
mod rendezvous;
mod report;
mod runs;
mod trace;

pub(crate) use batch::{BatchArgs, RequeueArgs};
pub(crate) use ckpt::{
    AverageArgs, CkptCommand, Dtype, ExportArgs, LsArgs, Names, PruneArgs, ShowArgs, VerifyArgs, Weights,
};
pub(crate) use command::Command;
pub(crate) use complete::Shell;
pub(crate) use contract::{Binding, ContractArgs};
pub(crate) use diff::DiffArgs;
pub(crate) use doctor::DoctorArgs;
pub(crate) use eval::EvalArgs;
pub(crate) use gpu::{GpuCommand, InfoArgs, KillArgs, MonitorArgs};
pub(crate) use gpus::{GpuArgs, GpuIds};
pub(crate) use import::{BuilderArg, ImportArgs};
pub(crate) use launch::{Form, LaunchArgs, Nproc, Target, shell_word};
pub(crate) use limits::{Limit, LimitArgs};
pub(crate) use new::NewArgs;
pub(crate) use output::{Choice, OutputArgs, PrefixTemplate, PrefixValues};
pub(crate) use parse::{OWN_OF_A_TRY, answer_shell, asks_for_json, read_command, variable_of, whole_command};
pub(crate) use passed_on::PassedOn;
pub(crate) use plan::{DataArgs, PlanArgs, ProfileArgs, RecipeArgs, SuggestArgs};
pub(crate) use predict::PredictArgs;
pub(crate) use rendezvous::{C10D_PORT, Rendezvous, RendezvousArgs};
pub(crate) use report::ReportArgs;
pub(crate) use runs::{RunState, RunsArgs, RunsCommand, WatchArgs, WhichRuns};
pub(crate) use trace::TraceArgs;
