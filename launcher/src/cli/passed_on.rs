//! Flags of `dtrain launch` that a batch script passes on: `dtrain batch --launch FLAGS`.

use super::launch::LaunchArgs;
use super::parse::launch;
use anyhow::{anyhow, bail};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// The user's flags, and those beside them.
#[derive(Debug)]
pub(crate) struct PassedOn<'a> {
    pub(crate) flags: &'a [&'a str],
    /// What the script gives, or the job says.
    pub(crate) given: &'a [&'a str],
}

impl PassedOn<'_> {
    /// Checks the flags as `dtrain launch` will.
    ///
    /// # Errors
    ///
    /// A flag is wrong, or contradicts the script. The error is one line.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        let alone = read(self.flags).map_err(|error| in_one_line(&error))?;
        let word = alone.recipe.as_ref().or(alone.words.first().filter(|_| alone.words.len() > 1));
        if let Some(word) = word {
            bail!("{} is not a flag", word.display());
        }
        for (flag, is_given, remedy) in [
            ("--set", !alone.set.is_empty(), "give --set of `dtrain batch`, which checks the recipe"),
            ("--run-dir", alone.run_dir.is_some(), "give --run-dir of `dtrain batch`"),
            (
                "--resume",
                alone.resume.is_some(),
                "a job resumes in its --run-dir; give another one for a new run",
            ),
            ("--try", alone.is_try, "start `dtrain launch --try` before the job"),
            ("-m", alone.contract.module, "write the command after `--`, such as `-- python -m MODULE`"),
            (
                "--no-python",
                alone.contract.no_python,
                "write the command after `--`, such as `-- env ./train.py`",
            ),
        ] {
            if is_given {
                bail!("{flag} does not belong there; {remedy}");
            }
        }
        let both = read(&[self.given, self.flags].concat());
        both.map_err(|error| repeated(&error).unwrap_or_else(|| in_one_line(&error)))?
            .contract
            .check()
            .map(drop)
    }
}

fn read(flags: &[&str]) -> Result<LaunchArgs, clap::Error> {
    let line = ["dtrain", "launch"].iter().chain(flags).chain(&["--", "program"]);
    launch(line.map(OsString::from).collect(), false)
}

fn in_one_line(error: &clap::Error) -> anyhow::Error {
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default();
    anyhow!("{}", first.strip_prefix("error: ").unwrap_or(first).to_owned())
}

/// Returns the words about a flag that the script gives too.
fn repeated(error: &clap::Error) -> Option<anyhow::Error> {
    let (Some(ContextValue::String(flag)), Some(ContextValue::String(prior))) =
        (error.get(ContextKind::InvalidArg), error.get(ContextKind::PriorArg))
    else {
        return None;
    };
    let flag =
        flag.split(' ').next().filter(|_| flag == prior && error.kind() == ErrorKind::ArgumentConflict)?;
    let remedy = match flag {
        "--nproc" => "give --gpus-per-node of `dtrain batch`",
        "--nnodes" => "give --nodes of `dtrain batch`",
        "--log-dir" => "give --run-dir of `dtrain batch`",
        "--time-limit" | "--time-margin" => "give --time and --signal-before of `dtrain batch`",
        _ => "leave it out",
    };
    Some(anyhow!("the script gives {flag}, or the job says it; {remedy}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn check(flags: &[&str], given: &[&str]) -> String {
        PassedOn { flags, given }.check().map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn flags_that_the_script_leaves_to_the_user_are_passed_on() {
        let given = ["--nproc", "gpu", "--time-limit", "2s", "--time-margin", "1s"];
        for flags in [&["--max-restarts", "3"][..], &["--gpu-ids", "0", "--hang-timeout=9"], &[]] {
            assert_eq!(check(flags, &given), "", "{flags:?}");
        }
        assert_eq!(check(&["--nproc", "4", "--time-limit", "1h"], &[]), "");
    }

    #[test]
    fn a_flag_of_the_script_has_a_remedy() {
        let given = ["--nproc", "gpu", "--time-limit", "2s", "--rdzv-id", "a"];
        for (flags, message) in [
            (
                &["--set", "nonsense=1"][..],
                "--set does not belong there; give --set of `dtrain batch`, which",
            ),
            (&["--run-dir", "x"], "--run-dir does not belong there; give --run-dir of `dtrain batch`"),
            (&["--resume", "never"], "give another one for a new run"),
            (&["-m"], "-m does not belong there; write the command after `--`"),
            (&["--no-python"], "--no-python does not belong there"),
            (&["--nproc-per-node=2"], "the script gives --nproc, or the job says it; give --gpus-per-node"),
            (&["--time-limit", "1h"], "the script gives --time-limit, or the job says it; give --time and"),
            (&["--rdzv-id=b"], "the script gives --rdzv-id, or the job says it; leave it out"),
            (&["demo"], "demo is not a flag"),
            (&["train.py"], "train.py is not a flag"),
            (&["--max-restartz", "3"], "unexpected argument '--max-restartz' found"),
        ] {
            let error = check(flags, &given);
            assert!(error.starts_with(message) || error.ends_with(message), "{error}");
        }
    }
}
