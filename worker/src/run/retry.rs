//! Retries of steps: if a rank runs out of memory, all ranks drop the step and use smaller micro-batches.

use dtrain_common::batch::Partition;
use dtrain_recipe::Recompute;

use super::Training;
use super::follower::Followers;
use crate::course::RunPlan;
use crate::data::LoaderOptions;
use crate::memory::Owners;
use crate::metrics::{Line, MicroBatches, OomRecord};
use crate::run::error::Result;
use crate::step::recover::{Shortage, Shortages, describe_shortages};
use crate::step::{StepError, Warned};

/// The state for retries of steps.
pub(crate) struct RetryState {
    pub(crate) loader: LoaderOptions,
    /// The largest micro-batch of every stage at the start of the run.
    initial_micro_batches: Vec<usize>,
    /// The largest batch of an evaluation that did not run out of memory, if another did.
    pub(crate) evaluation_batch: Option<usize>,
    /// The unreadable test samples that were reported.
    pub(crate) warned_tests: Warned,
    recomputes_all: bool,
    pub(crate) count: u64,
}

impl RetryState {
    pub(crate) fn new(loader: LoaderOptions, plan: &RunPlan) -> Self {
        let first = plan.stages.iter().map(|stage| stage.partition.micro_batch());
        Self {
            loader,
            initial_micro_batches: first.collect(),
            evaluation_batch: None,
            warned_tests: Warned::default(),
            recomputes_all: false,
            count: 0,
        }
    }
}

/// Cleans up after a dropped step and prepares its retry with smaller micro-batches or, without smaller ones,
/// more recomputation. If nothing can save memory, returns `OutOfMemory` on all ranks.
pub(super) fn retry_step(
    training: &mut Training<'_>,
    followers: &mut Followers<'_>,
    shortages: &[Option<Shortage>],
) -> Result<()> {
    // The next micro-batch changes.
    training.stepper.feed.drop_prefetched();
    training.stepper.executor.drop_graphs();
    training.replica.model.buffers.rewind()?;
    training.exchange.begin(training.replica.model.recompute.count())?;
    let course = &mut training.course;
    let (stage, step) = (course.plan.stage_number(course.done), course.done + 1);
    let from = course.plan.stages[stage].partition;
    if let Some(smaller) = course.plan.with_smaller_micro_batches(stage) {
        course.plan = smaller;
        if course.plan.stages[stage].partition.is_spread() != from.is_spread() {
            training.exchange.forget_sums();
        }
    } else if recompute_all(training) {
        training.retry.recomputes_all = true;
        training.exchange.forget_sums();
    } else {
        let owners = owners(training);
        let mut error = training.stepper.limits.exhausted_error(shortages, from.micro_batch(), step, owners);
        if let StepError::OutOfMemory(exhausted) = &mut error {
            exhausted.reason = training.course.plan.needs().undivided_reason();
        }
        return Err(error.into());
    }
    training.stepper.limits.empty_cache();
    training.restart_loader()?;
    training.retry.count += 1;

    let to = training.course.plan.stages[stage].partition;
    let consequence = match to.micro_batch() < from.micro_batch() {
        true => format!("retrying the same samples with {}", describe_change(&from, &to)),
        false => "retrying the same samples with all segments recomputed in backward".to_owned(),
    };
    let sizes = MicroBatches { from: from.micro_batch(), to: to.micro_batch() };
    let recompute = training.retry.recomputes_all;
    let smaller = SmallerSteps { sizes, grad_accum_steps: to.grad_accum_steps(), recompute, consequence };
    report_oom(followers, shortages, "at", step, &smaller)
}

/// Recomputes all segments in backward. Returns false if the recipe forbids it, or it is already so.
fn recompute_all(training: &Training<'_>) -> bool {
    let recompute = &training.replica.model.recompute;
    let more = training.recipe.memory.recompute != Recompute::Off && recompute.count() < recompute.segments();
    if more {
        recompute.set_all();
    }
    more
}

/// Formats "micro-batch 4 instead of 8 (accumulation 2 instead of 1)".
fn describe_change(from: &Partition, to: &Partition) -> String {
    format!(
        "micro-batch {} instead of {} (accumulation {} instead of {})",
        to.micro_batch(),
        from.micro_batch(),
        to.grad_accum_steps(),
        from.grad_accum_steps()
    )
}

/// What follows after memory ran out.
pub(super) struct SmallerSteps {
    pub(super) sizes: MicroBatches,
    pub(super) grad_accum_steps: usize,
    pub(super) recompute: bool,
    /// The same in words.
    pub(super) consequence: String,
}

/// Reports that memory ran out "at" or "after" a step, and what follows.
pub(super) fn report_oom(
    followers: &mut Followers<'_>,
    shortages: &[Option<Shortage>],
    when: &str,
    step: u64,
    smaller: &SmallerSteps,
) -> Result<()> {
    let Some(Shortages { location, ranks, first }) = describe_shortages(shortages) else { return Ok(()) };
    let consequence = &smaller.consequence;
    let bytes = first.describe_bytes();
    followers.note(format!("out of memory {location} {when} step {step}: {bytes}; {consequence}"));
    followers.record(&Line::Oom(&OomRecord {
        step,
        ranks,
        phase: first.phase.name(),
        micro_batch: smaller.sizes,
        grad_accum_steps: smaller.grad_accum_steps,
        recompute: smaller.recompute,
        agree_ms: first.elapsed_ms(),
    }))
}

/// Returns this rank's bytes by owner at the peak of the failed step.
pub(super) fn owners(training: &mut Training<'_>) -> Owners {
    let memory = training.stepper.phases.account.finish();
    memory.map_or_else(|_| training.replica.model.owners(), |memory| memory.owners)
}

/// With `memory.grow`, doubles a reduced micro-batch at the start of an epoch, up to its first size.
pub(super) fn grow_micro_batch(training: &mut Training<'_>, followers: &mut Followers<'_>) -> Result<()> {
    let course = &mut training.course;
    let stage = course.plan.stage_number(course.done);
    let from = course.plan.stages[stage].partition;
    let begins = course.plan.position(course.done).step_in_epoch == 0;
    let first = training.retry.initial_micro_batches[stage];
    if !training.recipe.memory.grow || !begins || from.micro_batch() >= first {
        return Ok(());
    }
    let most = first.min(from.micro_batch() * 2);
    let Some(larger) = course.plan.with_micro_batches(stage, most) else { return Ok(()) };
    let to = larger.stages[stage].partition;
    if to.micro_batch() <= from.micro_batch() {
        return Ok(());
    }
    course.plan = larger;
    training.stepper.executor.drop_graphs();
    training.restart_loader()?;
    let change = describe_change(&from, &to);
    followers.note(format!("memory.grow: {change}"));
    Ok(())
}
