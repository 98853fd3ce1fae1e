//! A checked launch: the common part, and the parts of a training or a program.

use super::devices::Devices;
use super::limit::LimitWithNote;
use super::numa::CoreBinding;
use super::routing::{Routing, Sinks};
use anyhow::Context;
use dtrain_agent::cluster::ranks::Placement;
use dtrain_agent::io::output::Message;
use dtrain_agent::io::process::WorkerSpec;
use dtrain_agent::local::TimeLimit;
use dtrain_common::exit::ExitStatus;
use dtrain_common::files::{self, write_atomic};
use dtrain_common::recipe::{AnyRecipe, Resolved};
use dtrain_common::run_dir::{Resume, RunDir, RunLock, Start};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// A launch that has passed every check.
#[derive(Debug)]
pub(crate) struct LaunchPlan {
    /// Number of workers of this node.
    pub(crate) nproc: usize,
    /// This node's part in the attempt.
    pub(crate) placement: Placement,
    pub(crate) devices: Devices,
    /// The one GPU that each worker sees as local rank 0, if each has its own. Empty without GPUs.
    pub(crate) own_devices: Option<Vec<String>>,
    /// The CPU cores of each worker.
    pub(crate) core_binding: CoreBinding,
    pub(crate) command: Command,
    /// The directory to write; for a recipe always set, after [`LaunchPlan::join`].
    pub(crate) run_dir: Option<RunDir>,
    pub(crate) limit: Option<TimeLimit>,
    pub(crate) routing: Routing,
    /// The first messages, one sentence each.
    pub(crate) headline: Vec<String>,
    pub(crate) kind: PlanKind,
}

pub(super) fn headline(
    notes: Vec<String>,
    summary: String,
    core_binding: &CoreBinding,
    limited: Option<&LimitWithNote>,
) -> Vec<String> {
    let limit = limited.map(|limited| limited.note.clone());
    let lines = notes.into_iter().chain([summary]);
    lines.chain(core_binding.note()).chain(limit).collect()
}

/// The program to execute.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) program: PathBuf,
    pub(crate) arg0: OsString,
    pub(crate) args: Vec<OsString>,
}

/// The role of this node in the run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// The run's only node.
    Alone,
    /// One of several nodes: it claims the run directory, and writes the result.
    Leader,
    /// One of several nodes. The leader has claimed the run directory, which may be the same one.
    Member,
}

/// The kind of workers.
#[derive(Debug)]
pub(crate) enum PlanKind {
    Training(Box<Training>),
    Program(Program),
}

impl LaunchPlan {
    pub(crate) fn training(&self) -> Option<&Training> {
        match &self.kind {
            PlanKind::Training(training) => Some(training),
            PlanKind::Program(_) => None,
        }
    }

    fn claim(&self) -> Option<&RunLock> {
        self.training()?.lock.as_ref()
    }

    /// Returns what must be the same on all nodes of a run, by name.
    pub(crate) fn fingerprints(&self) -> anyhow::Result<BTreeMap<String, String>> {
        let mut found = BTreeMap::from([("dtrain version".into(), env!("CARGO_PKG_VERSION").into())]);
        if let Some(training) = self.training() {
            found.extend(values(&training.stated)?);
            let worker = &self.command.program;
            let hash = files::hash(worker).with_context(|| format!("cannot read {}", worker.display()))?;
            found.insert("dtrain-worker".into(), hash);
        }
        Ok(found)
    }

    /// Takes the leader's recipe and its run directory, unless the user has named one; on another node.
    /// Returns a message about it.
    pub(crate) fn join(&mut self, leaders: Option<&Path>, recipe: Option<String>) -> Option<String> {
        let PlanKind::Training(training) = &mut self.kind else { return None };
        training.text = recipe;
        let named = self.run_dir.as_ref().map(|run_dir| run_dir.root().to_owned());
        let run_dir = RunDir::new(named.or(leaders.map(Path::to_owned))?);
        self.command.args = trainer_args(&run_dir, Start::Fresh, &Resume::Auto);
        let text = format!("run directory {}", run_dir.root().display());
        self.run_dir = Some(run_dir);
        Some(text)
    }

