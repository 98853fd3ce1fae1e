//! `dtrain eval`: its flags, and the launch that it starts.

use super::GpuArgs;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, PossibleValuesParser, TypedValueParser};
use dtrain_common::question::EvalWeights;
use std::path::PathBuf;

/// The flags of `dtrain eval`.
#[derive(Debug, Args)]
pub(crate) struct EvalArgs {
    /// Run directory, `RUN_DIR@best`, `RUN_DIR@STEP` or checkpoint; or a recipe with --checkpoint.
    #[arg(value_name = "RUN|CHECKPOINT|RECIPE", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) recipe: String,

    /// Set one key of the recipe, such as `data.test=holdout`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Checkpoint, or run directory for its newest whole checkpoint.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,

    #[command(flatten)]
    pub(super) workers: WorkerArgs,

    /// Print one line of JSON instead of the table.
    #[arg(long)]
    pub(super) json: bool,
}

/// Flags of the workers that evaluate or predict.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// Trained weights, or their moving average; `auto` prefers the average.
    #[arg(long, value_name = "auto|raw|average", default_value = "auto", hide_possible_values = true,
          value_parser = weights())]
    pub(super) weights: EvalWeights,

    /// Batch size of each worker [default: as in training].
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) batch: Option<u32>,

    /// Number of workers, as for `dtrain launch`.
    #[arg(long, value_name = "N|auto|gpu|cpu", default_value = "auto", allow_negative_numbers = true)]
    pub(super) nproc: String,

    #[command(flatten)]
    pub(super) gpus: GpuArgs,
}

fn weights() -> impl TypedValueParser<Value = EvalWeights> {
    let words = PossibleValuesParser::new(["auto", "raw", "average"]);
    words.try_map(|word| serde_json::from_value(word.into()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::command::Cli;
    use super::super::{Command, Form, Nproc};
    use super::*;
    use clap::Parser;
    use dtrain_common::question::{EvalQuestion, Question};
    use std::path::Path;

    fn parsed(line: &[&str]) -> EvalArgs {
        let words = ["dtrain", "eval"].iter().chain(line);
        match Cli::try_parse_from(words).unwrap().command {
            Command::Eval(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_evaluation_is_a_launch_of_the_worker() {
        let args =
            parsed(&["r.toml", "--checkpoint", "runs/a", "--nproc", "2", "--set", "data.test=x", "--json"]);
        let launch = args.launch(Path::new("/bin/dtrain-worker"), "r.toml", Path::new("runs/a")).unwrap();
        assert_eq!(launch.nproc, Some(Nproc::Count(2)));
        let target = launch.target().unwrap().unwrap();
        assert_eq!((target.form, target.name), (Form::Program, "/bin/dtrain-worker".as_ref()));
        assert_eq!(target.args[..4], ["r.toml", "--set", "data.test=x", "--job"]);
        let job: Question = serde_json::from_str(target.args[4].to_str().unwrap()).unwrap();
        let wanted =
            EvalQuestion { checkpoint: "runs/a".into(), weights: EvalWeights::Auto, batch: None, json: true };
        assert_eq!(job, Question::Eval(wanted));
    }

    #[test]
    fn wrong_numbers_are_refused() {
        let args = parsed(&["r.toml", "--checkpoint", "a", "--nproc", "0"]);
        assert!(args.launch(Path::new("w"), "r.toml", Path::new("a")).is_err());
        assert!(Cli::try_parse_from(["dtrain", "eval", "r", "--checkpoint", "a", "--batch", "0"]).is_err());
        assert_eq!(parsed(&["runs/a@112"]).checkpoint, None);
    }
}
