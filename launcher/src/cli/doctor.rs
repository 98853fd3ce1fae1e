//! The flags of `dtrain doctor`.

use super::RendezvousArgs;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Folder of the run: check its file system [default: this folder].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// Check other machines from here, without a program there.
    #[arg(long, value_name = "HOST,...", value_delimiter = ',', num_args = 1, conflicts_with = "nnodes",
          value_parser = NonEmptyStringValueParser::new())]
    pub(crate) nodes: Vec<String>,

    /// TCP port to try at each of `--nodes` [default: 29400].
    #[arg(long, value_name = "PORT", requires = "nodes", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Option<u16>,

    /// Print the rows as one line of JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,

    /// Try to lock the file, as a second process.
    #[arg(long, hide = true)]
    pub(crate) try_lock: Option<PathBuf>,

    // Must follow all other flags: its heading applies to later ones.
    #[command(flatten)]
    pub(crate) rendezvous: RendezvousArgs,
}
