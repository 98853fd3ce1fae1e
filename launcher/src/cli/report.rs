//! The flags of `dtrain report`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    /// Run directories; several are compared.
    #[arg(value_name = "RUN", required = true)]
    pub(crate) runs: Vec<PathBuf>,

    /// The HTML file [default: RUN/report.html].
    #[arg(short, long, value_name = "FILE", conflicts_with = "live")]
    pub(crate) output: Option<PathBuf>,

    /// Serve the page on this machine's loopback during the runs.
    #[arg(long)]
    pub(crate) live: bool,

    /// Port of the served page; 0: any free port.
    #[arg(long, value_name = "N", default_value_t = 8470, requires = "live")]
    pub(crate) port: u16,
}

impl ReportArgs {
    /// Returns whether a path of the command is relative.
    pub(super) fn is_relative(&self) -> bool {
        self.runs.iter().chain(&self.output).any(|path| path.is_relative())
    }
}
