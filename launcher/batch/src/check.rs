//! Refuses jobs that a batch system cannot run as described.

use crate::array::Array;
use crate::spec::{JobSpec, System, Target};
use dtrain_common::time::format_time;
use std::time::Duration;

/// The longest time between signal and limit that Slurm reads, in seconds.
const SLURM_LONGEST_SIGNAL_S: u64 = 65535;

/// Why a job cannot be written for a batch system.
#[derive(Debug, thiserror::Error, Clone, PartialEq, Eq)]
pub enum SpecError {
    #[error("{flag} has no effect on {system}; {remedy}")]
    NoEffect { flag: &'static str, system: &'static str, remedy: &'static str },
    #[error("--signal-before has no effect without a time limit; give --time, or leave it out")]
    SignalWithoutLimit,
    #[error("--time {} is not longer than --signal-before {}; give a longer time or a later signal",
            format_time(*time), format_time(*before))]
    SignalTooEarly { time: Duration, before: Duration },
    #[error("--signal-before {} is longer than {} s, the most that slurm allows; give a later signal",
            format_time(*before), SLURM_LONGEST_SIGNAL_S)]
    SignalTooLong { before: Duration },
    #[error("--array {key}=... sets a key of a recipe and has no effect on a program; give a number of runs")]
    SweepOfProgram { key: String },
    #[error(
        "{place} has the line {line:?}, which {system} would read as an option; give the option as a flag, or remove it"
    )]
    Directive { place: &'static str, line: String, system: &'static str },
}

impl JobSpec {
    /// Returns an error if a part of the job has no effect on the system, contradicts another part, or would
    /// be read as an option of the system.
    pub fn check(&self, system: System) -> Result<(), SpecError> {
        self.check_flags(system)?;
        self.check_signal(system)?;
        if let (Target::Program(_), Some(Array::Sweep { key, .. })) = (&self.work.target, &self.array) {
            return Err(SpecError::SweepOfProgram { key: key.clone() });
        }
        self.check_lines(system)
    }

    fn check_flags(&self, system: System) -> Result<(), SpecError> {
        let account = &self.account;
        let refused = match system {
            System::Slurm => [("--queue", account.queue.is_some(), "Slurm's word is --partition")],
        };
        match refused.into_iter().find(|(_, given, _)| *given) {
            Some((flag, _, remedy)) => Err(SpecError::NoEffect { flag, system: system.name(), remedy }),
            None => Ok(()),
        }
    }

    fn check_signal(&self, system: System) -> Result<(), SpecError> {
        let Some((time, before)) =
            self.time.as_ref().and_then(|limit| Some((limit.time, limit.signal_before?)))
        else {
            return Ok(());
        };
        if time <= before {
            return Err(SpecError::SignalTooEarly { time, before });
        }
        if system == System::Slurm && before.as_secs() > SLURM_LONGEST_SIGNAL_S {
            return Err(SpecError::SignalTooLong { before });
        }
        Ok(())
    }

    /// Some systems read options also below the first command.
    fn check_lines(&self, system: System) -> Result<(), SpecError> {
        let setup = self.setup.commands.iter().map(|text| ("--env-setup", text.as_str()));
        let words = match &self.work.target {
            Target::Recipe { recipe, set } => [recipe].into_iter().chain(set).collect::<Vec<_>>(),
            Target::Program(words) => words.iter().collect(),
        };
        let words =
            words.into_iter().chain([&self.work.run_dir, &self.work.dtrain]).chain(&self.setup.container);
        for (place, text) in setup.chain(words.map(|word| ("the command", word.text()))) {
            let is_option =
                |line: &&str| system.directives().iter().any(|mark| line.trim_start().starts_with(mark));
            if let Some(line) = text.lines().find(is_option) {
                return Err(SpecError::Directive { place, line: line.to_owned(), system: system.name() });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
