//! The environment twins of the flags: PET_NPROC_PER_NODE for `--nproc-per-node`, and so for every flag that takes
//! one, as torchrun has them. What the command line says comes before them.
//!
//! They are made from the flags' definitions, so that a new flag has its twin without a word here.

use super::words::usage_error;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches};
use dtrain_common::env::TWIN_PREFIX;
use std::collections::BTreeSet;
use std::error::Error;
use std::ffi::OsString;

/// A flag that the environment gives.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Twin {
    /// The variable.
    pub(super) variable: String,
    /// The flag with its value as one word of the command line.
    pub(super) word: OsString,
}

/// The flags that the environment gives and that `argv` does not. A variable that is empty counts as not set.
///
/// # Errors
/// A variable's value is wrong for its flag, or two variables of one flag differ; the message names them.
pub(super) fn read(
    command: &mut clap::Command,
    argv: &[OsString],
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Vec<Twin>, clap::Error> {
    let matches = command.try_get_matches_from_mut(argv)?;
    let Some((name, given)) = matches.subcommand() else {
        return Ok(Vec::new());
    };
    let flags: Vec<Arg> = command
        .find_subcommand(name)
        .into_iter()
        .flat_map(clap::Command::get_arguments)
        .cloned()
        .collect();
    let mut twins = Vec::new();
    for flag in &flags {
        let repeatable = matches!(flag.get_action(), ArgAction::Append);
        if is_given(given, flag) && !repeatable {
            continue;
        }
        let Some((variable, value)) = value_of(command, flag, &environment)? else {
            continue;
        };
        let Some(word) = word(command, flag, &variable, value.clone())? else {
            continue;
        };
        check(command, argv, &variable, &value, &word)?;
        twins.push(Twin { variable, word });
    }
    Ok(twins)
}

/// An error of the whole command line, which was sound without the environment's flags, with their variables.
pub(super) fn blame(command: &mut clap::Command, error: &clap::Error, twins: &[Twin]) -> clap::Error {
    let variables: Vec<_> = twins.iter().map(|twin| twin.variable.as_str()).collect();
    usage_error(
        command,
        format!("{}; the environment sets {}", reason(error), variables.join(", ")),
    )
}

fn is_given(given: &ArgMatches, flag: &Arg) -> bool {
    given.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine)
}

/// The names of the variables of a flag: of its name and of its aliases.
fn variables(flag: &Arg) -> BTreeSet<String> {
    flag.get_long()
        .into_iter()
        .chain(flag.get_all_aliases().unwrap_or_default())
        .map(variable)
        .collect()
}

/// The variable of a flag of this name.
fn variable(name: &str) -> String {
    format!("{TWIN_PREFIX}{}", name.replace('-', "_").to_uppercase())
}

/// Whether the environment switches on the flag of this name.
pub(super) fn is_on(name: &str, environment: impl Fn(&str) -> Option<OsString>) -> bool {
    environment(&variable(name)).is_some_and(|value| value == "1" || value == "true")
}

/// The variable that is set for this flag, and its value.
fn value_of(
    command: &mut clap::Command,
    flag: &Arg,
    environment: impl Fn(&str) -> Option<OsString>,
) -> Result<Option<(String, OsString)>, clap::Error> {
    let mut found: Option<(String, OsString)> = None;
    for variable in variables(flag) {
        let Some(value) = environment(&variable).filter(|value| !value.is_empty()) else {
            continue;
        };
        match &found {
            Some((first, other)) if *other != value => {
                let message = format!(
                    "the environment variables {first}={} and {variable}={} stand for the same flag; unset one",
                    other.to_string_lossy(),
                    value.to_string_lossy()
                );
                return Err(usage_error(command, message));
            }
            _ => found = Some((variable, value)),
        }
    }
    Ok(found)
}

/// The flag as one word; none for a switch that is off, and for help.
fn word(
    command: &mut clap::Command,
    flag: &Arg,
    variable: &str,
    value: OsString,
) -> Result<Option<OsString>, clap::Error> {
    let Some(name) = flag.get_long() else {
        return Ok(None);
    };
    let mut word = OsString::from(format!("--{name}"));
    match flag.get_action() {
        ArgAction::Set | ArgAction::Append => {
            word.push("=");
            word.push(value);
            Ok(Some(word))
        }
        ArgAction::SetTrue => match value.to_str() {
            Some("1" | "true") => Ok(Some(word)),
            Some("0" | "false") => Ok(None),
            _ => Err(wrong(command, variable, &value, "give 1 or 0")),
        },
        _ => Ok(None),
    }
}

/// Reads the flag alone, so that what is wrong with its value is told with the variable's name.
fn check(
    command: &mut clap::Command,
    argv: &[OsString],
    variable: &str,
    value: &OsString,
    word: &OsString,
) -> Result<(), clap::Error> {
    use clap::error::ErrorKind::{
        InvalidUtf8, InvalidValue, TooManyValues, ValueValidation, WrongNumberOfValues,
    };
    let alone = argv.iter().take(2).chain([word]);
    match command.try_get_matches_from_mut(alone) {
        Err(error)
            if matches!(
                error.kind(),
                InvalidUtf8 | InvalidValue | TooManyValues | ValueValidation | WrongNumberOfValues
            ) =>
        {
            let why = reason(&error);
            Err(wrong(command, variable, value, &why))
        }
        // What a flag needs beside it may stand on the command line.
        _ => Ok(()),
    }
}

