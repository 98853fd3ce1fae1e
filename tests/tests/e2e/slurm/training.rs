//! One training as a job, its interruptions, and the comparison with an uninterrupted one.

use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::faults::{Fault, Kind, Moment};
use dtrain_test_kit::process::{Signal, kill};
use dtrain_test_kit::programs;
use dtrain_test_kit::slurm::{Job, Slurm};
use dtrain_tests::runs::Run;
use serde_json::Value;

use super::plan::{NODE_KILLED, has_grace};

/// The time between two looks at the job.
const LOOK: Duration = Duration::from_millis(250);
/// The time for one attempt, or an uninterrupted run, on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);
/// Steps between checkpoints.
pub(super) const EVERY: u64 = 10;

/// An uninterrupted run.
pub(super) struct Reference {
    run: Run,
    pub(super) steps: u64,
    pub(super) took: Duration,
}

/// The end of an interrupted run.
#[derive(Default)]
pub(super) struct Outcome {
    /// Each with the number of steps that were repeated after it.
    pub(super) interruptions: Vec<(Kind, u64)>,
    pub(super) problems: Vec<String>,
}

impl Reference {
    /// Trains the recipe for this number of steps, in four epochs, as a job of two nodes.
    pub(super) fn train(slurm: &Slurm, steps: u64) -> Self {
        let begun = Instant::now();
        let id = slurm.submit_training(&arguments("uninterrupted", "30 min", steps));
        let job = end(slurm, &id);
        assert_eq!(
            (job.state.as_str(), job.restarts),
            ("COMPLETED", 0),
            "{}",
            log(slurm, "uninterrupted", &id)
        );
        let run = run(slurm, "uninterrupted");
        assert_eq!(recorded(&run), (1..=steps).collect::<Vec<_>>());
        Self { run, steps, took: begun.elapsed() }
    }

    /// Checks an interrupted run against this one.
    fn compare(&self, run: &Run, problems: &mut Vec<String>) {
        let mut expect = |holds: bool, what: &str| {
            if !holds {
                problems.push(what.to_owned());
            }
        };
        let latest = run.0.latest();
        let verified = Manifest::read(&latest).and_then(|manifest| manifest.verify(&latest));
        expect(verified.is_ok(), "the last checkpoint is damaged");
        expect(run.result().exit_code == Some(0), "result.json has another exit code than 0");
        expect(recorded(run) == recorded(&self.run), "the recorded steps are not each step once");
        expect(run.per_step("loss") == self.run.per_step("loss"), "the losses differ");
        expect(evaluated(run) == evaluated(&self.run), "the evaluations differ");
        expect(run.weights() == self.run.weights(), "the weights differ");
    }
}

/// Returns the arguments of `dtrain batch slurm`. The recipe is the built-in `demo`, shortened.
pub(super) fn arguments(name: &str, time: &str, steps: u64) -> Vec<String> {
    let more = ["--nodes", "2", "--time", time, "--signal-before", "20s", "--max-requeues", "1000"];
    let mut args = recipe(name, steps);
    args.extend(more.map(str::to_owned));
    args
}

/// Returns the arguments that choose and shorten the recipe.
pub(super) fn recipe(name: &str, steps: u64) -> Vec<String> {
    let (samples, every) = (steps / 4 * 16, format!("checkpoint.every={EVERY} steps"));
    let mut args = vec!["demo".to_owned(), format!("--set=data.train_samples={samples}")];
    let sets = ["train.effective_batch=16", "data.test_samples=16", "log.every_steps=1", &every];
    args.extend(sets.map(|set| format!("--set={set}")));
    args.extend(["--name", name, "--run-dir", name].map(str::to_owned));
    args
}

pub(super) fn run(slurm: &Slurm, name: &str) -> Run {
    Run(RunDir::new(slurm.path(name)))
}

/// Returns the numbers of the recorded steps.
pub(super) fn recorded(run: &Run) -> Vec<u64> {
    run.per_step("step").into_iter().map(|step| step as u64).collect()
}

fn evaluated(run: &Run) -> Vec<[Value; 3]> {
    run.evaluations().iter().map(|eval| ["step", "loss", "accuracy"].map(|key| eval[key].clone())).collect()
}

