//! A trainer as a program: the command line, the log, the exit code and the error file. dtrain's own and a user's are the same
//! but for the task.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;
use dtrain_common::run_dir::Resume;
use tracing_subscriber::EnvFilter;

use super::error::WorkerError;
use super::request::Request;
use super::tasks::BuildTask;
use super::worker::{run, run_task};

const AFTER_HELP: &str = "\
Exit codes: 0 success, 2 usage, recipe or data error, 3 out of memory, 5 the ranks did not find each other,
75 stopped on request with a checkpoint written, 1 any other failure.

Example: dtrain launch --nproc 2 --set train.epochs=2 -- PROGRAM recipe.toml --run-dir runs/first";

/// One rank of a training of the task `T`. With it the `main` of a trainer of one's own is
///
/// ```text
/// fn main() -> std::process::ExitCode {
///     dtrain_worker::program::<MyTask>()
/// }
/// ```
///
/// Its command line, its environment and its exit codes are those of `dtrain-worker`, so `dtrain launch` starts it: as
/// `dtrain launch -- PROGRAM RECIPE`, or with DTRAIN_WORKER naming it. Call it first and once, from `main`, before other threads
/// use libtorch.
pub fn program<T: BuildTask + 'static>() -> ExitCode {
    start(run_task::<T>)
}

/// As [`program`], for the task that the recipe names: dtrain's own trainer.
pub fn program_by_recipe() -> ExitCode {
    start(run)
}

/// Train a recipe as one rank of a run.
///
/// Started by `dtrain launch`, by torchrun (--no-python), or by hand: without RANK and WORLD_SIZE in the environment it
/// trains alone, as rank 0 of 1.
#[derive(Debug, Parser)]
#[command(name = "dtrain-worker", version, after_help = AFTER_HELP)]
struct Args {
    /// A recipe file, or the name of an embedded recipe.
    recipe: String,
    /// Where the run writes [default: runs/<recipe>-<time>].
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Override a value of the recipe; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    overrides: Vec<String>,
    /// Where to begin: auto (the newest checkpoint in the run directory, if any), never, or a checkpoint's folder.
    #[arg(long, value_name = "auto|never|PATH", default_value = "auto")]
    resume: String,
    /// The launcher has prepared the run directory.
    #[arg(long, hide = true)]
    prepared: bool,
    /// What is asked for instead of a training, as `dtrain plan` and `dtrain profile` put it.
    #[arg(long, hide = true, value_name = "JSON")]
    job: Option<String>,
}

fn start(train: impl FnOnce(&Request, &WorkerEnv) -> Result<ExitStatus, WorkerError>) -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // Colours are for people: neither for pipes nor for logs.
        .with_ansi(std::io::stderr().is_terminal())
        .without_time()
        .with_target(false)
        .init();
    dtrain_torch_shim::quiet_logs();
    if let Err(error) = dtrain_torch_shim::stacks::print_on_abort() {
        tracing::debug!("a stack will not be printed on SIGABRT: {error}");
    }
    let request = Request {
        recipe: args.recipe,
        overrides: args.overrides,
        run_dir: args.run_dir,
        resume: match args.resume.parse::<Resume>() {
            Ok(resume) => resume,
            Err(never) => match never {},
        },
        prepared: args.prepared,
        job: args.job,
    };
    let env = WorkerEnv::from_process();
    let error_file = env.as_ref().ok().and_then(|env| env.error_file.clone());
    let is_first = env.as_ref().is_ok_and(|env| env.rank == 0);
    let trained = env
        .map_err(WorkerError::from)
        .and_then(|env| train(&request, &env));
    let error = match trained {
        Ok(status) => return status.into(),
        Err(error) => error,
    };
    let reported = error_file.is_some_and(|path| write_error_file(&path, &error));
    // The launcher's report has it, once and for all ranks.
    let said_by_launcher = reported && request.prepared;
    let said_by_another = !is_first && error.is_said_by_rank_0();
    if !said_by_launcher && !said_by_another {
        eprintln!("error: {}", plainly(&error));
    }
    error.exit_status().into()
}

/// The error without the C++ stack that libtorch appends.
fn plainly(error: &WorkerError) -> String {
    let text = error.to_string();
    let said = text.split("\nException raised from").next().unwrap_or(&text);
    said.trim_end().to_owned()
}

/// torchrun's error file, which a launcher reads back into its report. Whether it is written.
fn write_error_file(path: &Path, error: &WorkerError) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let json = serde_json::json!({
        "message": {
            "message": plainly(error),
            "extraInfo": { "py_callstack": "", "timestamp": now.to_string() },
        }
    });
    write_atomic(path, json.to_string().as_bytes())
        .inspect_err(|error| tracing::debug!("{}: {error}", path.display()))
        .is_ok()
}
