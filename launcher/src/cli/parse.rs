//! Parses the command line: splits launcher's and program's words, and reads flags from the environment.

use super::command::{Cli, Command};
use super::eval::{EvalArgs, WorkerArgs};
use super::launch::{Form, LaunchArgs, Nproc, Target};
use super::plan::{ProfileArgs, RecipeArgs};
use super::predict::PredictArgs;
use crate::executable;
use anyhow::Context;
use clap::builder::BoolishValueParser;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory, FromArgMatches, Parser};
use clap_complete::CompleteEnv;
use dtrain_common::env::{DTRAIN_COMPLETE, FLAG_PREFIX};
use dtrain_common::lr_range::LrRange;
use dtrain_common::question::{EvalQuestion, Question, RangeQuestion};
use std::error::Error;
use std::ffi::OsString;
use std::path::Path;

/// Reads the command line, and a launch's environment variables. A request for help is an error too.
pub(crate) fn read_command(argv: Vec<OsString>) -> Result<Command, clap::Error> {
    let argv = colour_last(argv);
    if argv.get(1).is_some_and(|word| word == "launch") {
        return launch(argv, true).map(|args| Command::Launch(Box::new(args)));
    }
    Cli::try_parse_from(argv).map(Cli::into_command)
}

/// Moves `--color` behind the command's name: a launch reads all words after it.
fn colour_last(mut argv: Vec<OsString>) -> Vec<OsString> {
    let words = match argv.get(1).and_then(|word| word.to_str()) {
        Some("--color") => 2,
        Some(word) if word.starts_with("--color=") => 1,
        _ => return argv,
    };
    if argv.len() > 1 + words {
        argv[1..=1 + words].rotate_left(words);
    }
    argv
}

/// Returns whether the words of a launch that cannot be read ask for lines of JSON.
pub(crate) fn asks_for_json(argv: impl IntoIterator<Item = OsString>) -> bool {
    let words: Vec<_> = argv.into_iter().take_while(|word| word != "--").collect();
    let is_flag = |word: &OsString| ["--log-format", "--log_format"].iter().any(|flag| word == *flag);
    let by_two = words.windows(2).any(|pair| is_flag(&pair[0]) && pair[1] == "json");
    let by_one = words.iter().any(|word| word == "--log-format=json" || word == "--log_format=json");
    by_two || by_one || std::env::var_os(variable_of("log-format")).is_some_and(|value| value == "json")
}

/// Returns the whole command, for pages of the manual.
pub(crate) fn whole_command() -> clap::Command {
    Cli::command()
}

/// Reads a launch's command line. Flags may follow a recipe; after another word they are the program's.
pub(crate) fn launch(mut argv: Vec<OsString>, environment: bool) -> Result<LaunchArgs, clap::Error> {
    let mut args = read(&argv, environment)?;
    let count = args.words.len();
    if let [name, _, ..] = args.words.as_slice()
        && args.is_recipe(name)
    {
        // The flags of a program that cannot be started are not the launcher's.
        if !executable::is_recipe(name) {
            return Ok(args);
        }
        let recipe = argv.remove(argv.len() - count);
        args = read(&argv, environment).map_err(suggest_set)?;
        args.recipe = Some(recipe);
    } else if let [only] = args.words.as_slice()
        && args.is_recipe(only)
    {
        args.recipe = args.words.pop();
    }
    Ok(args)
}

/// Reads a launch's words, for tests: without the program's and the command's name, and without the environment.
#[cfg(test)]
pub(super) fn launch_words(words: &[&str]) -> Result<LaunchArgs, clap::Error> {
    let argv = ["dtrain", "launch"].iter().chain(words);
    launch(argv.map(OsString::from).collect(), false)
}

/// Suggests `--set` for an unknown flag after a recipe; clap would suggest `--`, which starts a program.
fn suggest_set(mut error: clap::Error) -> clap::Error {
    if error.kind() == ErrorKind::UnknownArgument {
        let tip = "to change a key of the recipe, use '--set', such as '--set train.epochs=3'";
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    }
    error
}