fn log(slurm: &Slurm, name: &str, id: &str) -> String {
    fs::read_to_string(slurm.path(&format!("{name}-{id}.out"))).unwrap_or_default()
}

/// Waits until the condition holds. The processes of a shorter pause would disturb the training.
#[track_caller]
pub(super) fn wait(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < LIMIT, "waited {LIMIT:?} for {what}");
        sleep(LOOK);
    }
}

/// Returns the job when it has ended.
pub(super) fn end(slurm: &Slurm, id: &str) -> Job {
    wait("the end of the job", || slurm.job(id).is_over());
    slurm.job(id)
}

/// A job and what its attempts did.
pub(super) struct Training<'a> {
    slurm: &'a Slurm,
    pub(super) id: String,
    name: &'a str,
    run: Run,
    /// The newest checkpoint's step when the attempt began.
    from: u64,
    /// The length of the log when the attempt began.
    logged: usize,
    outcome: Outcome,
}

/// Trains with these interruptions, in attempts of at most `time`.
pub(super) fn train(
    slurm: &Slurm,
    (name, time): (&str, &str),
    reference: &Reference,
    faults: &mut dyn Iterator<Item = Fault>,
) -> Outcome {
    let mut training = Training::submit(slurm, name, time, reference.steps);
    let job = training.drive(faults);
    let mut outcome = training.finish(&job, reference);
    if !outcome.problems.is_empty() {
        // The shared folder goes with Slurm.
        let kept = programs::build_folder().join(format!("slurm-{name}-{}", std::process::id()));
        let copied = Command::new("cp").arg("-a").args([slurm.path(""), kept.clone()]).status();
        let what =
            if copied.is_ok_and(|status| status.success()) { "files are" } else { "files could not be put" };
        outcome.problems.push(format!("{what} in {}", kept.display()));
    }
    outcome
}

impl<'a> Training<'a> {
    pub(super) fn submit(slurm: &'a Slurm, name: &'a str, time: &str, steps: u64) -> Self {
        let id = slurm.submit_training(&arguments(name, time, steps));
        Self { slurm, id, name, run: run(slurm, name), from: 0, logged: 0, outcome: Outcome::default() }
    }

    /// Interrupts the job until it has ended.
    fn drive(&mut self, faults: &mut dyn Iterator<Item = Fault>) -> Job {
        let mut fault = faults.next();
        let (mut injected, mut begun) = (None, Instant::now());
        loop {
            let job = self.slurm.job(&self.id);
            if job.is_over() {
                return job;
            }
            if job.state == "PENDING" && job.restarts > self.outcome.interruptions.len() {
                self.look_after_an_attempt(injected.take().unwrap_or(Kind::TimeLimit));
                (fault, begun) = (faults.next(), Instant::now());
            }
            let due = fault.filter(|it| job.state == "RUNNING" && self.has_reached(it.moment));
            if let Some(it) = due.filter(|it| injected.is_none() && it.kind != Kind::TimeLimit) {
                self.inject(it.kind);
                injected = Some(it.kind);
            }
            if begun.elapsed() > LIMIT {
                self.outcome.problems.push(format!("an attempt has not ended within {LIMIT:?}: {job:?}"));
                self.slurm.run(&["scancel", &self.id]);
                return job;
            }
            sleep(LOOK);
        }
    }

    fn inject(&self, kind: Kind) {
        match kind {
            Kind::Preemption | Kind::PreemptionAtOnce => {
                let grace = if kind == Kind::Preemption { "GraceTime=30" } else { "GraceTime=0" };
                self.slurm.run(&["scontrol", "update", "PartitionName=low", grace]);
                self.slurm.preempt();
            }
            Kind::Requeue => {
                self.slurm.run(&["scontrol", "requeue", &self.id]);
                self.slurm.job_processes().into_iter().for_each(|pid| kill(pid, Signal::KILL));
            }
            Kind::Signal => {
                self.slurm.run(&["scancel", "--signal=USR1", &self.id]);
            }
            other => panic!("{other} is no fault of this job"),
        }
    }

