//! The boundaries within a training: ends a phase, begins the next and reports it.

use dtrain_recipe::AtStageStart;
use dtrain_torch_shim::memory;
use tch::Device;

use super::Training;
use super::course::LaidOutPhase;
use super::follower::Followers;
use crate::course::PhaseId;
use crate::memory::report;
use crate::metrics::{Line, StageRecord};
use crate::run::error::Result;
use crate::state::Keep;
use crate::step::StepObserver;
use crate::tasks;

/// Begins the phase of the next step, if it is another one. Every rank calls it before every step. Without
/// stages only the first phase exists.
pub(super) fn enter(training: &mut Training<'_>, followers: &mut Followers<'_>) -> Result<()> {
    let id = training.course.plan.phase_at(training.course.done);
    if id != training.course.current.id {
        change_phase(training, followers, id)?;
    }
    match std::mem::replace(&mut training.course.current.is_announced, true) {
        true => Ok(()),
        false => announce(training, followers),
    }
}

/// Moves to another phase. Frees old memory before it allocates, to need little memory.
fn change_phase(training: &mut Training<'_>, followers: &mut Followers<'_>, id: PhaseId) -> Result<()> {
    followers.before_update()?;
    training.stepper.executor.begin_phase();
    let is_new_stage = id.stage != training.course.current.id.stage;
    let continues = |passage| passage == AtStageStart::Continue;
    if is_new_stage {
        let segments = training.course.plan.stages[id.stage].recompute;
        training.replica.model.recompute.set(segments);
        let before = training.course.current.id;
        begin_stage(training, id)?;
        let loss = |id| &training.course.stages.stage(id).recipe.model.loss;
        let is_other_loss = loss(before) != loss(id)
            && training.course.best.so_far.as_ref().is_some_and(|best| best.by.figure == "loss");
        if is_other_loss {
            followers.note(
                "the stage has another loss, which the best checkpoint so far cannot be compared with: the best one is chosen anew"
                    .to_owned(),
            );
        }
        if is_other_loss || !continues(training.course.stages.stage(id).best) {
            // The next checkpoint is the best.
            training.course.best.so_far = None;
        }
    }
    // A new stage has a new optimizer; within a stage the optimizer continues.
    let keep = Keep {
        moments: !is_new_stage,
        average: !is_new_stage || continues(training.course.stages.stage(id).ema),
    };
    training.exchange.release();
    let device = training.device();
    let model = &mut training.replica.model;
    model.table.leave_phase(keep)?;
    memory::empty_cache(device)?;
    if is_new_stage {
        note_memory(followers, device)?;
    }
    model.enter_phase(&training.course.stages, id, training.exchange.ranks())?;
    training.exchange.adapt_to(&model.table)?;
    training.replica.set_shadow()?;
    // The length of a status depends on the parameters.
    training.exchange.prepare_statuses(&*training.replica.model.task.facts().train)?;
    // The new layout is a guess until the first backward pass.
    training.course.current = LaidOutPhase::new(id);
    if !is_new_stage {
        note_memory(followers, device)?;
    }
    Ok(())
}

pub(super) fn begin_stage(training: &mut Training<'_>, id: PhaseId) -> Result<()> {
    Ok(tasks::begin_stage(training.replica.model.task.as_mut(), training.recipe, id.stage)?)
}

fn note_memory(followers: &mut Followers<'_>, device: Device) -> Result<()> {
    followers.note(report(device)?.line(device));
    Ok(())
}

fn announce(training: &mut Training<'_>, followers: &mut Followers<'_>) -> Result<()> {
    let (course, model) = (&training.course, &training.replica.model);
    let (stage, id) = (course.stage(), course.current.id);
    let Some(name) = stage.name.clone() else { return Ok(()) };
    let begins = course.plan.phase(id).steps.start;
    let parameters = model.registry.parameter_count() as u64;
    let trained = model.table.trained_elements();
    let (rate, cut) = (stage.rates.schedule.peak, stage.partition);
    let (number, stages) = (id.stage + 1, course.plan.stages.len());
    let from = match course.done {
        done if done == stage.steps.start => String::new(),
        done => format!(" from step {} on", done + 1),
    };
    let counts = format!("{} of {} parameters trained", format_count(trained), format_count(parameters));
    let details = match id.phase > 0 && course.done == begins {
        true => counts,
        false => format!("{}, {counts}, effective batch {cut}, learning rate {rate:e}", stage.length),
    };
    followers.note(format!("stage {number} of {stages}, {name:?}{from}: {details}"));
    if course.done != begins {
        return Ok(());
    }
    let record = StageRecord {
        step: begins + 1,
        number,
        name,
        phase: id.phase + 1,
        parameters,
        trained,
        effective_batch: cut.effective_batch(),
        micro_batch: cut.micro_batch(),
        grad_accum_steps: cut.grad_accum_steps(),
        learning_rate: rate,
        optimizer_bytes: model.owners().optimizer,
        memory: report(training.device())?,
    };
    followers.record(&Line::Stage(&record))
}

/// Formats a number of parameters: `18.5 M`.
fn format_count(parameters: u64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let number = parameters as f64;
    let unit = UNITS.iter().find(|(size, _)| number >= *size);
    unit.map_or_else(|| parameters.to_string(), |(size, unit)| format!("{:.1} {unit}", number / size))
}

#[cfg(test)]
mod tests {
    use super::format_count;

    #[test]
    fn parameter_counts_have_units() {
        let counted = [7, 1_500, 18_500_000, 27_349_999, 6_700_000_000].map(format_count);
        assert_eq!(counted, ["7", "1.5 k", "18.5 M", "27.3 M", "6.7 G"]);
    }
}
