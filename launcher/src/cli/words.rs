//! From the words of the command line to its meaning: which of them belong to the launcher and which to what it
//! starts, and where flags come from.

use super::{Cli, Command, LaunchArgs, twins};
use crate::python;
use clap::error::ErrorKind;
use clap::{CommandFactory, FromArgMatches, Parser};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// What is to be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub(crate) form: Form,
    /// Of the recipe, the script, the module or the program.
    pub(crate) name: &'a OsStr,
    /// None for a recipe.
    pub(crate) args: &'a [OsString],
}

/// The forms of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Trained by dtrain's own worker.
    Recipe,
    /// A file for Python.
    Script,
    /// A module for `python -m`.
    Module,
    /// Executed as it is.
    Program,
}

impl LaunchArgs {
    /// What is to be started, unless nothing is named.
    ///
    /// # Errors
    /// Two things are named.
    pub(crate) fn target(&self) -> anyhow::Result<Option<Target<'_>>> {
        let words = self.words.split_first();
        if let Some(recipe) = &self.recipe {
            let shown = recipe.to_string_lossy();
            return match words {
                None if self.contract.module || self.contract.no_python => anyhow::bail!(
                    "{} stands after `{shown}`; put it before the name of what it starts",
                    if self.contract.module { "-m" } else { "--no-python" }
                ),
                None => Ok(Some(Target {
                    form: Form::Recipe,
                    name: recipe,
                    args: &[],
                })),
                Some((name, _)) => {
                    let name_shown = name.to_string_lossy();
                    match self.form(name) {
                        Form::Recipe => anyhow::bail!(
                            "two recipes are given, `{shown}` and `{name_shown}`; give one, and its settings by --set"
                        ),
                        _ => anyhow::bail!(
                            "both a recipe (`{shown}`) and a program (`{name_shown}`) are given; to pass arguments to \
                             a program, put all of them after the two dashes: `dtrain launch -- PROGRAM ARGS`"
                        ),
                    }
                }
            };
        }
        Ok(words.map(|(name, args)| Target {
            form: self.form(name),
            name,
            args,
        }))
    }

    /// What a first word of this name is.
    fn form(&self, name: &OsStr) -> Form {
        if self.contract.module {
            Form::Module
        } else if self.contract.no_python || self.after_dashes {
            Form::Program
        } else if python::runs(Path::new(name)) {
            Form::Script
        } else {
            Form::Recipe
        }
    }
}

