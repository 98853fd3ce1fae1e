//! A micro-step by its graph.

use tch::Tensor;

use super::error::TrainError;
use super::graphs::{Sort, Way, obstacle};
use super::precision::Precision;
use super::reducer::Reducer;
use super::replay::shielded;
use super::trainer::Trainer;
use crate::memory::{self, Account, Books, MicroStepMemory};
use crate::state::Model;
use crate::tasks::{Batch, Loss, Mode};

impl Trainer<'_> {
    /// Takes a micro-step by its graph, where there is one or it is time for one; else it is to be taken kernel by kernel, and the
    /// answer is false.
    pub(super) fn replay_graph(
        &mut self,
        batch: &Batch,
        factor: f64,
        first: bool,
    ) -> Result<bool, TrainError> {
        let sort = Sort::of(batch, first);
        match self.graphs.way(sort, self.is_laid_out) {
            Way::Eager => return Ok(false),
            Way::Capture => {
                if !self.capture_graph(sort, batch)? {
                    return Ok(false);
                }
            }
            Way::Replay => {}
        }
        let Some(replayed) = self.graphs.replay::<TrainError>(sort, batch, factor)? else {
            return Ok(false);
        };
        self.reducer.replayed(replayed.used)?;
        self.tally.add(replayed.loss)?;
        self.account
            .replayed(Books::Device(self.device), replayed.memory)?;
        Ok(true)
    }

    fn capture_graph(&mut self, sort: Sort, batch: &Batch) -> Result<bool, TrainError> {
        let Self {
            graphs,
            model,
            precision,
            reducer,
            replay,
            device,
            ..
        } = self;
        let captured = match obstacle(model, replay.sync.is_some()) {
            Some(reason) => {
                graphs.refuse(reason);
                false
            }
            None => graphs.capture(sort, batch, |batch, factor| {
                let work = || capture(model, precision, reducer, Books::Device(*device), batch, factor);
                shielded(work).map_err(TrainError::from)?
            }),
        };
        if let Some(reason) = graphs.take_reason() {
            self.progress
                .note(format!("warning: no graphs from here on: {reason}"));
        }
        if !captured {
            // What the hooks believe of gradients that were never computed.
            self.reducer.forget_capture(sort.is_first())?;
        }
        Ok(captured)
    }
}

/// The work of a micro-step while it is captured: what it leaves of the loss, what it takes, and which parameters have gradients.
fn capture(
    model: &Model,
    precision: &Precision,
    reducer: &Reducer,
    books: Books<'_>,
    batch: &Batch,
    factor: &Tensor,
) -> Result<(Loss, MicroStepMemory, Vec<bool>), TrainError> {
    let mut account = Account::default();
    account.begin(books, 0)?;
    account.enter(books, memory::Phase::Forward)?;
    let loss = precision.run(|| model.task.loss(batch, Mode::Train))??;
    account.forward_done(books)?;
    account.enter(books, memory::Phase::Backward)?;
    model.recompute.backward(&loss.sum.f_mul(factor)?)?;
    let detached = Loss {
        sum: loss.sum.f_detach()?,
        weight: loss.weight.f_detach()?,
        sums: loss.sums.f_detach()?,
    };
    Ok((detached, account.micro_step(books)?, reducer.captured()?))
}
