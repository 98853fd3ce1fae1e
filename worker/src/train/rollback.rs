//! A run that resumes from an earlier step than its newest.

use std::path::Path;

use dtrain_common::manifest::BestSoFar;
use dtrain_common::run_dir::{RunDir, SetAside};
use dtrain_common::text::counted;
use dtrain_recipe::Recipe;

use crate::run::{BestKeeper, Patience};
use crate::setup::Setup;
use crate::setup::error::WorkerError;
use crate::setup::opening::Opening;

/// Sets later steps in the run directory aside, when nothing can refuse the run any more.
pub(super) fn set_later_steps_aside(
    recipe: &Recipe,
    run_dir: &RunDir,
    checkpoint: &Path,
    completed: Option<SetAside>,
    opening: &mut Opening,
    setup: &mut Setup,
) -> Result<(), WorkerError> {
    let (done, resumed) = (setup.course.done, &mut setup.resumed);
    let is_wanted = |best: &BestSoFar| Some(&best.by) == recipe.checkpoint.best.as_ref();
    let best = resumed.as_mut().and_then(|resumed| resumed.manifest.best.take()).filter(is_wanted);
    let (checkpoint, set_aside) =
        run_dir.start_from(checkpoint, done, best.as_ref().map(|best| best.step))?;
    setup.notes.extend(completed.iter().chain(&set_aside).filter_map(describe_rollback));
    opening.is_foreign = opening.copies.is_none() && !run_dir.checkpoint(done).is_dir();
    // Only a best checkpoint in this run's folder counts. If the best one of a copy in memory was never
    // written, the previous one is best again.
    opening.best = best.and_then(|best| match run_dir.checkpoint(best.step).is_dir() {
        true => Some(best),
        false => run_dir.linked_best(done).filter(is_wanted),
    });
    opening.resume = Some(checkpoint);
    if opening.is_foreign {
        // The count of another run is not this run's.
        setup.course.patience = Patience::new(recipe.train.stop_early.clone(), None);
    }
    setup.course.best = BestKeeper::new(recipe.checkpoint.best.clone(), opening.best.clone());
    Ok(())
}

/// Describes the checkpoints that were set aside; None if there were no such checkpoints.
fn describe_rollback(set_aside: &SetAside) -> Option<String> {
    let (first, last) = (set_aside.steps.first()?, set_aside.steps.last()?);
    let count = counted(set_aside.steps.len(), "later checkpoint");
    Some(format!(
        "set aside {count} (steps {first} to {last}) in {}; restore one with --resume PATH",
        set_aside.folder.display()
    ))
}
