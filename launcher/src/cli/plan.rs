//! The flags of `dtrain data`, `dtrain plan`, `dtrain profile` and `dtrain gpu suggest-batch-size`.

use super::complete::{gpus, recipes};
use super::launch::MOST_WORKERS;
use crate::gpu_names::parse_list;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PathBufValueParser, TypedValueParser};
use dtrain_common::lr_range::LrRange;
use dtrain_common::question::Gpu;
use std::path::PathBuf;
use std::str::FromStr;

#[derive(Debug, Args)]
pub(crate) struct RecipeArgs {
    /// Path of a recipe, or name of a built-in one.
    #[arg(value_name = "RECIPE", value_parser = NonEmptyStringValueParser::new(), add = recipes())]
    pub(crate) recipe: String,

    /// Set one key of the recipe, such as `train.epochs=3`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DataArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Draw samples as the network gets them into this PNG file.
    #[arg(long, value_name = "FILE.png", value_parser = png())]
    pub(crate) show: Option<PathBuf>,

    /// Number of training samples to draw.
    #[arg(long, value_name = "N", default_value_t = 24, requires = "show", allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(1..=400))]
    pub(crate) samples: u64,

    /// Epoch of the training samples to draw, from 0.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "show", allow_negative_numbers = true)]
    pub(crate) epoch: u64,

    /// Print one line of JSON instead of the text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A file whose name ends in `.png`.
fn png() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| match path.extension() {
        Some(ending) if ending.eq_ignore_ascii_case("png") => Ok(path),
        _ => Err("the name of a picture ends in .png"),
    })
}

#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// GPUs to plan for: names or memory sizes, such as `t4,16GiB`.
    ///
    /// Default: visible GPUs, else 8, 12, 16, 24, 40, 48, 80 GiB.
    #[arg(long, value_name = "LIST", add = gpus())]
    pub(crate) gpu: Option<GpuList>,

    /// Number of ranks, one per GPU [default: visible GPUs, or 1].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: Option<u64>,

    /// Stage to plan, or `all`.
    #[arg(long, value_name = "NAME|all", default_value = "all", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stage: String,

    /// Measure steps at two micro-batches on this machine; calculate the rest.
    #[arg(long)]
    pub(crate) measured: bool,

    /// Print one line of JSON per stage instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// Stage to measure, or `all`.
    #[arg(long, value_name = "NAME|all", default_value = "all", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) stage: String,

    /// Also find the largest micro-batch that fits, by trial.
    #[arg(long)]
    pub(crate) find_optimal: bool,

    /// Number of ranks of the run; dtrain measures one.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: u64,

    /// Train at rising rates, MIN:MAX or MIN:MAX:STEPS, and suggest one.
    #[arg(long, value_name = "RANGE", conflicts_with_all = ["stage", "find_optimal"], allow_hyphen_values = true)]
    pub(crate) lr_range: Option<LrRange>,

    /// Print one line of JSON instead of the tables.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct SuggestArgs {
    #[command(flatten)]
    pub(crate) recipe: RecipeArgs,

    /// GPUs, as for `dtrain plan` [default: visible GPUs].
    #[arg(long, value_name = "LIST", add = gpus())]
    pub(crate) gpu: Option<GpuList>,

    /// Number of ranks, one per GPU.
    #[arg(long, value_name = "N", default_value_t = 1, allow_negative_numbers = true, value_parser = ranks())]
    pub(crate) nproc: u64,

    /// Print the first stage's JSON of `dtrain plan`, without advice.
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