/// Reads the command line, and for a launch through `environment` the variables that stand for flags.
///
/// # Errors
/// Wrong usage, or a request for help or for the version.
pub(crate) fn read_command(
    argv: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Command, clap::Error> {
    if argv.get(1).is_some_and(|word| word == "launch") {
        return parse(argv, environment).map(|args| Command::Launch(Box::new(args)));
    }
    Cli::try_parse_from(argv).map(|cli| cli.command)
}

/// Reads a launch's command line, and through `environment` the variables that stand for flags.
///
/// # Errors
/// Wrong usage, or a request for help or for the version.
pub(super) fn parse(
    argv: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<LaunchArgs, clap::Error> {
    let mut command = with_underscores(Cli::command());
    let (argv, recipe) = without_recipe(&mut command, argv, &environment)?;
    let twins = twins::read(&mut command, &argv, &environment)?;
    let mut args = if twins.is_empty() {
        read(&mut command, &argv)?
    } else {
        // After the name of the subcommand, so that what the user typed comes later.
        let (program, rest) = argv.split_at(argv.len().min(2));
        let words = twins.iter().map(|twin| twin.word.clone());
        let all: Vec<_> = program
            .iter()
            .cloned()
            .chain(words)
            .chain(rest.iter().cloned())
            .collect();
        read(&mut command, &all).map_err(|error| twins::blame(&mut command, &error, &twins))?
    };
    args.recipe = recipe;
    args.after_dashes = after_dashes(&argv, args.words.len());
    args.from_environment = twins.into_iter().map(|twin| twin.variable).collect();
    // A recipe that no word follows was left where it stood.
    if args.recipe.is_none()
        && let [only] = args.words.as_slice()
        && args.form(only) == Form::Recipe
    {
        args.recipe = args.words.pop();
    }
    Ok(args)
}

fn read(command: &mut clap::Command, argv: &[OsString]) -> Result<LaunchArgs, clap::Error> {
    let mut matches = command.try_get_matches_from_mut(argv)?;
    let cli = Cli::from_arg_matches_mut(&mut matches).map_err(|error| error.format(command))?;
    match cli.command {
        Command::Launch(args) => Ok(*args),
        Command::Plan(_) | Command::Profile(_) | Command::Eval(_) | Command::Ckpt(_) | Command::Gpu(_) => {
            Err(usage_error(command, "this is no launch".into()))
        }
    }
}

/// Takes a recipe's name out of the words when others follow it. To the parser everything from the first word on
/// that is no flag belongs to the program, which is right for all but a recipe: flags may follow its name.
fn without_recipe(
    command: &mut clap::Command,
    mut argv: Vec<OsString>,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<(Vec<OsString>, Option<OsString>), clap::Error> {
    let mut args = read(command, &argv)?;
    let count = args.words.len();
    args.after_dashes = after_dashes(&argv, count);
    // What the first word is has to be known before the twins of flags that may follow it are read.
    args.contract.module |= twins::is_on("module", &environment);
    args.contract.no_python |= twins::is_on("no-python", &environment);
    if count < 2 || args.form(&args.words[0]) != Form::Recipe {
        return Ok((argv, None));
    }
    let recipe = argv.remove(argv.len() - count);
    // A mistyped flag is to be told for itself, not as a word of a program.
    read(command, &argv)?;
    Ok((argv, Some(recipe)))
}

/// Whether the last `count` words, which are all that are no flags, stand after `--`.
fn after_dashes(argv: &[OsString], count: usize) -> bool {
    let before = argv.len().saturating_sub(count + 1);
    count > 0 && argv.get(before).is_some_and(|word| word == "--")
}

/// The command, whose flags may also be spelt with underscores, as torchrun's may.
fn with_underscores(command: clap::Command) -> clap::Command {
    command.mut_subcommand("launch", |launch| {
        launch.mut_args(|arg| {
            let mut names: Vec<String> = arg.get_long().into_iter().map(str::to_owned).collect();
            names.extend(
                arg.get_all_aliases()
                    .unwrap_or_default()
                    .into_iter()
                    .map(str::to_owned),
            );
            let spelt: Vec<_> = names
                .iter()
                .map(|name| name.replace('-', "_"))
                .filter(|name| !names.contains(name))
                .collect();
            arg.aliases(spelt)
        })
    })
}

/// An error of `command` in the form of its own errors.
pub(super) fn usage_error(command: &mut clap::Command, message: String) -> clap::Error {
    command.error(ErrorKind::ValueValidation, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn launch(line: &[&str]) -> Result<LaunchArgs, clap::Error> {
        let words = ["dtrain", "launch"].iter().chain(line);
        parse(words.map(OsString::from).collect(), |_| None)
    }

    #[track_caller]
    fn target(line: &[&str]) -> (Form, String, Vec<String>) {
        let args = launch(line).unwrap();
        let target = args.target().unwrap().unwrap();
        let text = |word: &OsStr| word.to_str().unwrap().to_owned();
        (
            target.form,
            text(target.name),
            target.args.iter().map(|word| text(word)).collect(),
        )
    }

    #[track_caller]
    fn expect(line: &[&str], form: Form, name: &str, args: &[&str]) {
        let (found, found_name, found_args) = target(line);
        assert_eq!((found, found_name.as_str()), (form, name), "{line:?}");
        assert_eq!(found_args, args, "{line:?}");
    }

    #[test]
    fn the_form_follows_from_flags_and_name() {
        expect(&["demo"], Form::Recipe, "demo", &[]);
        expect(&["a.toml", "--nproc", "2"], Form::Recipe, "a.toml", &[]);
        expect(&["a/train.py"], Form::Script, "a/train.py", &[]);
        expect(&["-m", "pkg.train", "x"], Form::Module, "pkg.train", &["x"]);
        expect(&["--module", "train.py"], Form::Module, "train.py", &[]);
        expect(&["--no-python", "./train.py"], Form::Program, "./train.py", &[]);
        expect(&["--", "train.py"], Form::Program, "train.py", &[]);
        expect(&["--", "demo"], Form::Program, "demo", &[]);
        expect(&["-m", "--", "pkg.train"], Form::Module, "pkg.train", &[]);
        assert_eq!(launch(&["--nproc", "2"]).unwrap().target().unwrap(), None);
    }

    #[test]
    fn what_follows_a_script_or_a_module_belongs_to_it() {
        let own = ["--nproc", "9", "-m", "--", "--no-such", "--help", "-x=1"];
        for before in [
            &["--nproc", "2", "t.py"][..],
            &["--nproc", "2", "-m", "t"],
            &["--nproc", "2", "--no-python", "t"],
        ] {
            let line = [before, &own].concat();
            assert_eq!(target(&line).2, own, "{line:?}");
            assert_eq!(launch(&line).unwrap().nproc, super::super::Nproc::Count(2));
        }
    }

    #[test]
    fn a_recipe_keeps_its_flags_wherever_they_stand() {
        for line in [
            &["--nproc", "2", "a.toml", "--set", "x=1", "--set", "y=2"][..],
            &["a.toml", "--set", "x=1", "--nproc", "2", "--set=y=2"],
            &["--set", "x=1", "--set", "y=2", "--nproc", "2", "a.toml"],
        ] {
            let args = launch(line).unwrap();
            assert_eq!(args.set, ["x=1", "y=2"]);
            assert_eq!(args.nproc, super::super::Nproc::Count(2));
            expect(line, Form::Recipe, "a.toml", &[]);
        }
        assert_eq!(
            launch(&["a.toml", "--no-such"]).unwrap_err().kind(),
            ErrorKind::UnknownArgument
        );
    }

    #[test]
    fn two_targets_are_refused() {
        for (line, says) in [
            (
                &["a.toml", "b.toml"][..],
                "two recipes are given, `a.toml` and `b.toml`",
            ),
            (
                &["a.toml", "t.py"],
                "both a recipe (`a.toml`) and a program (`t.py`)",
            ),
            (
                &["a.toml", "--", "t"],
                "both a recipe (`a.toml`) and a program (`t`)",
            ),
            (
                &["a.toml", "-m", "t"],
                "both a recipe (`a.toml`) and a program (`t`)",
            ),
            (&["a.toml", "-m"], "-m stands after `a.toml`"),
            (&["a.toml", "--no-python"], "--no-python stands after `a.toml`"),
        ] {
            let error = launch(line).unwrap().target().unwrap_err().to_string();
            assert!(error.contains(says), "{line:?}: {error}");
        }
    }

    #[test]
    fn every_flag_may_be_spelt_with_underscores() {
        let launch = with_underscores(Cli::command());
        let launch = launch.find_subcommand("launch").unwrap();
        for arg in launch.get_arguments() {
            let names: Vec<_> = arg.get_long_and_visible_aliases().unwrap_or_default();
            let all: Vec<_> = names
                .iter()
                .copied()
                .chain(arg.get_all_aliases().unwrap_or_default())
                .collect();
            for name in names {
                assert!(all.contains(&name.replace('-', "_").as_str()), "--{name}");
            }
        }
        with_underscores(Cli::command()).debug_assert();
    }

    proptest! {
        #[test]
        fn no_word_of_a_script_is_lost_or_taken(own in prop::collection::vec("[-a-z=.]{0,8}", 0..6)) {
            let line: Vec<&str> = ["t.py"].into_iter().chain(own.iter().map(String::as_str)).collect();
            let (form, name, args) = target(&line);
            prop_assert_eq!((form, name.as_str()), (Form::Script, "t.py"));
            prop_assert_eq!(args, own);
        }

        #[test]
        fn no_line_panics(line in prop::collection::vec("(--nproc|--set|-m|--|demo|t.py|--role|[a-z=.-]{0,4})", 0..7)) {
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            if let Ok(args) = launch(&line) {
                let _ = args.target();
            }
        }
    }
}
