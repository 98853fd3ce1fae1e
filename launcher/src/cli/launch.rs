//! The flags of `dtrain launch`, and the meaning of its words.

use super::complete::programs;
use super::gpus::GpuArgs;
use super::{ContractArgs, LimitArgs, OutputArgs};
use crate::executable::{self, Named};
use crate::python;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use dtrain_agent::local::HangPolicy;
use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

/// More workers on one machine are probably a typing error.
pub(super) const MOST_WORKERS: usize = 1024;
/// Silence shorter than this number of usual steps is never a hang.
const USUAL_STEPS: u32 = 20;
/// The first steps of a training may take this number of times the least silence: an hour, if the user sets nothing.
const FIRST_STEPS: u32 = 12;
/// More restarts are probably a typing error.
const MOST_RESTARTS: i64 = 1_000_000;
/// The longest shutdown timeout: a week.
const LONGEST_TIMEOUT_S: u64 = 7 * 24 * 3600;

/// The flags of `dtrain launch`.
#[derive(Debug, Args)]
pub(crate) struct LaunchArgs {
    /// Number of workers [default: one per visible GPU, or 1].
    ///
    /// `auto`, `gpu`: one per visible GPU. `cpu`: one per CPU core.
    /// `auto` without a GPU: one per CPU core; for a recipe 1.
    #[arg(
        long,
        value_name = "N|auto|gpu|cpu",
        allow_negative_numbers = true,
        visible_alias = "nproc-per-node"
    )]
    pub(crate) nproc: Option<Nproc>,

    #[command(flatten)]
    pub(crate) gpus: GpuArgs,

    /// Folder of the run; for a recipe [default: runs/RECIPE-DATE-TIME].
    #[arg(long, value_name = "DIR")]
    pub(crate) run_dir: Option<PathBuf>,

    /// `auto`: newest checkpoint; `never`: new run; PATH: this checkpoint [default: auto].
    #[arg(long, value_name = "auto|never|PATH", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) resume: Option<String>,

    /// Set one key of the recipe, such as `train.epochs=3`; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Take two steps of everything: train, evaluate, resume, predict.
    #[arg(long = "try", conflicts_with = "overfit")]
    pub(crate) is_try: bool,

    /// Check that the model learns N fixed training samples by heart.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) overfit: Option<u32>,

    /// Restart all workers up to K times after a failure.
    #[arg(long, value_name = "K", default_value_t = 0, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u32).range(..=MOST_RESTARTS))]
    pub(crate) max_restarts: u32,

    /// Seconds without heartbeat that count as a hang; 0: never.
    ///
    /// At least 20 times the usual interval. Needs four heartbeats (DTRAIN_HEARTBEAT_FILE); before, a training has twelve times
    /// as long, and a program any time.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(..=LONGEST_TIMEOUT_S))]
    hang_timeout: u64,

    /// Seconds from the request to stop until workers are killed.
    #[arg(long, value_name = "SECONDS", default_value_t = 30, allow_negative_numbers = true,
          value_parser = clap::value_parser!(u64).range(..=LONGEST_TIMEOUT_S))]
    shutdown_timeout: u64,

    /// Shell command that gets result.json at the end; 30 s at most.
    ///
    /// On its standard input, once, also after a failure. Instead of the recipe's `log.on_end`.
    #[arg(long, value_name = "COMMAND", value_parser = NonEmptyStringValueParser::new())]
    pub(crate) on_end: Option<String>,

    /// Only this rank reads standard input; for programs.
    #[arg(long, value_name = "RANK", allow_negative_numbers = true)]
    pub(crate) stdin_rank: Option<usize>,

    #[command(flatten)]
    pub(crate) limits: LimitArgs,

    #[command(flatten)]
    pub(crate) output: OutputArgs,

    /// Recipe, Python script or program, with arguments.
    #[arg(value_name = "RECIPE|SCRIPT.py|PROGRAM", trailing_var_arg = true, add = programs())]
    pub(super) words: Vec<OsString>,

    // Must follow all other flags: its heading applies to later ones.
    #[command(flatten)]
    pub(crate) contract: ContractArgs,

    /// The recipe, when other words follow it.
    #[arg(skip)]
    pub(super) recipe: Option<OsString>,

    /// Whether the words stand after `--`.
    #[arg(skip)]
    pub(super) after_dashes: bool,

    /// The words before the target, without `--`.
    #[arg(skip)]
    pub(super) flags: Vec<OsString>,

    /// The flags of the command line that a try passes on to its launches.
    #[arg(skip)]
    pub(crate) given: Vec<OsString>,

    /// The environment variables that stand for flags of this launch.
    #[arg(skip)]
    pub(crate) from_environment: Vec<String>,

    /// Whether dtrain's workers answer a question, such as that of `dtrain eval`.
    #[arg(skip)]
    pub(crate) is_question: bool,
}

