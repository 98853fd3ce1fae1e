//! The flags of `dtrain runs`.

use super::gpu::seconds;
use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct RunsArgs {
    #[command(subcommand)]
    pub(crate) command: Option<RunsCommand>,

    #[command(flatten)]
    pub(crate) which: WhichRuns,

    /// Print one line of JSON instead of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

impl RunsArgs {
    /// Returns the folder to search.
    pub(super) fn dir(&self) -> &Path {
        match &self.command {
            Some(RunsCommand::Watch(args)) => &args.which.dir,
            None => &self.which.dir,
        }
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum RunsCommand {
    /// Watch the runs on the whole terminal, with curves and logs.
    #[command(after_help = help!("runs-watch"))]
    Watch(WatchArgs),
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    #[command(flatten)]
    pub(crate) which: WhichRuns,

    /// Seconds between two updates.
    #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = seconds)]
    pub(crate) interval: f64,

    /// Redraw only the table, this many times.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct WhichRuns {
    /// Folder that holds run directories, or a run directory.
    #[arg(value_name = "DIR", default_value = "runs")]
    pub(crate) dir: PathBuf,

    /// Only runs in these states, such as `running,lost`.
    #[arg(long, value_enum, value_delimiter = ',', hide_possible_values = true, value_name = "STATE,...")]
    pub(crate) state: Vec<RunState>,
}

/// The state of a run. The words are part of the JSON form.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RunState {
    Running,
    /// Stopped on request with exit code 75: the same command resumes it.
    Requeue,
    Succeeded,
    Failed,
    OutOfMemory,
    Stopped,
    /// It has no result, and no process is known to run it.
    Lost,
    NotStarted,
    /// Its result cannot be read.
    #[default]
    Unreadable,
}

impl RunState {
    /// Returns the word of tables and of JSON.
    pub(crate) fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |word| word.get_name().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_has_one_word_everywhere() {
        let states = RunState::value_variants();
        let words: Vec<_> = states.iter().map(|state| state.word()).collect();
        assert_eq!(serde_json::to_value(states).ok(), serde_json::to_value(words).ok());
        let stated = [RunState::OutOfMemory, RunState::Stopped, RunState::NotStarted].map(RunState::word);
        assert_eq!(stated, ["out-of-memory", "stopped", "not-started"]);
    }
}