fn read(argv: &[OsString], environment: bool) -> Result<LaunchArgs, clap::Error> {
    let (mut command, env_flags) = command(environment)?;
    // A repeatable flag gets both values; inserted after the subcommand, so that the user's value is last.
    let repeated = env_flags.iter().filter(|env_flag| env_flag.repeats).map(EnvFlag::word);
    let mut words = argv.to_vec();
    let second = argv.len().min(2);
    words.splice(second..second, repeated);
    let matches = match command.try_get_matches_from_mut(words) {
        // If the command line alone is wrong, its own error is returned.
        Err(error) if !env_flags.is_empty() && error.use_stderr() => {
            read(argv, false)?;
            return Err(blame(&mut command, &error, &env_flags));
        }
        other => other?,
    };
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))?;
    let Command::Launch(mut args) = cli.into_command() else {
        return Err(command.error(ErrorKind::InvalidSubcommand, "this is not a launch"));
    };
    let given = matches.subcommand().map(|(_, given)| given);
    args.given = given.map_or_else(Vec::new, |given| passed_to_a_try(&command, given));
    let counts = |env_flag: &EnvFlag| given.is_some_and(|given| env_flag.counts(given));
    let env_flags = env_flags.into_iter().filter(counts);
    args.from_environment = env_flags.map(|env_flag| env_flag.variable).collect();
    let before = argv.len().saturating_sub(args.words.len() + 1);
    args.after_dashes = !args.words.is_empty() && argv.get(before).is_some_and(|word| word == "--");
    let end = argv.len().saturating_sub(args.words.len() + usize::from(args.after_dashes));
    args.flags = argv.get(2..end).unwrap_or_default().to_vec();
    Ok(*args)
}

/// The flags that a try does not pass on to its launches: it has used them up, or has another value.
pub(crate) const OWN_OF_A_TRY: [&str; 9] = [
    "try",
    "overfit",
    "set",
    "run-dir",
    "resume",
    "max-restarts",
    // For whole runs, and for lines that the user reads.
    "on-end",
    "log-format",
    "color",
];

/// Returns the environment variable of a flag, such as `PET_RUN_DIR` of `run-dir`.
pub(crate) fn variable_of(flag: &str) -> String {
    format!("{FLAG_PREFIX}{}", flag.replace('-', "_").to_uppercase())
}

/// Returns the flags of the command line as words, but not [those of a try](OWN_OF_A_TRY).
fn passed_to_a_try(command: &clap::Command, given: &ArgMatches) -> Vec<OsString> {
    let launch = command.find_subcommand("launch");
    let mut words = Vec::new();
    for arg in launch.into_iter().flat_map(clap::Command::get_arguments) {
        let id = arg.get_id().as_str();
        let is_given = given.value_source(id) == Some(ValueSource::CommandLine);
        let name = arg.get_long().filter(|name| is_given && !OWN_OF_A_TRY.contains(name));
        let Some(name) = name else { continue };
        match arg.get_action() {
            ArgAction::SetTrue => words.push(format!("--{name}").into()),
            _ => {
                let mut word = OsString::from(format!("--{name}="));
                let values = given.get_raw(id).into_iter().flatten().collect::<Vec<_>>();
                word.push(values.join(std::ffi::OsStr::new(",")));
                words.push(word);
            }
        }
    }
    words
}

/// An environment variable for a flag, as torchrun has: PET_NPROC_PER_NODE for `--nproc-per-node`.
struct EnvFlag {
    variable: String,
    value: OsString,
    /// Such as `--nproc`.
    flag: String,
    id: clap::Id,
    /// Whether the flag may be given several times.
    repeats: bool,
}

impl EnvFlag {
    /// Returns whether the variable sets the flag; for a switch, whether it switches it on.
    fn counts(&self, given: &ArgMatches) -> bool {
        let id = self.id.as_str();
        let is_off = matches!(given.try_get_one::<bool>(id), Ok(Some(false)));
        self.repeats || given.value_source(id) == Some(ValueSource::EnvVariable) && !is_off
    }

    /// Returns the word for the command line.
    fn word(&self) -> OsString {
        let mut word = OsString::from(format!("{}=", self.flag));
        word.push(&self.value);
        word
    }
}

