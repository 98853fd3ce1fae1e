//! The command line of a worker.

use std::path::PathBuf;

use clap::Parser;
use dtrain_common::run_dir::Resume;

const AFTER_HELP: &str = "\
Exit codes: 0 success, 2 usage, recipe or data error, 3 out of memory, 5 the ranks did not find each other,
75 stopped on request with a checkpoint written, 1 any other failure.

Example: dtrain launch --nproc 2 --set train.epochs=2 -- PROGRAM recipe.toml --run-dir runs/first";

/// Train a recipe as one rank of a run.
///
/// Started by `dtrain launch`, by torchrun (--no-python), or by hand. Without RANK and WORLD_SIZE, it trains alone.
#[derive(Debug, Clone, Parser)]
#[command(name = "dtrain-worker", version, long_version = long_version(), after_help = AFTER_HELP)]
pub struct Request {
    /// A recipe file, or the name of an embedded recipe.
    pub recipe: String,
    /// Run directory [default: runs/RECIPE-DATE-TIME]
    #[arg(long, value_name = "DIR")]
    pub run_dir: Option<PathBuf>,
    /// Override a value of the recipe; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub overrides: Vec<String>,
    /// Checkpoint to resume: auto (newest of the run), never, or a folder.
    #[arg(long, value_name = "auto|never|PATH", default_value = "auto")]
    pub resume: Resume,
    /// The launcher has prepared and locked the run directory.
    #[arg(long, hide = true)]
    pub prepared: bool,
    /// Question to answer instead of training, as JSON: `dtrain_common::question::Question`.
    #[arg(long, hide = true, value_name = "JSON")]
    pub job: Option<String>,
}

impl Request {
    /// Returns whether `dtrain` has started this worker, and shows its error.
    pub fn is_of_launcher(&self) -> bool {
        self.prepared || self.job.is_some()
    }
}

/// Returns the text of `--version`, whose second line `dtrain doctor` reads: `libtorch VERSION in FOLDER`.
fn long_version() -> String {
    let folder = dtrain_torch_shim::cuda::library_folder();
    let folder = folder.map_or_else(|error| error.to_string(), |folder| folder.display().to_string());
    let features = if dtrain_collectives::has_mpi() { "mpi" } else { "none" };
    format!(
        "{}\nlibtorch {} in {folder}\nfeatures: {features}",
        env!("CARGO_PKG_VERSION"),
        dtrain_torch_shim::libtorch_version()
    )
}