impl LaunchArgs {
    /// Returns the time between asking workers to stop and killing them.
    pub(crate) fn shutdown_timeout(&self) -> Duration {
        Duration::from_secs(self.shutdown_timeout)
    }

    /// Returns when workers count as hung; `None` for never. Those of a training beat as soon as it begins.
    pub(crate) fn hang_policy(&self, is_training: bool) -> Option<HangPolicy> {
        let least = Duration::from_secs(self.hang_timeout);
        let early = is_training.then(|| least.saturating_mul(FIRST_STEPS));
        (!least.is_zero()).then_some(HangPolicy { factor: USUAL_STEPS, least, early })
    }

    /// Returns the meaning of a first word of this name.
    pub(super) fn form(&self, name: &OsStr) -> Form {
        if self.contract.module {
            return Form::Module;
        }
        if self.contract.no_python || self.after_dashes {
            return Form::Program;
        }
        if python::runs(Path::new(name)) {
            return Form::Script;
        }
        match executable::named(name, std::env::var_os("PATH").as_deref()) {
            Some(Named::File) => Form::File,
            Some(Named::InPath) => Form::Program,
            None => Form::Recipe,
        }
    }

    /// Returns the command line with these words after the launcher's flags, for a shell. Without `--no-python` and `-m`, with
    /// which the words could not start.
    pub(crate) fn line<'a>(&'a self, words: impl IntoIterator<Item = &'a OsStr>) -> String {
        let mut line = vec!["dtrain".to_owned(), "launch".to_owned()];
        let left_out = ["--no-python", "--no_python", "-m", "--module"];
        let flags = self.flags.iter().filter(|flag| !left_out.iter().any(|word| *flag == *word));
        line.extend(flags.map(OsString::as_os_str).chain(words).map(shell_word));
        line.join(" ")
    }

    /// Returns the command line that continues a run of this recipe in `run_dir`.
    pub(crate) fn again(&self, recipe: &str, run_dir: &Path) -> String {
        let mut flags = self.flags.iter();
        let mut words = vec![OsStr::new("dtrain"), OsStr::new("launch")];
        // A run that has begun refuses `never`.
        let is_new = self.resume.as_deref() == Some("never");
        while let Some(flag) = flags.next() {
            match flag.to_str() {
                Some("--resume") if is_new => drop(flags.next()),
                Some("--resume=never") if is_new => {}
                _ => words.push(flag),
            }
        }
        words.push(OsStr::new(recipe));
        if self.run_dir.is_none() {
            words.extend([OsStr::new("--run-dir"), run_dir.as_os_str()]);
        }
        words.into_iter().map(shell_word).collect::<Vec<_>>().join(" ")
    }

    /// Returns the words after the target's name.
    pub(crate) fn arguments(&self) -> impl Iterator<Item = &OsStr> {
        self.words.iter().skip(usize::from(self.recipe.is_none())).map(OsString::as_os_str)
    }

    /// Returns whether a path of the launch is relative. A program with an absolute path may start in a deleted folder.
    pub(super) fn needs_current_folder(&self) -> bool {
        let folders = [&self.run_dir, &self.output.log_dir];
        let is_relative = |path: &Path| path.is_relative();
        let name = self.words.first().filter(|_| self.recipe.is_none());
        name.is_none_or(|name| self.contract.module || is_relative(Path::new(name)) || self.is_recipe(name))
            || folders.into_iter().flatten().any(|folder| is_relative(folder))
    }

    pub(super) fn is_recipe(&self, name: &OsStr) -> bool {
        self.form(name) == Form::Recipe
    }
}

