//! The flags of `dtrain trace`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// Run directory of a run with `log.trace`.
    #[arg(value_name = "RUN")]
    pub(crate) run: PathBuf,

    /// File to write [default: RUN/trace/trace.json.gz].
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
}
