//! The `dtrain` command: starts data-parallel training, or any program, as one process per GPU.
//!
//! `cli` reads the command line, `launch` checks a launch and runs it by the rules of `dtrain_agent`. `ask`
//! lets the worker program plan and profile. `gpus`, `ckpt`, `runs` and `doctor` are the
//! commands about GPUs, checkpoints, runs and the machine. `report` makes pages about runs, `diff` compares two of them, and
//! `trace` joins timelines. `batch` writes batch scripts, and `requeue` decides for them. `import` runs Python to make a model
//! into a file. `new` writes recipes, and `man` the manual.
//! Architecture invariant: the launcher does not link libtorch. Of its workers it knows only the variables of
//! `dtrain_common::env` and the protocol of PyTorch's store.
#![deny(unsafe_code)]

mod batch;
mod changed_recipe;
mod ckpt;
mod cli;
mod colour;
mod connections;
mod diff;
mod doctor;
mod executable;
mod gpu_names;
mod gpus;
mod import;
mod job;
mod launch;
mod man;
mod new;
mod plan;
mod python;
mod questions;
mod report;
mod requeue;
mod runs;
mod screen;
mod stdout;
mod stop;
mod tasks;
mod times;
mod trace;
mod trainer;
mod tryout;

use anyhow::{Context, anyhow};
use cli::{Command, LaunchArgs};
use dtrain_agent::clock::StartTime;
use dtrain_agent::io::guardian::{self, GuardianInfo, Role};
use dtrain_agent::io::output::Message;
use dtrain_agent::io::process::{TerminalModes, descriptors, handlers};
use dtrain_common::exit::ExitStatus;
use dtrain_common::log_line::LogFormat;
use dtrain_pmi::PmiError;
use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::Arc;

fn main() -> ExitCode {
    let start_time = StartTime::now();
    cli::answer_shell();
    tryout::end_with_parent();
    let command = match cli::read_command(std::env::args_os().collect()) {
        Ok(command) => command,
        Err(error) => {
            // Also --help and --version.
            print_clap_error(&error);
            if error.kind() == clap::error::ErrorKind::DisplayVersion {
                print_trainer();
            }
            return if error.use_stderr() { ExitStatus::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    let format = command.log_format();
    if command.needs_current_folder()
        && std::env::current_dir().is_err_and(|error| error.kind() == ErrorKind::NotFound)
    {
        return print_error(&deleted_folder(std::env::var_os("PWD")), &[], format);
    }
    let done = match command {
        Command::Launch(args) if args.is_try => {
            job::complete_launch(*args).and_then(|args| tryout::run(&args))
        }
        Command::Launch(args) => job::complete_launch(*args).map(|args| launch(&Arc::new(args), start_time)),
        Command::Eval(args) => questions::eval(&args).map(|args| launch(&Arc::new(args), start_time)),
        Command::Predict(args) => questions::predict(&args).map(|args| launch(&Arc::new(args), start_time)),
        Command::Plan(args) => questions::plan(&args),
        Command::Data(args) => questions::data(&args),
        Command::Profile(args) => match args.lr_range {
            Some(range) => questions::lr_range(&args, range).map(|args| launch(&Arc::new(args), start_time)),
            None => questions::profile(&args),
        },
        Command::Import(args) => import::run(&args),
        Command::Batch(args) => batch::run(&args),
        Command::Requeue(args) => requeue::run(&args),
        Command::Ckpt(command) => questions::ckpt(&command),
        Command::Gpu(command) => gpus::run(&command),
        Command::Runs(args) => runs::run(&args),
        Command::Diff(args) => diff::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Schema { output } => trainer::schema(output.as_deref()),
        Command::New(args) => new::run(&args),
        Command::Completions { shell } => completions(shell),
        Command::Man { output } => man::run(&output),
        Command::Doctor(args) => job::complete_doctor(*args).and_then(|args| doctor::run(&args)),
    };
    done.unwrap_or_else(|error| print_error(&error, &[], format))
}

/// Prints the script of a shell.
fn completions(shell: cli::Shell) -> anyhow::Result<ExitCode> {
    let script = shell.script().context("cannot make the script")?;
    stdout::print(&String::from_utf8_lossy(&script))?;
    Ok(ExitStatus::Success.into())
}

/// Returns the error of a command that needs the current folder, which was deleted. `name`: the shell's name of it.
fn deleted_folder(name: Option<OsString>) -> anyhow::Error {
    let name = name.map_or_else(String::new, |name| format!(" {}", name.display()));
    anyhow!(
        "the current folder{name} was deleted; `cd` to an existing folder, also to this one if it was created again"
    )
}

fn launch(args: &Arc<LaunchArgs>, start_time: StartTime) -> ExitCode {
    let done = match guardian::role() {
        Role::Guardian => {
            let rendezvous = &args.contract.rendezvous;
            let (handled, format) = (args.contract.signals(), args.output.format());
            guardian::run_guardian(&handled, rendezvous.is_several(), format, |member| {
                launch::report_gone(rendezvous, member);
            })
        }
        Role::Launcher(guardian_info) => run(args, guardian_info, start_time),
        Role::Abandoned => return ExitStatus::WorkerFailed.into(),
    };
    done.unwrap_or_else(|error| print_error(&error, &args.from_environment, args.output.format()))
}

fn run(
    args: &Arc<LaunchArgs>,
    guardian_info: GuardianInfo,
    start_time: StartTime,
) -> anyhow::Result<ExitCode> {
    let inherited = descriptors::inherited();
    inherited.keep_to_this_process(&std::env::args_os().collect::<Vec<_>>());
    handlers::write_to_any_terminal().context("cannot change how signals are received")?;
    // The guardian does the same, unless it is killed.
    let modes = guardian_info.job.and_then(TerminalModes::note);
    let done = launch::run(args, guardian_info, start_time);
    modes.iter().for_each(TerminalModes::restore);
    done.map(ExitCode::from)
}

/// Prints the libtorch and the features of the trainer, if it can be started.
fn print_trainer() {
    // As for the version itself, a closed stream allows no message.
    let _ = match trainer::find_worker() {
        Ok(worker) => writeln!(std::io::stdout(), "{}", trainer::describe(&worker)),
        Err(error) => writeln!(std::io::stdout(), "no trainer: {error:#}"),
    };
}

/// Prints an error of the command line, or the help. If the stream is closed, no message is possible.
fn print_clap_error(error: &clap::Error) {
    match cli::asks_for_json(std::env::args_os()) && error.use_stderr() {
        true => Message::error(error.to_string().trim_end()).print(LogFormat::Json),
        false => drop(error.print()),
    }
}

/// Prints the error. `from_environment` are the variables that set flags.
fn print_error(error: &anyhow::Error, from_environment: &[String], format: LogFormat) -> ExitCode {
    let mut text = stdout::join_causes(error);
    if !from_environment.is_empty() {
        text = format!("{text} (set in the environment: {})", from_environment.join(", "));
    }
    Message::error(format!("dtrain: error: {text}")).print(format);
    match error.is::<launch::RendezvousFailed>() || error.is::<PmiError>() {
        true => ExitStatus::Rendezvous.into(),
        false => ExitStatus::Usage.into(),
    }
}
