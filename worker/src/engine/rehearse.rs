//! A step that is rehearsed: the same operations on the same model as one that counts, of which only the memory matters. The
//! tensors are symbolic, or real in a process that does nothing else.

use tch::{Kind, Tensor};

use super::batch_sync::RankSync;
use super::error::TrainError;
use super::precision::Precision;
use super::reducer::{ReduceOptions, Reducer};
use super::status::{Status, Tally};
use super::step::update_bytes;
use super::verdict::{Counted, Decides, Decision, Question, judge, keep};
use crate::collectives::Ranks;
use crate::memory::{Account, Books, Phase, StepMemory};
use crate::state::Model;
use crate::tasks::{Batch, Mode};

/// Rehearses a step of `micro_batches`, which are made one after the other, and says what it took. The model's parameters
/// and state are of no further use where the tensors are real.
///
/// # Errors
/// As a step; out of memory where it does not fit.
pub(crate) fn rehearse(
    model: &mut Model,
    ranks: &Ranks,
    options: ReduceOptions,
    precision: &mut Precision,
    sync: Option<&RankSync>,
    books: Books<'_>,
    mut micro_batches: impl ExactSizeIterator<Item = Result<Batch, TrainError>>,
) -> Result<StepMemory, TrainError> {
    let mut reducer = Reducer::new(ranks.clone(), &model.table, options)?;
    let mut account = Account::default();
    account.set_state(model.owners());
    account.begin(books, 0)?;
    let mut status = Status::blank(model.task.sums(), ranks.size());
    reducer.expect(status.clone())?;
    let mut tally = Tally::new(model.task.sums(), model.table.device())?;
    model.buffers.begin(ranks.rank())?;
    reducer.begin()?;
    while let Some(batch) = micro_batches.next() {
        if let Some(sync) = sync {
            sync.begin();
        }
        account.enter(books, Phase::Forward)?;
        let batch = batch?;
        let loss = precision.run(|| model.task.loss(&batch, Mode::Train))??;
        account.forward_done(books)?;
        account.enter(books, Phase::Backward)?;
        if micro_batches.len() == 0 {
            reducer.arm();
        }
        let scaled = loss.sum.f_mul_scalar(precision.loss_scale())?;
        model.recompute.backward(&scaled)?;
        model.buffers.take(1.0)?;
        tally.add(&loss)?;
        if let Some(sync) = sync {
            sync.end()?;
        }
    }
    account.enter(books, Phase::Reduce)?;
    reducer.start_rest()?;
    let mut figures = None;
    match Decides::of(model.table.device()) {
        Decides::Host => status.totals = tally.totals()?,
        Decides::Device => figures = Some(tally.figures()?),
    }
    precision.prepare()?;
    let room = Tensor::f_empty(
        [update_bytes(&model.table) as i64],
        (Kind::Uint8, model.table.device()),
    )?;
    let status = reducer.finish_beside(&model.buffers, status, figures.as_ref())?;
    drop(room);
    account.enter(books, Phase::Update)?;
    update(model, &reducer, precision, &status, figures)?;
    Ok(account.finish(books)?)
}

/// All that an update does, whatever the figures say.
fn update(
    model: &mut Model,
    reducer: &Reducer,
    precision: &mut Precision,
    status: &Status,
    figures: Option<Tensor>,
) -> Result<(), TrainError> {
    let used = vec![true; status.uses.len()];
    match figures {
        None => {
            reducer.judge(&model.table, precision.unscale(&model.table)?)?;
            model.table.scale_grad(1.0)?;
            model.optimizer.step(&mut model.table, 0.0, &used, None)?;
            keep(model, reducer)
        }
        Some(figures) => {
            let question = Question {
                expected: 1.0,
                clip: Some(1.0),
            };
            let counted = Counted::OnDevice(figures);
            let verdict = judge(reducer, &model.table, precision, None, counted, question)?;
            match verdict.update(model, reducer, None, 0.0, &used)?.decision {
                Decision::Commit { .. } => Ok(()),
                // A loss scale is too large at first: what this step left out the others do.
                Decision::Skip => keep(model, reducer),
            }
        }
    }
}

#[cfg(test)]
mod tests;