    /// Writes the recipe for this node's workers, unless the leader's file is in the same place.
    pub(crate) fn write_recipe(&self) -> anyhow::Result<()> {
        let (Some(training), Some(run_dir)) = (self.training(), &self.run_dir) else { return Ok(()) };
        let path = run_dir.recipe();
        let text = training.text.as_ref().context("the leader of the nodes has sent no recipe")?;
        if fs::read(&path).is_ok_and(|found| found == text.as_bytes()) {
            return Ok(());
        }
        fs::create_dir_all(run_dir.root())
            .with_context(|| format!("cannot create the folder {}", run_dir.root().display()))?;
        write_atomic(&path, text.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Returns the folder of the logs, if they are kept.
    pub(crate) fn logs(&self) -> Option<PathBuf> {
        self.run_dir.as_ref().map(RunDir::logs).or_else(|| self.routing.log_dir.clone())
    }

    /// Gives this node its part in the next attempt.
    pub(crate) fn place(&mut self, placement: Placement) {
        self.placement = placement;
        self.routing.place(placement);
    }

    /// Returns the rank of a worker of this node.
    pub(crate) fn rank(&self, local_rank: usize) -> usize {
        self.placement.first_rank + local_rank
    }

    /// Prepares a restart: a training resumes from its newest checkpoint, a program starts again.
    pub(crate) fn prepare_restart(&mut self) -> anyhow::Result<()> {
        let (PlanKind::Training(training), Some(run_dir)) = (&self.kind, &self.run_dir) else {
            return Ok(());
        };
        // Before its first checkpoint, a run starts as at first, perhaps from another run's checkpoint.
        if let Some(asked) = &training.asked
            && !run_dir.resumes_newest(asked)?
        {
            return Ok(());
        }
        let Some(resolved) = &training.resolved else { return Ok(()) };
        let start = run_dir.prepare(resolved, &Resume::Auto)?;
        if start != Start::Fresh {
            self.command.args = trainer_args(run_dir, start, &Resume::Auto);
        }
        Ok(())
    }

    /// Returns the checkpoint given with `--resume`, if the run has begun with it.
    pub(crate) fn resumed_from(&self) -> Option<&Path> {
        let asked = self.training()?.asked.as_deref()?;
        let has_begun = self.run_dir.as_ref()?.has_begun_with(asked);
        has_begun.unwrap_or(false).then_some(asked)
    }

    /// Returns whether another launch may resume from a checkpoint of this run: one that cannot be read now counts.
    pub(crate) fn has_checkpoint(&self) -> bool {
        let run_dir = self.training().and(self.run_dir.as_ref());
        run_dir.is_some_and(RunDir::may_have_checkpoint)
    }

    /// Returns the folder of the checkpoint from which another launch would resume.
    pub(crate) fn newest_checkpoint(&self) -> Option<PathBuf> {
        let run_dir = self.training().and(self.run_dir.as_ref());
        let (folder, _) = run_dir?.newest_checkpoint().ok()??;
        Some(folder)
    }

    /// Returns whether another run has taken the run directory: writing there is forbidden then.
    pub(crate) fn is_evicted(&self) -> bool {
        self.claim().is_some_and(RunLock::is_lost)
    }

    /// Returns a message about the claim to the run directory, once.
    pub(crate) fn lock_warning(&self) -> Option<String> {
        self.claim().and_then(RunLock::renewal_warning)
    }

    /// Returns whether copies of the state are kept in memory, for restarts.
    pub(crate) fn keeps_copies(&self) -> bool {
        self.training().is_some_and(|training| training.stated.checkpoint.in_memory)
    }

    /// Returns the exit codes that make a restart useless: a wrong recipe, a model that does not fit.
    pub(crate) fn permanent_failures(&self) -> &'static [i32] {
        self.training().map_or(&[], |_| &[2, 3])
    }

    /// Returns the exit code of workers that stopped on request.
    pub(crate) fn requeue_code(&self) -> Option<i32> {
        self.training().map(|_| i32::from(ExitStatus::Requeue.code()))
    }

    /// Returns whether the workers are dtrain's own, whose usage errors are the launcher's.
    pub(crate) fn is_of_dtrain(&self) -> bool {
        match &self.kind {
            PlanKind::Training(_) => true,
            PlanKind::Program(program) => program.is_question,
        }
    }

    /// Returns whether the launcher serves the store where the workers meet.
    pub(crate) fn serves_store(&self) -> bool {
        matches!(&self.kind, PlanKind::Program(program) if program.serves_store)
    }

    /// Leaves the port to the program.
    pub(crate) fn serve_no_store(&mut self) {
        if let PlanKind::Program(program) = &mut self.kind {
            program.serves_store = false;
        }
    }

    pub(crate) fn headline(&self) -> Vec<Message> {
        self.headline.iter().map(|line| format!("dtrain: {line}").into()).collect()
    }

    /// Returns the process to start for `rank`.
    pub(crate) fn worker(&self, rank: usize, env: Vec<(&'static str, OsString)>) -> WorkerSpec {
        let (reads, is_named) = match &self.kind {
            PlanKind::Program(Program { stdin: StandardInput::All, .. }) => (true, false),
            PlanKind::Program(Program { stdin: StandardInput::Rank(named), .. }) => {
                (*named == rank, *named == rank)
            }
            _ => (false, false),
        };
        WorkerSpec {
            program: self.command.program.clone(),
            arg0: self.command.arg0.clone(),
            args: self.command.args.clone(),
            env,
            cpus: self.core_binding.of(rank),
            inherit_stdin: reads,
            wiring: self.routing.wiring(rank, Sinks::now(), is_named),
            open_files: None,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Training {
    /// The recipe as the user states it to this node.
    pub(super) stated: AnyRecipe,
    /// What the trainer says about it; none on a member, for which the leader asks.
    pub(super) resolved: Option<Resolved>,
    /// The recipe as resolved for all nodes; known to a member when it joins.
    pub(super) text: Option<String>,
    /// Keeps other runs out of the run directory; on the leader's node only.
    pub(super) lock: Option<RunLock>,
    /// The command that continues the run; empty on a member.
    pub(crate) again: String,
    /// The checkpoint that `--resume` names.
    pub(super) asked: Option<PathBuf>,
}

impl Training {
    /// Returns the recipe as resolved for all nodes; `None` on a member that has not joined.
    pub(crate) fn text(&self) -> Option<&str> {
        self.text.as_deref()
    }

    /// Returns the command that the recipe states for the end of the run.
    pub(crate) fn on_end(&self) -> Option<&str> {
        self.stated.log.on_end.as_deref()
    }
}

#[derive(Debug)]
pub(crate) struct Program {
    pub(super) stdin: StandardInput,
    /// Whether it is dtrain's worker, which answers a question.
    pub(super) is_question: bool,
    /// Whether the launcher serves the store where the workers meet.
    pub(super) serves_store: bool,
}

/// The workers that read the launcher's standard input; the others read an empty input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandardInput {
    All,
    Rank(usize),
    None,
}

/// Returns the hash of each value of a recipe, by name.
fn values(recipe: &AnyRecipe) -> anyhow::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut add = |key: &str, value: &Value| {
        let hash = blake3::hash(value.to_string().as_bytes());
        found.insert(format!("recipe's {key}"), hash.to_hex()[..16].to_owned());
    };
    for (section, value) in serde_json::to_value(recipe)?.as_object().into_iter().flatten() {
        match value {
            Value::Object(keys) => {
                keys.iter().for_each(|(key, value)| add(&format!("{section}.{key}"), value))
            }
            value => add(section, value),
        }
    }
    Ok(found)
}

/// Returns the trainer's arguments. The trainer itself finds the newest complete checkpoint.
pub(super) fn trainer_args(run_dir: &RunDir, start: Start, resume: &Resume) -> Vec<OsString> {
    let resume = match start {
        Start::Fresh => "never".into(),
        Start::Resume(_) if *resume == Resume::Auto => "auto".into(),
        Start::Resume(checkpoint) => checkpoint.into(),
    };
    let mut args = vec![run_dir.recipe().into(), "--run-dir".into(), run_dir.root().into()];
    args.extend(["--prepared".into(), "--resume".into(), resume]);
    args
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn recipes_of_nodes_are_compared_by_key() {
        let values = |set: &str| values(&AnyRecipe::load("demo", &[set.to_owned()]).unwrap()).unwrap();
        let (one, other) = (values("optim.lr=0.1"), values("optim.lr=0.2"));
        let differs: Vec<_> = one.iter().filter(|(key, hash)| other.get(*key) != Some(*hash)).collect();
        assert_eq!(differs.len(), 1, "{differs:?}");
        assert_eq!(differs[0].0, "recipe's optim.lr");
    }
}
