//! One case: a run that is killed, checked, resumed, and compared with an undisturbed run.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::faults::{Kind, Moment, Target};

use super::plan::{Plan, Resume, STEPS, earlier};
use super::run_files;
use super::running_launch::{LaunchOptions, RunningLaunch};
use crate::attempts::{attempts, resumed_after, stderr};
use crate::marked::{Mark, Process, Role};
use xtask::process::{Interrupted, Signals};

/// The largest difference of weights to the undisturbed run, if the number of ranks has changed.
pub(super) const TOLERANCE: f64 = 1e-6;

/// The time for a launch's processes to end; the case fails if some remain.
const EXIT_LIMIT: Duration = Duration::from_secs(10);

/// Tries of a case. After a run that ended before its kill, the next try kills earlier.
const TRIES: usize = 6;

/// The environment of all cases.
pub(super) struct CaseRunner<'a> {
    pub(super) signals: &'a Signals,
    /// The folder with dtrain and dtrain-worker.
    pub(super) programs: PathBuf,
    pub(super) recipe: PathBuf,
    /// The folder for runs.
    pub(super) work: PathBuf,
}

/// An undisturbed run.
pub(super) struct Reference {
    pub(super) run: RunDir,
    pub(super) took: Duration,
}

/// The outcome of a case.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    /// Whether the kill hit the write of a checkpoint.
    pub(super) during_write: bool,
    /// Steps that were repeated.
    pub(super) repeated_steps: u64,
    /// Number of intact checkpoints found.
    pub(super) intact: usize,
    pub(super) damaged: Vec<String>,
    /// Whether the last checkpoint has the expected bytes; only with the same number of ranks.
    pub(super) same_bytes: Option<bool>,
    /// The largest difference of weights to the expected ones; only with another number of ranks.
    pub(super) difference: Option<f64>,
    /// Time to the first step: from the kill if the launcher restarts, else from the second command.
    pub(super) to_step: Option<Duration>,
    /// Whether a kill came after the start of a rollback; `during_rollback`: whether during the rollback.
    pub(super) rolled_back: bool,
    pub(super) during_rollback: bool,
    /// All failed checks.
    pub(super) failures: Vec<String>,
}

/// The state when processes were killed.
struct KillState {
    at: Duration,
    during_write: bool,
    last_step: u64,
    /// Number of the next attempt.
    next: u32,
}

