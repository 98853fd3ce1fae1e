//! Completion in shells: the shell's script asks dtrain itself for the words that fit.

use crate::gpu_names;
use crate::tasks::TASKS;
use clap::ValueEnum;
use clap_complete::engine::{
    ArgValueCandidates, ArgValueCompleter, CompletionCandidate, PathCompleter, ValueCompleter,
};
use clap_complete::env::Shells;
use dtrain_common::env::DTRAIN_COMPLETE;
use dtrain_common::recipe::Source;
use std::ffi::OsStr;
use std::io;
use std::path::Path;

/// A shell that completes words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shell {
    Bash,
    Zsh,
    Fish,
    Elvish,
    Powershell,
}

impl Shell {
    fn name(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Zsh => "zsh",
            Self::Fish => "fish",
            Self::Elvish => "elvish",
            Self::Powershell => "powershell",
        }
    }

    /// Returns the script that a shell reads at its start.
    pub(crate) fn script(self) -> io::Result<Vec<u8>> {
        let shells = Shells::builtins();
        let completer = shells.completer(self.name()).ok_or_else(|| io::Error::other("an unknown shell"))?;
        let mut script = Vec::new();
        completer.write_registration(DTRAIN_COMPLETE, "dtrain", "dtrain", "dtrain", &mut script)?;
        Ok(script)
    }
}

/// Completes a recipe: built-in ones and files.
pub(super) fn recipes() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| words(current, &["toml"]))
}

/// Completes what a launch starts: recipes, scripts, and other files.
pub(super) fn programs() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| words(current, &[]))
}

/// Completes the task of a recipe.
pub(super) fn tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| TASKS.iter().map(|task| CompletionCandidate::new(task.name)).collect())
}

/// Completes the last entry of a list of GPUs.
pub(super) fn gpus() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let Some(current) = current.to_str() else { return Vec::new() };
        let (before, last) = current
            .rsplit_once(',')
            .map_or(("", current), |(_, last)| (&current[..current.len() - last.len()], last));
        let fitting = gpu_names::names().filter(|name| name.starts_with(last));
        fitting.map(|name| CompletionCandidate::new(format!("{before}{name}"))).collect()
    })
}

/// Returns built-in recipes, and files with one of these endings; without endings all files.
fn words(current: &OsStr, endings: &'static [&'static str]) -> Vec<CompletionCandidate> {
    let fits = |path: &Path| {
        let ending = path.extension().and_then(OsStr::to_str);
        endings.is_empty() || path.is_dir() || ending.is_some_and(|ending| endings.contains(&ending))
    };
    let begun = current.to_str().unwrap_or_default();
    let embedded = Source::embedded().iter().filter(|(name, _)| name.starts_with(begun));
    let mut all: Vec<_> = embedded
        .map(|(name, _)| CompletionCandidate::new(*name).help(Some("built-in recipe".into())))
        .collect();
    let files = PathCompleter::any().filter(fits).complete(current);
    all.extend(files.into_iter().filter(|file| file.get_value() != "."));
    all
}
