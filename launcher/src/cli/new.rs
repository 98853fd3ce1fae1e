//! The flags of `dtrain new`.

use super::complete::tasks;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub(crate) struct NewArgs {
    /// Task: classify, segment, regress, lm or program.
    #[arg(value_name = "TASK", add = tasks(), required_unless_present_any = ["from", "like"])]
    pub(crate) task: Option<String>,

    /// Folder or file of the data [default: generated data].
    #[arg(value_name = "DATA")]
    pub(crate) data: Option<PathBuf>,

    /// Write the recipe of a run, with the settings that are not defaults.
    #[arg(long, value_name = "RUN_DIR", conflicts_with_all = ["task", "data", "like", "model", "layout"])]
    pub(crate) from: Option<PathBuf>,

    /// Import a pretrained model, and write the recipe that fine-tunes it.
    #[arg(long, value_name = "timm:NAME", conflicts_with = "model")]
    pub(crate) like: Option<String>,

    /// With --like: random weights instead of pretrained ones.
    #[arg(long, requires = "like")]
    pub(crate) scratch: bool,

    /// Network: a built-in one, or a file of `dtrain import`.
    #[arg(long, value_name = "NAME|FILE.pt2")]
    pub(crate) model: Option<String>,

    /// Layout of the data, if it has several.
    #[arg(long, value_name = "NAME")]
    pub(crate) layout: Option<String>,

    /// The recipe to write [default: TASK.toml].
    #[arg(short, long, value_name = "FILE.toml")]
    pub(crate) output: Option<PathBuf>,

    /// Also write the JSON Schema beside it, and name it in the first line.
    #[arg(long)]
    pub(crate) schema: bool,

    /// Overwrite the recipe.
    #[arg(long)]
    pub(crate) force: bool,
}