fn wrong(command: &mut clap::Command, variable: &str, value: &OsString, why: &str) -> clap::Error {
    let value = value.to_string_lossy();
    usage_error(
        command,
        format!("the environment variable {variable} is `{value}`: {why}"),
    )
}

/// What an error says, without the frame in which the command line shows it.
fn reason(error: &clap::Error) -> String {
    if let Some(source) = error.source() {
        return source.to_string();
    }
    let text = error.to_string();
    let head: Vec<_> = text
        .lines()
        .take_while(|line| !line.is_empty())
        .map(str::trim)
        .collect();
    head.join(" ").trim_start_matches("error: ").to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::words::parse;
    use super::super::{Form, LaunchArgs, Nproc};
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    fn launch(line: &[&str], environment: &[(&str, &str)]) -> Result<LaunchArgs, clap::Error> {
        let words = ["dtrain", "launch"].iter().chain(line);
        parse(words.map(OsString::from).collect(), |name| {
            let found = environment.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).into())
        })
    }

    #[track_caller]
    fn refused(line: &[&str], environment: &[(&str, &str)], says: &str) {
        let error = launch(line, environment).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        assert!(error.to_string().contains(says), "{error}");
    }

    #[test]
    fn a_twin_stands_for_a_flag_that_is_not_given() {
        for name in ["PET_NPROC", "PET_NPROC_PER_NODE"] {
            let args = launch(&["t.py"], &[(name, "3")]).unwrap();
            assert_eq!(args.nproc, Nproc::Count(3));
            assert_eq!(args.from_environment, [name]);
        }
        let both = [("PET_NPROC", "3"), ("PET_NPROC_PER_NODE", "3")];
        assert_eq!(launch(&["t.py"], &both).unwrap().nproc, Nproc::Count(3));
        assert!(
            launch(&["t.py"], &[("PET_STANDALONE", "1")])
                .unwrap()
                .contract
                .standalone
        );
        assert!(
            !launch(&["t.py"], &[("PET_STANDALONE", "0")])
                .unwrap()
                .contract
                .standalone
        );
        let empty = launch(&["t.py"], &[("PET_ROLE", "")]).unwrap();
        assert_eq!(empty.contract.role, "default");
        assert!(empty.from_environment.is_empty());
    }

    #[test]
    fn the_command_line_comes_first() {
        let environment = [("PET_NPROC_PER_NODE", "nonsense"), ("PET_ROLE", "a")];
        let args = launch(&["--nproc", "2", "demo", "--role", "b"], &environment).unwrap();
        assert_eq!((args.nproc, args.contract.role.as_str()), (Nproc::Count(2), "b"));
        // What the program is told is not the launcher's command line.
        let args = launch(&["t.py", "--role", "b"], &[("PET_ROLE", "a")]).unwrap();
        assert_eq!(args.contract.role, "a");
    }

    #[test]
    fn a_twin_says_what_the_first_word_is() {
        for (name, form) in [("PET_MODULE", Form::Module), ("PET_NO_PYTHON", Form::Program)] {
            let args = launch(&["--nproc", "2", "pkg.train", "--lr", "1"], &[(name, "1")]).unwrap();
            let target = args.target().unwrap().unwrap();
            assert_eq!((target.form, target.name.to_str()), (form, Some("pkg.train")));
            assert_eq!(target.args, ["--lr", "1"]);
        }
    }

    #[test]
    fn a_repeated_flag_adds_up_with_the_last_word_for_the_command_line() {
        let args = launch(&["demo", "--set", "a=2"], &[("PET_SET", "a=1")]).unwrap();
        assert_eq!(args.set, ["a=1", "a=2"]);
    }

    #[test]
    fn wrong_values_name_the_variable() {
        let both = [("PET_NPROC", "1"), ("PET_NPROC_PER_NODE", "2")];
        refused(
            &["demo"],
            &both,
            "PET_NPROC=1 and PET_NPROC_PER_NODE=2 stand for the same flag",
        );
        for (variable, value, why) in [
            ("PET_NPROC_PER_NODE", "many", "give a whole number from 1 on"),
            ("PET_STANDALONE", "perhaps", "give 1 or 0"),
            ("PET_NUMA_BINDING", "everywhere", "core-complex"),
            ("PET_NNODES", "x", "MIN:MAX"),
        ] {
            refused(&["demo"], &[(variable, value)], variable);
            refused(&["demo"], &[(variable, value)], why);
        }
    }

    #[test]
    fn a_value_that_is_not_text_is_refused_where_text_is_needed() {
        let words = ["dtrain", "launch", "demo"].map(OsString::from).to_vec();
        let error = parse(words, |name| {
            (name == "PET_ROLE").then(|| OsString::from_vec(b"\xff".to_vec()))
        })
        .unwrap_err();
        assert!(error.to_string().contains("PET_ROLE"), "{error}");
    }
}
