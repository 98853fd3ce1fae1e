//! Refuses jobs that a batch system cannot run as described.

use crate::array::{Array, MOST_RUNS};
use crate::k8s::{self, fields::Refused};
use crate::spec::{Extra, JobSpec, System, Target};
use crate::taken;
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
    #[error("--array and several recipes both make an array; leave --array out, or give one recipe")]
    ArrayOfRecipes,
    #[error("--array %{number} has no effect on one run; give several recipes, or `--array RUNS%{number}`")]
    NothingAtOnce { number: u32 },
    #[error("--directive {text:?} is not an option of {system}; write {form}")]
    NoDirective { text: String, system: &'static str, form: &'static str },
    #[error("--directive {text:?}: the script sets {name} already; give the flag of `dtrain batch`")]
    DirectiveTaken { text: String, name: String },
    #[error(
        "--directive {text:?} begins as JSON and is none: {reason}; write names and texts with double quotes"
    )]
    NoJson { text: String, reason: String },
    #[error("an array has at most {MOST_RUNS} runs, not {runs}; give fewer recipes")]
    TooManyRecipes { runs: u32 },
    #[error(
        "the job name {name:?} has characters that Kubernetes refuses; give a --name of lower-case letters, digits and `-`"
    )]
    PodName { name: String },
    #[error("a job of Kubernetes runs in a container; give --container IMAGE, an image that has dtrain")]
    NoImage,
    #[error(
        "--constraint {text:?} is no label of nodes; write `KEY=VALUE`, several with commas between them"
    )]
    Label { text: String },
    #[error(
        "the run directory {run_dir} is outside of the volume {path} and would be lost; give --run-dir below {path}"
    )]
    OutsideVolume { run_dir: String, path: String },
    #[error("the run directory would end with its pod; give --volume CLAIM:PATH, or --max-requeues 0")]
    NoVolume,
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
        self.check_recipes()?;
        if let (Some(number), None) = (self.runs_at_once, self.runs()) {
            return Err(SpecError::NothingAtOnce { number });
        }
        if system == System::K8s {
            self.check_pods()?;
        }
        self.check_directives(system)?;
        self.check_lines(system)
    }

    fn check_directives(&self, system: System) -> Result<(), SpecError> {
        let plain = JobSpec { extra: Extra::default(), ..self.clone() };
        let mut job = (system == System::K8s).then(|| k8s::first_job(&plain));
        for directive in &self.extra.directives {
            let text = directive.as_str().to_owned();
            let (is_option, form) = match system {
                System::K8s => {
                    (directive.field().is_some(), "a field and its value, `serviceAccountName=trainer`")
                }
                _ => (text.starts_with('-'), "it as in a script, `--exclude=node7`"),
            };
            if !is_option {
                return Err(SpecError::NoDirective { text, system: system.name(), form });
            }
            let name = match &mut job {
                None => taken::first(system, &plain, directive),
                Some(job) => match k8s::fields::set(job, directive) {
                    Ok(()) => None,
                    Err(Refused::Taken) => Some(directive.name().to_owned()),
                    Err(Refused::NoJson(reason)) => return Err(SpecError::NoJson { text, reason }),
                },
            };
            if let Some(name) = name {
                return Err(SpecError::DirectiveTaken { text, name });
            }
        }
        Ok(())
    }

    fn check_recipes(&self) -> Result<(), SpecError> {
        let Target::Recipes { recipes, .. } = &self.work.target else { return Ok(()) };
        match self.runs() {
            Some(_) if recipes.len() > 1 && self.array.is_some() => Err(SpecError::ArrayOfRecipes),
            Some(runs) if runs > MOST_RUNS => Err(SpecError::TooManyRecipes { runs }),
            _ => Ok(()),
        }
    }

    fn check_flags(&self, system: System) -> Result<(), SpecError> {
        let account = &self.account;
        let partition = ("--partition", account.partition.is_some());
        let queue = ("--queue", account.queue.is_some());
        let qos = ("--qos", account.qos.is_some());
        let volume = ("--volume", self.setup.volume.is_some(), "only k8s has claims; leave it out");
        let at_once = self.runs_at_once.is_some();
        let resource =
            ("--gpu-resource", self.size.gpu_resource.is_some(), "only k8s has such names; leave it out");
        const QUEUE: &str = "its word is --queue";
        const QOS: &str = "leave it out";
        let refused = match system {
            System::Slurm => vec![with(queue, "Slurm's word is --partition"), volume, resource],
            System::Pbs | System::Lsf => vec![with(partition, QUEUE), with(qos, QOS), volume, resource],
            System::Flux => vec![
                with(partition, QUEUE),
                with(qos, QOS),
                volume,
                resource,
                ("--mem", self.size.memory.is_some(), "Flux shares no memory; leave it out"),
                ("--array", self.array.is_some(), "write one script for each run, with --set and --run-dir"),
                ("an array of recipes", self.runs().is_some(), "write one script for each recipe"),
            ],
            System::K8s => vec![
                with(partition, "its word is --queue, of Kueue"),
                with(qos, QOS),
                ("--array with %", at_once, "give a --queue of Kueue, which bounds what runs at once"),
                ("--account", account.account.is_some(), "choose the namespace with `kubectl --namespace`"),
            ],
        };
        match refused.into_iter().find(|(_, given, _)| *given) {
            Some((flag, _, remedy)) => Err(SpecError::NoEffect { flag, system: system.name(), remedy }),
            None => Ok(()),
        }
    }

    /// Pods see only the image and the volume.
    fn check_pods(&self) -> Result<(), SpecError> {
        let name = self.name.as_str();
        if name.contains(|c: char| !c.is_ascii_lowercase() && !c.is_ascii_digit() && c != '-')
            || name.ends_with('-')
        {
            return Err(SpecError::PodName { name: name.to_owned() });
        }
        if self.setup.container.is_none() {
            return Err(SpecError::NoImage);
        }
        if let Some(constraint) = &self.account.constraint
            && constraint.as_str().split(',').any(|label| !is_label(label))
        {
            return Err(SpecError::Label { text: constraint.as_str().to_owned() });
        }
        let run_dir = self.work.run_dir.text();
        match (&self.setup.volume, &self.work.target) {
            (Some(volume), _) if !volume.keeps(run_dir) => {
                Err(SpecError::OutsideVolume { run_dir: run_dir.to_owned(), path: volume.path.clone() })
            }
            (None, Target::Recipes { .. }) if self.max_requeues > 0 => Err(SpecError::NoVolume),
            _ => Ok(()),
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
            Target::Recipes { recipes, set } => recipes.iter().chain(set).collect::<Vec<_>>(),
            Target::Program(words) => words.iter().collect(),
        };
        let words =
            words.into_iter().chain([&self.work.run_dir, &self.work.dtrain]).chain(&self.setup.container);
        let words = words.chain(&self.extra.launch);
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

/// A flag, whether it is given, and what to do instead.
type Flag = (&'static str, bool, &'static str);

fn with((flag, given): (&'static str, bool), remedy: &'static str) -> Flag {
    (flag, given, remedy)
}

/// `KEY=VALUE`.
fn is_label(text: &str) -> bool {
    text.split_once('=')
        .is_some_and(|(key, value)| !key.is_empty() && !value.is_empty() && !value.contains('='))
}

#[cfg(test)]
mod tests;
