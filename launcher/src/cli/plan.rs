//! The flags of `dtrain plan`, `dtrain profile` and `dtrain gpu suggest-batch-size`.

use super::launch::MOST_WORKERS;
use crate::gpus::names::parse_list;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dtrain_common::job::Gpu;
use std::str::FromStr;

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// The path of a recipe, or the name of a built-in one.
    #[arg(value_name = "RECIPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) recipe: String,

    /// Change a setting of the recipe, such as `train.effective_batch=64`; may be repeated, the last one wins.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// The GPUs to plan for: names or sizes of memory, such as `16GiB,t4,a100-40gb`.
    ///
    /// Without this flag: the visible GPUs of this machine, or where there is none 8, 12, 16, 24, 40, 48 and 80 GiB.
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<GpuList>,

    /// Number of ranks, each on a GPU of its own [default: the visible GPUs if --gpu is not given, else 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: Option<u64>,

    /// The stage to plan, or `all` [default: the first].
    #[arg(long, value_name = "NAME|all", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stage: Option<String>,

    /// Run steps at two micro-batches on this machine, and calculate from those.
    ///
    /// Without this flag a step is run on tensors without storage, which needs neither a GPU nor memory.
    #[arg(long)]
    pub(crate) measured: bool,

    /// One object of JSON, in a line, for each stage instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// The stage to measure, or `all`.
    #[arg(long, value_name = "NAME|all", default_value = "all", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stage: String,

    /// Also find the largest micro-batch that fits with a margin, by trying.
    #[arg(long)]
    pub(crate) find_optimal: bool,

    /// Number of ranks of the run; one of them is measured.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: u64,

    /// One object of JSON, in a line, instead of the tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// The GPUs, as for `dtrain plan` [default: the visible ones of this machine].
    #[arg(long, value_name = "LIST")]
    pub(crate) gpu: Option<GpuList>,

    /// Number of ranks, each on a GPU of its own.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: u64,

    /// The same object of JSON as `dtrain plan --json`, without advice.
    #[arg(long)]
    pub(crate) json: bool,
}

fn ranks() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=MOST_WORKERS as u64)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GpuList(pub(crate) Vec<Gpu>);

impl FromStr for GpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse_list(text).map(Self)
    }
}