impl CaseRunner<'_> {
    /// Trains to the end without a kill.
    pub(super) fn reference(&self, ranks: usize) -> Result<Reference> {
        let run = RunDir::new(self.work.join(format!("reference-{ranks}")));
        let begun = Instant::now();
        let mut launched =
            RunningLaunch::start(&self.launch(&run, ranks, 0, false, 1_000_000 + ranks as u64))?;
        let (code, _) = launched.wait(&stderr(&run, 0))?;
        ensure!(code == 0, "the undisturbed run of {ranks} ranks ended with exit code {code}");
        let took = begun.elapsed();
        drop(launched);
        run_files::check_final_state(&run, STEPS)?;
        Ok(Reference { run, took })
    }

    /// Returns the folder of a case.
    pub(super) fn folder(&self, plan: &Plan) -> PathBuf {
        self.work.join(format!("case-{}", plan.number))
    }

    /// Runs a case. Its failures are in the outcome; an error is a signal or a failure of the machine.
    pub(super) fn run(&self, plan: &Plan, reference: &Reference) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        let mut plan = *plan;
        for number in 0..TRIES {
            let run = RunDir::new(self.folder(&plan).join(format!("run-{number}")));
            std::fs::create_dir_all(self.folder(&plan)).context("cannot create the folder of a case")?;
            match self.attempt(&plan, number, &run, reference, &mut outcome) {
                Ok(true) => return Ok(outcome),
                Ok(false) => plan.fault.moment = earlier(plan.fault.moment),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                Err(error) => {
                    outcome.failures.push(format!("{error:#}"));
                    return Ok(outcome);
                }
            }
        }
        outcome.failures.push(format!("the run ended before the kill in all {TRIES} tries"));
        Ok(outcome)
    }

    /// Returns whether the kill came before the end of the run.
    fn attempt(
        &self,
        plan: &Plan,
        number: usize,
        run: &RunDir,
        reference: &Reference,
        outcome: &mut Outcome,
    ) -> Result<bool> {
        let restarts = u32::from(plan.resume == Resume::Restart);
        let number = 3 * (TRIES as u64 * plan.number + number as u64);
        let mut first = RunningLaunch::start(&self.launch(run, plan.ranks, restarts, plan.sharded, number))?;
        let Some(killed) = kill(&mut first, plan, run, reference)? else {
            return Ok(false);
        };
        outcome.during_write = killed.during_write;
        verify_checkpoints(run, outcome)?;
        let log = stderr(run, killed.next);
        let (code, step) = first.wait(&log)?;
        let again = plan.resume != Resume::Restart;
        if code == 0 && (again || restarted(run)? == 0) {
            // The run ended before the signal came.
            return Ok(false);
        }
        check_no_process_left(&first.mark, "the kill")?;
        verify_checkpoints(run, outcome)?;
        outcome.to_step = step.map(|step| step.saturating_sub(killed.at));
        if again {
            ensure!(
                code == 4 || code == 137,
                "the killed launch ended with exit code {code}, expected 4 or 137"
            );
            if let Some(delay) = plan.rollback_delay {
                self.roll_back(plan, run, delay, number + 2, outcome)?;
            }
            let log = stderr(run, attempts(run));
            let launch = self.launch(run, plan.last_ranks(), 0, plan.sharded, number + 1);
            let mut second = RunningLaunch::start(&launch)?;
            let (code, step) = second.wait(&log)?;
            ensure!(code == 0, "the resumed run ended with exit code {code}");
            check_no_process_left(&second.mark, "the end of the resumed run")?;
            verify_checkpoints(run, outcome)?;
            outcome.to_step = step;
        } else {
            ensure!(code == 0, "the restarted run ended with exit code {code}");
        }
        if plan.rollback_delay.is_none() {
            outcome.repeated_steps = killed.last_step.saturating_sub(resumed_after(&log));
        }
        // Compares the weights even if another check failed.
        if let Err(error) = run_files::check_final_state(run, STEPS) {
            outcome.failures.push(format!("{error:#}"));
        }
        compare(plan, run, reference, outcome)?;
        Ok(true)
    }

    /// Rolls back to the earliest checkpoint, and kills all workers `delay` after the rollback begins. Needs
    /// two or more checkpoints; with fewer, does nothing.
    fn roll_back(
        &self,
        plan: &Plan,
        run: &RunDir,
        delay: Duration,
        number: u64,
        outcome: &mut Outcome,
    ) -> Result<()> {
        let steps = run.steps().context("cannot list the checkpoints")?;
        let Some((to, later)) = steps.split_first().filter(|(_, later)| !later.is_empty()) else {
            return Ok(());
        };
        let from = run.checkpoint(*to);
        let (before, _) = run_files::rollbacks(run);
        let log = stderr(run, attempts(run));
        let launch = LaunchOptions {
            from: Some(&from),
            ..self.launch(run, plan.last_ranks(), 0, plan.sharded, number)
        };
        let mut launched = RunningLaunch::start(&launch)?;
        let begun = launched.wait_for(|| (run_files::rollbacks(run).0 > before).then_some(()))?;
        ensure!(begun.is_some(), "the run ended before its rollback to step {to}");
        std::thread::sleep(delay);
        launched.mark.workers().into_iter().for_each(Process::kill);
        outcome.rolled_back = true;
        outcome.during_rollback = run_files::rollbacks(run).1;
        let (code, _) = launched.wait(&log)?;
        ensure!(
            code == 4 || code == 137,
            "the run killed in its rollback ended with exit code {code}, expected 4 or 137"
        );
        check_no_process_left(&launched.mark, "the kill in a rollback")?;
        run_files::check_none_lost(run, later)?;
        verify_checkpoints(run, outcome)
    }

    fn launch<'a>(
        &'a self,
        run: &'a RunDir,
        ranks: usize,
        restarts: u32,
        sharded: bool,
        number: u64,
    ) -> LaunchOptions<'a> {
        LaunchOptions {
            signals: self.signals,
            programs: &self.programs,
            recipe: &self.recipe,
            run,
            ranks,
            restarts,
            sharded,
            from: None,
            number,
        }
    }
}

