//! dtrain-worker-mpi: one rank of a training, as dtrain-worker, with the collectives of an MPI library.

use std::process::ExitCode;

fn main() -> ExitCode {
    dtrain_mpi::offer();
    dtrain_worker::program_by_recipe()
}
