//! A step that ran out of memory on some rank is dropped by all of them and taken again in smaller micro-batches.

use crate::memory_report::Owners;

use super::Training;
use super::followers::Followers;
use crate::data::LoaderOptions;
use crate::engine::{RunPlan, TrainError};
use crate::metrics::{Line, MicroBatches, OomRecord};
use crate::step::recover::{Shortage, place};

/// Makes the model take less memory in another way than by smaller micro-batches, the same on every rank, and says whether there
/// was one left: asked when the micro-batch is the smallest that the model takes.
pub(crate) type SaveMore = Box<dyn FnMut() -> bool>;

/// What a training needs to take a step again.
pub(crate) struct Again {
    /// How samples are loaded.
    pub(crate) loader: LoaderOptions,
    /// The largest micro-batch of every stage, with which the run began.
    first: Vec<usize>,
    /// The largest batch of an evaluation that has not run out of memory, where one has.
    pub(crate) evaluation: Option<usize>,
    save_more: SaveMore,
    /// Whether it has.
    saves_more: bool,
    /// Steps that were taken again.
    pub(crate) count: u64,
}

impl Again {
    /// For a run that begins with `plan`.
    pub(crate) fn new(loader: LoaderOptions, plan: &RunPlan, save_more: SaveMore) -> Self {
        Self {
            loader,
            first: plan
                .stages()
                .iter()
                .map(|stage| stage.partition.micro_batch())
                .collect(),
            evaluation: None,
            save_more,
            saves_more: false,
            count: 0,
        }
    }
}

/// Leaves nothing of the step that the ranks have just dropped, and makes ready to take it again in smaller micro-batches,
/// or with more computed twice where the model takes no smaller ones.
///
/// # Errors
/// `OutOfMemory`, on all ranks, where nothing is left that would save memory.
pub(super) fn start_again(
    training: &mut Training<'_>,
    followers: &mut Followers<'_>,
    shortages: &[Option<Shortage>],
) -> Result<(), TrainError> {
    // The next micro-batch is another one now.
    training.stepper.feed.forget();
    training.stepper.executor.forget();
    training.replica.model.buffers.rewind()?;
    training.exchange.begin()?;
    let course = &mut training.course;
    let stage = course.plan.stage_number(course.done);
    let from = course.plan.stages()[stage].partition;
    if let Some(smaller) = course.plan.in_smaller_micro_batches(stage) {
        course.plan = smaller;
        if course.plan.stages()[stage].partition.is_spread() != from.is_spread() {
            training.exchange.forget_sums();
        }
    } else if (training.again.save_more)() {
        training.again.saves_more = true;
        training.exchange.forget_sums();
    } else {
        let (step, owners) = (course.done + 1, owners(training));
        return Err(training
            .stepper
            .limits
            .exhausted(shortages, from.micro_batch(), step, owners));
    }
    training.stepper.limits.free();
    training.restart_loader()?;
    training.again.count += 1;

    let to = training.course.plan.stage(training.course.done).partition;
    let consequence = if to.micro_batch() < from.micro_batch() {
        format!(
            "the micro-batch goes from {} to {} (accumulation {} to {})",
            from.micro_batch(),
            to.micro_batch(),
            from.grad_accum_steps(),
            to.grad_accum_steps()
        )
    } else {
        "more of the model is computed again in backward".to_owned()
    };
    let step = training.course.done + 1;
    if let Some((place, _, first)) = place(shortages) {
        followers.note(format!(
            "out of memory {place} at step {step}: {}; {consequence}, the step is taken again with the same samples",
            first.bytes()
        ));
    }
    let sizes = MicroBatches {
        from: from.micro_batch(),
        to: to.micro_batch(),
    };
    tell(followers, shortages, step, sizes, |record| OomRecord {
        grad_accum_steps: to.grad_accum_steps(),
        recompute: training.again.saves_more,
        ..record
    })
}

/// Tells that memory ran out at `step`, and what is smaller since; `change` completes the record.
pub(super) fn tell(
    followers: &mut Followers<'_>,
    shortages: &[Option<Shortage>],
    step: u64,
    micro_batch: MicroBatches,
    change: impl FnOnce(OomRecord) -> OomRecord,
) -> Result<(), TrainError> {
    let Some((_, ranks, first)) = place(shortages) else {
        return Ok(());
    };
    let record = change(OomRecord {
        step,
        ranks,
        phase: first.phase.name(),
        micro_batch,
        grad_accum_steps: 1,
        recompute: false,
        agree_ms: first.elapsed_ms(),
    });
    followers.hear(&Line::Oom(&record))
}

/// Where the bytes of this rank were when the step that failed took the most.
pub(super) fn owners(training: &mut Training<'_>) -> Owners {
    let memory = training.stepper.phases.account.finish();
    memory.map_or_else(|_| training.replica.model.owners(), |memory| memory.owners)
}

/// At the beginning of an epoch, where the recipe asks for it: a micro-batch that memory has made smaller is doubled, up to
/// what the run began with.
pub(super) fn grow(training: &mut Training<'_>, followers: &mut Followers<'_>) -> Result<(), TrainError> {
    let course = &mut training.course;
    let stage = course.plan.stage_number(course.done);
    let from = course.plan.stages()[stage].partition;
    let begins = course.plan.position(course.done).step_in_epoch == 0;
    let first = training.again.first[stage];
    if !training.recipe.memory.grow || !begins || from.micro_batch() >= first {
        return Ok(());
    }
    let most = first.min(from.micro_batch() * 2);
    let Some(larger) = course
        .plan
        .in_micro_batches(stage, most)
        .filter(|plan| plan.stages()[stage].partition.micro_batch() > from.micro_batch())
    else {
        return Ok(());
    };
    course.plan = larger;
    let to = course.plan.stages()[stage].partition;
    training.stepper.executor.forget();
    training.restart_loader()?;
    followers.note(format!(
        "the micro-batch grows from {} to {} (accumulation {} to {}), as memory.grow asks for",
        from.micro_batch(),
        to.micro_batch(),
        from.grad_accum_steps(),
        to.grad_accum_steps()
    ));
    Ok(())
}