/// Waits for the moment and kills; returns `None` if the run ended before.
fn kill(
    launched: &mut RunningLaunch<'_>,
    plan: &Plan,
    run: &RunDir,
    reference: &Reference,
) -> Result<Option<KillState>> {
    let begun = Instant::now();
    let reached = match plan.fault.moment {
        Moment::Write { step, delay } => {
            let is_writing = || run_files::step_being_written(run).filter(|written| *written >= step);
            let seen = launched.wait_for(is_writing)?;
            if seen.is_some() {
                std::thread::sleep(delay);
            }
            seen.is_some()
        }
        Moment::Share(share) => {
            let at = reference.took.mul_f64(share);
            launched.wait_for(|| (begun.elapsed() >= at).then_some(()))?.is_some()
        }
        other => bail!("{other} is no moment of these cases"),
    };
    if !reached {
        return Ok(None);
    }
    let Some(found) = victims(launched, plan)? else {
        return Ok(None);
    };
    // Read before the kill: a launcher restarts within milliseconds.
    let next = attempts(run);
    found.into_iter().for_each(Process::kill);
    Ok(Some(KillState {
        at: launched.age(),
        during_write: run_files::step_being_written(run).is_some(),
        last_step: run_files::last_step(run),
        next,
    }))
}

/// Waits for processes to kill, and returns them.
fn victims(launched: &mut RunningLaunch<'_>, plan: &Plan) -> Result<Option<Vec<Process>>> {
    let Kind::Kill(target) = plan.fault.kind else { bail!("{} is no kill", plan.fault.kind) };
    let mark = Mark::clone(&launched.mark);
    launched.wait_for(|| {
        let found = match target {
            Target::Workers => mark.workers(),
            Target::Worker => {
                let all = mark.workers();
                let chosen = plan.victim.checked_rem(all.len() as u64);
                chosen.map(|index| all[index as usize]).into_iter().collect()
            }
            Target::Guardian | Target::Launcher | Target::Agent | Target::Everything => {
                let mut halves = mark.processes();
                let launcher = plan.victim.is_multiple_of(2)
                    && halves.iter().any(|process| process.role == Role::Launcher);
                let role = if launcher { Role::Launcher } else { Role::Guardian };
                halves.retain(|process| process.role == role);
                halves
            }
        };
        (!found.is_empty()).then_some(found)
    })
}

/// Verifies all present checkpoints.
fn verify_checkpoints(run: &RunDir, outcome: &mut Outcome) -> Result<()> {
    let (intact, damaged) = run_files::verify(run)?;
    outcome.intact += intact;
    for text in damaged {
        if !outcome.damaged.contains(&text) {
            outcome.failures.push(format!("damaged: {text}"));
            outcome.damaged.push(text);
        }
    }
    Ok(())
}

fn check_no_process_left(mark: &Mark, after: &str) -> Result<()> {
    if mark.wait_until_gone(EXIT_LIMIT) {
        return Ok(());
    }
    let left: Vec<String> = mark.processes().iter().map(|process| process.to_string()).collect();
    bail!("processes remain {} s after {after}: {}", EXIT_LIMIT.as_secs(), left.join(", "));
}

fn restarted(run: &RunDir) -> Result<u32> {
    let result = RunResult::read(&run.result()).context("result.json")?;
    Ok(result.context("no result.json")?.restarts)
}

fn compare(plan: &Plan, run: &RunDir, reference: &Reference, outcome: &mut Outcome) -> Result<()> {
    if plan.last_ranks() == plan.ranks {
        let differing = run_files::first_differing_file(run, &reference.run)?;
        outcome.same_bytes = Some(differing.is_none());
        if let Some(file) = differing {
            let difference = run_files::difference(run, &reference.run, file)?;
            outcome.failures.push(format!("{file} differs, by at most {difference:e}"));
        }
        return Ok(());
    }
    let difference = run_files::difference(run, &reference.run, run_files::FILES[0])?;
    outcome.difference = Some(difference);
    if difference.is_nan() || difference > TOLERANCE {
        outcome.failures.push(format!("the weights differ by {difference:e}"));
    }
    Ok(())
}
