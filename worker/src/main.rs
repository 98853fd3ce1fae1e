//! dtrain-worker: one rank of a training.

use std::process::ExitCode;

fn main() -> ExitCode {
    dtrain_worker::program_by_recipe()
}