/// Returns the command and the variables that are set. Flags may have underscores too. Empty variables count
/// as unset; two different variables of one flag are an error.
fn command(environment: bool) -> Result<(clap::Command, Vec<EnvFlag>), clap::Error> {
    let (mut env_flags, mut differ) = (Vec::<EnvFlag>::new(), None);
    let mut prepare = |arg: Arg| {
        let aliases = arg.get_all_aliases().unwrap_or_default();
        let names = arg.get_long().into_iter().chain(aliases);
        let names: Vec<_> = names.map(str::to_owned).collect();
        let spelt: Vec<_> = names.iter().map(|name| name.replace('-', "_")).collect();
        let first = env_flags.len();
        for name in spelt.iter().filter(|_| environment) {
            let variable = variable_of(name);
            let value = std::env::var_os(&variable).filter(|value| !value.is_empty());
            env_flags.extend(value.map(|value| EnvFlag {
                variable,
                value,
                flag: format!("--{}", arg.get_long().unwrap_or_default()),
                id: arg.get_id().clone(),
                repeats: matches!(arg.get_action(), ArgAction::Append),
            }));
        }
        let mut arg = match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        };
        if let [env_flag, others @ ..] = &env_flags[first..] {
            let other = others.iter().find(|other| other.value != env_flag.value);
            differ = differ.take().or(other.map(|other| {
                format!(
                    "the environment variables {}={} and {}={} set the same flag to different values; unset one",
                    env_flag.variable,
                    env_flag.value.display(),
                    other.variable,
                    other.value.display()
                )
            }));
            if !env_flag.repeats {
                arg = arg.env(env_flag.variable.clone());
            }
            env_flags.truncate(first + 1);
        }
        arg.aliases(spelt.into_iter().filter(|name| !names.contains(name)))
    };
    let mut command = Cli::command().mut_subcommand("launch", |launch| launch.mut_args(&mut prepare));
    match differ {
        Some(message) => Err(command.error(ErrorKind::ValueValidation, message)),
        None => Ok((command, env_flags)),
    }
}

/// Returns the error of a command line that is only wrong because of these variables.
fn blame(command: &mut clap::Command, error: &clap::Error, env_flags: &[EnvFlag]) -> clap::Error {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    let why = match error.source() {
        Some(source) => source.to_string(),
        None => {
            let text = error.to_string();
            let head = text.lines().take_while(|line| !line.is_empty());
            let head: Vec<_> = head.map(str::trim).collect();
            head.join(" ").trim_start_matches("error: ").to_owned()
        }
    };
    // Such as `--nproc <N|auto|gpu|cpu>`.
    let named = text(ContextKind::InvalidArg).and_then(|arg| arg.split(' ').next());
    let wrong = env_flags.iter().find(|env_flag| named == Some(&env_flag.flag));
    let message = match wrong {
        Some(EnvFlag { variable, value, .. }) => {
            format!("the environment variable {variable} is `{}`: {why}", value.display())
        }
        None => {
            let variables: Vec<_> = env_flags.iter().map(|env_flag| env_flag.variable.as_str()).collect();
            format!("{why}; the environment sets {}", variables.join(", "))
        }
    };
    command.error(ErrorKind::ValueValidation, message)
}

impl LaunchArgs {
    /// Returns the target; `None` if the line names none. Two names are an error.
    pub(crate) fn target(&self) -> anyhow::Result<Option<Target<'_>>> {
        let words = self.words.split_first();
        let Some(recipe) = &self.recipe else {
            return Ok(words.map(|(name, args)| Target { form: self.form(name), name, args }));
        };
        let shown = recipe.display();
        match words.map(|(name, _)| (name.display(), self.is_recipe(name))) {
            None if self.contract.module || self.contract.no_python => anyhow::bail!(
                "{} comes after `{shown}`; put it before the name of the module or program",
                if self.contract.module { "-m" } else { "--no-python" }
            ),
            None => Ok(Some(Target { form: Form::Recipe, name: recipe, args: &[] })),
            Some((name, true)) => anyhow::bail!(
                "two recipes are given, `{shown}` and `{name}`; give one, and change its keys with --set"
            ),
            Some((name, false)) if self.contract.module => {
                anyhow::bail!("both a recipe (`{shown}`) and a module (`{name}`) are given; give one")
            }
            Some((name, false)) => {
                let dashes = self.after_dashes.then_some("--".as_ref());
                let line = self.line(dashes.into_iter().chain(self.arguments()));
                anyhow::bail!(
                    "both a recipe (`{shown}`) and a program (`{name}`) are given; start the program alone with `{line}`"
                )
            }
        }
    }
}

