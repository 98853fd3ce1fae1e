//! The flags of `dtrain doctor`.

use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Folder of the run: check its file system [default: this folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Network interface [default: that of the default route].
    #[arg(long, value_name = "NAME")]
    pub(crate) rdzv_interface: Option<String>,

    /// Print the rows as one line of JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,

    /// Try to lock the file, as a second process.
    #[arg(long, hide = true)]
    pub(crate) try_lock: Option<PathBuf>,
}