/// Returns the word as a shell reads it.
pub(crate) fn shell_word(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    shlex::try_quote(&word).map_or_else(|_| word.to_string(), Cow::into_owned)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) form: Form,
    /// The recipe, script, module or program.
    pub(crate) name: &'a OsStr,
    /// Empty for a recipe.
    pub(crate) args: &'a [OsString],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Trained by dtrain's own worker.
    Recipe,
    /// A file for Python.
    Script,
    /// A module for `python -m`.
    Module,
    /// Executed directly; a bare name is searched in PATH.
    Program,
    /// A file, also of this folder, that is executed directly.
    File,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Nproc {
    /// One per visible GPU. Without a GPU one per core for a program, one for a recipe.
    Auto,
    /// One per visible GPU.
    Gpu,
    /// One per core.
    Cpu,
    /// This number of workers.
    Count(usize),
}

impl FromStr for Nproc {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "gpu" => Ok(Self::Gpu),
            "cpu" => Ok(Self::Cpu),
            number => match number.parse() {
                Ok(0) => Err("at least 1 worker is needed".into()),
                Ok(count) if count > MOST_WORKERS => {
                    Err(format!("at most {MOST_WORKERS} workers are possible"))
                }
                Ok(count) => Ok(Self::Count(count)),
                Err(_) => Err("give a whole number of at least 1, or auto, gpu or cpu".into()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::parse::launch_words as parse;
    use super::*;

    #[test]
    fn a_recipe_takes_flags_before_and_after_it() {
        let args =
            parse(&["--nproc", "2", "a.toml", "--set", "x=1", "--set", "y=2", "--resume", "never"]).unwrap();
        assert_eq!(args.nproc, Some(Nproc::Count(2)));
        assert_eq!(args.set, ["x=1", "y=2"]);
        assert_eq!(args.resume.as_deref(), Some("never"));
        assert_eq!(args.shutdown_timeout(), Duration::from_secs(30));
    }

    #[test]
    fn torchruns_names_for_the_number_of_workers_are_known() {
        for flag in ["--nproc", "--nproc-per-node", "--nproc_per_node"] {
            assert_eq!(parse(&[flag, "3", "r"]).unwrap().nproc, Some(Nproc::Count(3)));
        }
        for (word, expected) in [("auto", Nproc::Auto), ("gpu", Nproc::Gpu), ("cpu", Nproc::Cpu)] {
            assert_eq!(parse(&["--nproc", word, "r"]).unwrap().nproc, Some(expected));
        }
    }

    #[test]
    fn numbers_out_of_bounds_are_usage_errors() {
        for number in ["0", "-1", "x", "1.5", "", "1025"] {
            assert_eq!(parse(&["--nproc", number]).unwrap_err().exit_code(), 2, "{number:?}");
        }
        for number in ["604801", "-1"] {
            assert_eq!(parse(&["--shutdown-timeout", number]).unwrap_err().exit_code(), 2, "{number:?}");
        }
        assert_eq!(parse(&["--shutdown-timeout", "0", "r"]).unwrap().shutdown_timeout(), Duration::ZERO);
    }

    #[test]
    fn a_run_continues_by_the_same_words_in_its_folder() {
        let again = |line: &[&str]| parse(line).unwrap().again("a b.toml", Path::new("runs/x"));
        assert_eq!(
            again(&["--nproc", "2", "a b.toml", "--set", "x=1 2"]),
            "dtrain launch --nproc 2 --set 'x=1 2' 'a b.toml' --run-dir runs/x"
        );
        for never in [&["--resume", "never"][..], &["--resume=never"]] {
            let line = [&["a b.toml", "--run-dir", "y"], never].concat();
            assert_eq!(again(&line), "dtrain launch --run-dir y 'a b.toml'");
        }
        assert!(again(&["--resume", "x/y", "a b.toml"]).contains(" --resume x/y "));
    }

    #[test]
    fn help_lines_fit_a_common_terminal() {
        let longest = help!("launch-examples", "launch").lines().map(|line| line.chars().count()).max();
        assert!(longest <= Some(90), "{longest:?}");
    }
}