impl EvalArgs {
    /// Returns the launch of `worker` for the evaluation of a checkpoint by a recipe, which may be the checkpoint's own.
    pub(crate) fn launch(
        &self,
        worker: &Path,
        recipe: &str,
        checkpoint: &Path,
    ) -> anyhow::Result<LaunchArgs> {
        let job = Question::Eval(EvalQuestion {
            checkpoint: checkpoint.to_owned(),
            weights: self.workers.weights,
            batch: self.workers.batch.map(|batch| batch as usize),
            json: self.json,
        });
        self.workers.launch(worker, recipe, &self.set, &job, Vec::new())
    }
}

impl PredictArgs {
    /// Returns the launch of `worker` for the prediction by a checkpoint, with its own recipe.
    pub(crate) fn launch(
        &self,
        worker: &Path,
        recipe: &str,
        checkpoint: &Path,
    ) -> anyhow::Result<LaunchArgs> {
        self.workers.launch(worker, recipe, &self.set, &self.question(checkpoint), self.more())
    }
}

impl ProfileArgs {
    /// Returns the launch of `worker` for the test of a range of learning rates.
    pub(crate) fn launch(&self, worker: &Path, range: LrRange) -> anyhow::Result<LaunchArgs> {
        let RecipeArgs { recipe, set } = &self.recipe;
        let job = Question::Range(RangeQuestion { range, json: self.json });
        let nproc = ["--nproc".into(), self.nproc.to_string().into()];
        launch_question(worker, recipe, set, &job, nproc.into())
    }
}

impl WorkerArgs {
    /// Returns the launch of `worker` with a question, with `more` words.
    fn launch(
        &self,
        worker: &Path,
        recipe: &str,
        set: &[String],
        job: &Question,
        more: Vec<OsString>,
    ) -> anyhow::Result<LaunchArgs> {
        let nproc = self.nproc.parse::<Nproc>().map_err(anyhow::Error::msg);
        let nproc = nproc.with_context(|| format!("--nproc {}", self.nproc))?;
        let mut words: Vec<OsString> = Vec::new();
        // Without a GPU, `auto` would start a program on every core: one worker of the trainer uses them all.
        if nproc != Nproc::Auto {
            words.extend(["--nproc", &self.nproc].map(Into::into));
        }
        if let Some(ids) = &self.gpus.gpu_ids {
            words.extend(["--gpu-ids".into(), ids.to_string().into()]);
        }
        words.extend(more);
        launch_question(worker, recipe, set, job, words)
    }
}

/// Returns the launch of `worker` with a question and these flags: rank 0 answers, the others report only failures.
fn launch_question(
    worker: &Path,
    recipe: &str,
    set: &[String],
    job: &Question,
    flags: Vec<OsString>,
) -> anyhow::Result<LaunchArgs> {
    let mut line: Vec<OsString> = ["dtrain", "launch"].map(Into::into).into();
    line.extend(flags);
    // A rank that has done its share waits for the others, however long they take.
    line.push("--hang-timeout=0".into());
    line.extend(["--log-line-prefix-template=", "--local-ranks-filter=0", "--"].map(Into::into));
    line.extend([worker.into(), OsString::from(recipe)]);
    for set in set {
        line.extend(["--set".into(), set.into()]);
    }
    line.extend(["--job".into(), serde_json::to_string(job)?.into()]);
    let mut args = launch(line, false)?;
    args.is_question = true;
    Ok(args)
}

/// If the script of a shell asks for words, prints them and ends the process.
pub(crate) fn answer_shell() {
    CompleteEnv::with_factory(Cli::command).var(DTRAIN_COMPLETE).complete();
}

#[cfg(test)]
mod tests;
