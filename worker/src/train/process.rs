//! A trainer as a program: command line, log, exit code and error file. dtrain's trainer and a user's differ
//! only in the task.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Parser;
use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic;

use crate::metrics::lines;
use crate::rank::{End, Start};
use crate::request::Request;
use crate::setup::error::WorkerError;
use crate::tasks::BuildTask;
use crate::train::{run, run_task};

/// How long a rank outlives another rank that has the cause of its error.
const LINGER: Duration = Duration::from_millis(500);

/// Runs one rank of a training of the task `T`. The `main` of a custom trainer is
///
/// ```text
/// fn main() -> std::process::ExitCode {
///     dtrain_worker::program::<MyTask>()
/// }
/// ```
///
/// Command line, environment and exit codes are those of `dtrain-worker`. `dtrain launch` starts the program
/// if it is called as `dtrain launch -- PROGRAM RECIPE`, or if DTRAIN_WORKER names the program. Call this
/// function once and first, in `main`, before other threads use libtorch.
pub fn program<T: BuildTask + 'static>() -> ExitCode {
    start(run_task::<T>).into()
}

/// Works like [`program`] for the task that the recipe names. The caller ends the process, with its exit handlers, such as MPI's.
pub fn program_by_recipe() -> ExitCode {
    start(run).into()
}

/// Works like [`program_by_recipe`], and ends the process: dtrain's own trainer.
pub fn main_by_recipe() -> ! {
    dtrain_torch_shim::end_process(start(run))
}

/// Runs one rank and returns the exit code.
fn start(train: impl FnOnce(&Request, &WorkerEnv) -> Result<ExitStatus, WorkerError>) -> u8 {
    let request = Request::parse();
    lines::start();
    dtrain_torch_shim::quiet_logs();
    if let Err(error) = dtrain_torch_shim::stacks::print_on_abort() {
        tracing::debug!("cannot print a stack on SIGABRT: {error}");
    }
    let begun = match Start::of_process(request.job.is_some()) {
        Ok(begun) => begun,
        Err(error) => return report(&error.into(), None, &request),
    };
    let env = begun.env.clone();
    lines::set_rank(env.rank);
    let _ = LAST_WORDS.set((env.error_file.clone(), request.is_of_launcher()));
    dtrain_torch_shim::on_lost_exception(report_lost);
    let trained = begun.prepare().map_err(WorkerError::Signals).and_then(|()| train(&request, &env));
    let (end, code) = match trained {
        Ok(status) => (End::AsPlanned, status.code()),
        Err(error) => (End::Failed, report(&error, Some(&env), &request)),
    };
    begun.end(end);
    code
}

/// Reports the error of the rank of `env`, which is `None` if it is not known, and returns the exit code.
fn report(error: &WorkerError, env: Option<&WorkerEnv>, request: &Request) -> u8 {
    let error_file = env.and_then(|env| env.error_file.as_deref());
    let is_first = env.is_some_and(|env| env.rank == 0);
    if error.is_of_another_rank() {
        // That rank ends first, so that the launcher blames the rank that knows the cause.
        std::thread::sleep(LINGER);
    }
    let message = without_advice(&error.to_string());
    let reported_by_launcher = is_reported_by_launcher(&message, error_file, request.is_of_launcher());
    let reported_by_rank_0 = !is_first && error.is_reported_by_rank_0();
    if !reported_by_launcher && !reported_by_rank_0 {
        lines::error(&message);
    }
    error.exit_status().code()
}

/// The error file, and whether the launcher shows its message: for an exception that nobody can catch.
static LAST_WORDS: OnceLock<(Option<PathBuf>, bool)> = OnceLock::new();

fn report_lost(message: &str) {
    let message = without_advice(message);
    let known = LAST_WORDS.get().map(|(file, is_shown)| (file.as_deref(), *is_shown));
    let (error_file, is_shown) = known.unwrap_or_default();
    if !is_reported_by_launcher(&message, error_file, is_shown) {
        lines::error(&message);
    }
}

/// Writes the error file, if any. Returns whether the launcher's report shows the error once for all ranks.
fn is_reported_by_launcher(message: &str, error_file: Option<&Path>, is_shown: bool) -> bool {
    error_file.is_some_and(|path| write_error_file(path, message)) && is_shown
}

/// Removes what libtorch appends to each of its messages: the C++ stack, and the advice for developers of kernels.
fn without_advice(text: &str) -> String {
    const ADVICE: [&str; 4] = [
        "Search for `cuda",
        "CUDA kernel errors might be asynchronously reported",
        "For debugging consider passing CUDA_LAUNCH_BLOCKING",
        "Compile with `TORCH_USE_CUDA_DSA`",
    ];
    let message = text.split("\nException raised from").next().unwrap_or(text);
    let lines = message.lines().filter(|line| !ADVICE.iter().any(|advice| line.starts_with(advice)));
    lines.collect::<Vec<_>>().join("\n").trim_end().to_owned()
}

/// Writes torchrun's error file, which the launcher reads for its report. Returns whether it was written.
fn write_error_file(path: &Path, message: &str) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let json = serde_json::json!({
        "message": {
            "message": message,
            "extraInfo": { "py_callstack": "", "timestamp": now.to_string() },
        }
    });
    write_atomic(path, json.to_string().as_bytes())
        .inspect_err(|error| tracing::debug!("{}: {error}", path.display()))
        .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_ends_where_advice_for_developers_begins() {
        let text = "at step 3: CUDA error: an illegal memory access was encountered\nSearch for `cudaErrorIllegalAddress' in \
                    https://docs.nvidia.com/ for more information.\nCUDA kernel errors might be asynchronously reported at some other \
                    API call, so the stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\
                    Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n\nException raised from f at a.cu:1";
        assert_eq!(without_advice(text), "at step 3: CUDA error: an illegal memory access was encountered");
        assert_eq!(without_advice("two\nlines"), "two\nlines");
    }
}