    /// Checks an attempt that has ended, before the next begins.
    pub(super) fn look_after_an_attempt(&mut self, kind: Kind) {
        self.slurm.run(&["scontrol", "hold", &self.id]);
        let number = self.outcome.interruptions.len() + 1;
        wait("the end of the job's processes", || self.slurm.job_processes().is_empty());
        let (newest, log) = (self.newest_checkpoint(), self.read_log());
        // Without any step, the attempt left the record of an earlier one as it was.
        let recorded = if last_step(&log).is_some() { self.newest_step() } else { newest };
        let repeated = recorded.saturating_sub(newest);
        let mut expect = |holds: bool, what: String| {
            if !holds {
                self.outcome.problems.push(format!("attempt {number}, {kind}: {what}"));
            }
        };
        expect(newest >= self.from, format!("the newest checkpoint went from {} to {newest}", self.from));
        expect(repeated < 2 * EVERY, format!("{repeated} steps were lost"));
        if has_grace(kind) {
            expect(repeated == 0, format!("{repeated} steps after the last checkpoint"));
        }
        if has_grace(kind) || kind == NODE_KILLED {
            expect(log.contains("dtrain: requeue "), "the script did not requeue the job".to_owned());
        }
        let (from, begins) = (self.from, begins(&log));
        expect(begins.is_none_or(|step| step == from), format!("began after {begins:?}, not after {from}"));
        eprintln!("  {number}: {kind}, {from} to {newest}, {repeated} steps to repeat");
        self.outcome.interruptions.push((kind, repeated));
        self.from = newest;
        self.slurm.run(&["scontrol", "release", &self.id]);
    }

    pub(super) fn finish(mut self, job: &Job, reference: &Reference) -> Outcome {
        let log = self.read_log();
        let is_fine = job.state == "COMPLETED" && job.exit_code == "0:0";
        if !is_fine || job.restarts != self.outcome.interruptions.len() {
            self.outcome.problems.push(format!("{job:?}\n{log}"));
            return self.outcome;
        }
        if begins(&log) != Some(self.from) {
            self.outcome.problems.push(format!("the last attempt did not begin after {}\n{log}", self.from));
        }
        if self.slurm.path(self.name).join("requeues.json").exists() {
            self.outcome.problems.push("the count of requeues was not removed".to_owned());
        }
        wait("the end of the job's processes", || self.slurm.job_processes().is_empty());
        reference.compare(&self.run, &mut self.outcome.problems);
        self.outcome
    }

    /// Returns what the log got since the attempt began, and begins a new attempt.
    fn read_log(&mut self) -> String {
        let new = self.log();
        self.logged += new.len();
        new
    }

    /// Returns what the log got since the attempt began.
    fn log(&self) -> String {
        log(self.slurm, self.name, &self.id).get(self.logged..).unwrap_or_default().to_owned()
    }

    /// Returns whether the attempt's workers were started and have made the steps before this moment.
    fn has_reached(&self, moment: Moment) -> bool {
        let log = self.log();
        let made = last_step(&log).map_or(0, |step| step.saturating_sub(self.from));
        log.contains("dtrain: started ") && matches!(moment, Moment::Steps(steps) if made >= steps)
    }

    fn newest_step(&self) -> u64 {
        // The last line may be incomplete.
        let text = fs::read_to_string(self.run.0.metrics()).unwrap_or_default();
        let mut steps =
            text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()?["step"].as_u64());
        steps.next_back().unwrap_or(0)
    }

    pub(super) fn newest_checkpoint(&self) -> u64 {
        let newest = self.run.0.newest_checkpoint().unwrap();
        newest.map_or(0, |(_, manifest)| manifest.step)
    }
}

/// Returns the last step that a log shows.
fn last_step(log: &str) -> Option<u64> {
    let mut steps =
        log.lines().filter_map(|line| line.strip_prefix("[rank 0] step ")?.split('/').next()?.parse().ok());
    steps.next_back()
}

/// Returns the step after which an attempt begins, by its log; `None` if it ended before it knew.
fn begins(log: &str) -> Option<u64> {
    let line = log.lines().find(|line| line.contains("; effective batch "))?;
    let step = line.rsplit_once("; resuming from ").and_then(|(_, path)| path.rsplit_once("step-"));
    Some(step.map_or(0, |(_, step)| step.parse().unwrap()))
}
