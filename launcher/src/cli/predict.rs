//! `dtrain predict`: its flags, and the launch that it starts.

use super::eval::WorkerArgs;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{ArgGroup, Args};
use dtrain_common::question::{Flips, ImageForm, Input, PredictQuestion, Question, Wanted};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The tokens that a language model writes by default.
const TOKENS: u32 = 100;

/// The flags of `dtrain predict`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("inputs").args(["input", "prompt", "split"]).required(true))]
pub(crate) struct PredictArgs {
    /// Run directory, `RUN_DIR@best`, `RUN_DIR@STEP`, or checkpoint.
    #[arg(value_name = "RUN|CHECKPOINT")]
    pub(crate) model: PathBuf,

    /// Image, folder of images, table (.csv, .jsonl), or file of texts or prompts; `-` reads these from standard input.
    #[arg(value_name = "INPUT")]
    pub(crate) input: Option<PathBuf>,

    /// Prompt for a language model, or text for a model of texts, in place of INPUT.
    #[arg(long, value_name = "TEXT")]
    pub(super) prompt: Option<String>,

    /// Set of the run's data in place of INPUT: `train`, `val`, `test`, or another test set.
    #[arg(long, value_name = "SET")]
    pub(crate) split: Option<String>,

    /// Predict only the first N inputs.
    #[arg(long, value_name = "N", conflicts_with = "prompt", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) first: Option<u32>,

    /// Table (.csv, .jsonl) or folder to write.
    #[arg(short, long, value_name = "OUT")]
    pub(crate) out: PathBuf,

    /// Output of the network to write as it is; may be repeated.
    #[arg(long = "output", value_name = "NAME")]
    pub(super) outputs: Vec<String>,

    /// Images to write: `mask,overlay` or `png,tiff,colors` [default: all].
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = images())]
    pub(super) images: Vec<ImageForm>,

    /// Write only the N most probable classes.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) top: Option<u32>,

    /// Cut large images into windows that overlap by this part of a side.
    #[arg(long, value_name = "PART", num_args = 0..=1, require_equals = true, default_missing_value = "0.25",
          allow_negative_numbers = true, value_parser = part)]
    pub(super) windows: Option<f64>,

    /// Also predict mirrored images, and take the mean.
    #[arg(long, value_name = "horizontal|vertical|both", value_parser = flips(), default_value = "none", hide_default_value = true, hide_possible_values = true)]
    pub(super) flips: Flips,

    /// Tokens to write after a prompt.
    #[arg(long, value_name = "N", default_value_t = TOKENS, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) tokens: u32,

    /// Folder of class folders with labelled images, for a model of episodes.
    #[arg(long, value_name = "DIR")]
    pub(super) support: Option<PathBuf>,

    #[command(flatten)]
    pub(super) workers: WorkerArgs,

    /// Set one key of the checkpoint's recipe; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Print one line of JSON instead of the summary.
    #[arg(long)]
    pub(super) json: bool,
}

fn images() -> impl TypedValueParser<Value = ImageForm> {
    let words = PossibleValuesParser::new(["mask", "overlay", "png", "tiff", "colors"]);
    words.try_map(|word| serde_json::from_value(word.into()))
}

fn flips() -> impl TypedValueParser<Value = Flips> {
    let words = PossibleValuesParser::new(["none", "horizontal", "vertical", "both"]);
    words.try_map(|word| serde_json::from_value(word.into()))
}

fn part(text: &str) -> Result<f64, String> {
    let number = text.parse::<f64>().ok().filter(|part| (0.0..1.0).contains(part));
    number.ok_or_else(|| "expected a number from 0 to below 1, such as 0.25".to_owned())
}

impl PredictArgs {
    /// Returns the question about the checkpoint in this folder.
    pub(super) fn question(&self, checkpoint: &Path) -> Question {
        let input = match (&self.prompt, &self.split, &self.input) {
            (Some(prompt), ..) => Input::Prompt(prompt.clone()),
            (_, Some(set), _) => Input::Split(set.clone()),
            (_, _, Some(path)) if path.as_os_str() != "-" => Input::Path(path.clone()),
            _ => Input::Standard,
        };
        Question::Predict(PredictQuestion {
            checkpoint: checkpoint.to_owned(),
            weights: self.workers.weights,
            batch: self.workers.batch.map(|batch| batch as usize),
            input,
            first: self.first.map(|first| first as usize),
            out: self.out.clone(),
            wanted: Wanted {
                outputs: self.outputs.clone(),
                images: self.images.clone(),
                top: self.top.map(|top| top as usize),
                windows: self.windows,
                flips: self.flips,
                tokens: self.tokens as usize,
                support: self.support.clone(),
            },
            set: self.set.clone(),
            json: self.json,
        })
    }

    /// Returns further words of the launch: rank 0 reads the prompts.
    pub(super) fn more(&self) -> Vec<OsString> {
        match &self.input {
            Some(path) if path.as_os_str() == "-" => ["--stdin-rank", "0"].map(Into::into).to_vec(),
            _ => Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::Command;
    use super::super::command::Cli;
    use super::*;
    use clap::Parser;

    fn parsed(line: &[&str]) -> Result<PredictArgs, clap::Error> {
        let words = ["dtrain", "predict"].iter().chain(line);
        match Cli::try_parse_from(words)?.command {
            Command::Predict(args) => Ok(*args),
            other => panic!("{other:?}"),
        }
    }

    fn question(line: &[&str]) -> PredictQuestion {
        match parsed(line).unwrap().question(Path::new("c")) {
            Question::Predict(question) => question,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_prediction_is_a_question_to_the_worker() {
        let found = question(&[
            "runs/a@best",
            "images",
            "-o",
            "out.csv",
            "--windows",
            "--flips",
            "both",
            "--top",
            "3",
        ]);
        assert_eq!(found.input, Input::Path("images".into()));
        let wanted = Wanted {
            top: Some(3),
            windows: Some(0.25),
            flips: Flips::Both,
            tokens: 100,
            ..Wanted::default()
        };
        assert_eq!((found.wanted, found.out), (wanted, "out.csv".into()));
        assert_eq!(question(&["r", "--prompt", "To be", "-o", "o.csv"]).input, Input::Prompt("To be".into()));
        assert_eq!(question(&["r", "-", "-o", "o.csv"]).input, Input::Standard);
        assert_eq!(question(&["r", "--split", "val", "-o", "o"]).input, Input::Split("val".into()));
        let images = question(&["r", "i", "-o", "o", "--images", "mask,overlay", "--windows=0.5"]);
        assert_eq!(images.wanted.images, [ImageForm::Mask, ImageForm::Overlay]);
        assert_eq!(images.wanted.windows, Some(0.5));
    }

    #[test]
    fn wrong_words_are_refused() {
        for line in [
            &["r", "-o", "o.csv"][..],
            &["r", "i", "--prompt", "a", "-o", "o.csv"],
            &["r", "i", "--split", "test", "-o", "o.csv"],
            &["r", "i"],
            &["r", "i", "-o", "o", "--windows=1"],
            &["r", "i", "-o", "o", "--flips", "diagonal"],
            &["r", "i", "-o", "o", "--images", "gif"],
            &["r", "i", "-o", "o", "--top", "0"],
        ] {
            assert!(parsed(line).is_err(), "{line:?}");
        }
    }
}
