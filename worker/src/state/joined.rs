//! Buffers that a step does not join by the mean: `model.state`.
//!
//! Every micro-batch starts from the buffer as it was before the step. What it adds stands at the places of its samples, and
//! is summed over the ranks: each row is 0 on all ranks but one, so the sum rounds nothing. So the buffer after the step is
//! that of one micro-batch with all samples of the step.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

use dtrain_recipe::Join;
use dtrain_torch_shim::symbolic::is_symbolic;
use tch::{Device, Kind, TchError, Tensor};

use super::error::{Result, StateError};
use super::layout::{Block, Slot};
use crate::collectives::{Collective, ReduceOp};
use crate::out_of_memory::retry_on_oom;
use crate::tensors::{is_complex, is_floating};

/// A buffer with its join.
#[derive(Debug)]
pub(super) struct Joined {
    /// The number of its block among the blocks of statistics.
    pub(super) flat: usize,
    slot: Slot,
    way: Way,
}

#[derive(Debug)]
enum Way {
    /// The value after the step's last sample, in a dtype that ranks can reduce.
    Last(Option<Tensor>),
    Append(Queue),
}

/// A queue along the first dimension.
#[derive(Debug, Default)]
struct Queue {
    /// The rows of all samples of the step, in a dtype that ranks can reduce.
    rows: Option<Tensor>,
    /// The end at which new rows go, known after a step.
    end: Option<End>,
    /// How many micro-batches of this step have added at the front and at the back: float64.
    seen: Option<Tensor>,
}

/// An end of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// `cat([new, queue])[:length]`
    Front,
    /// `cat([queue, new])[-length:]`
    Back,
}

/// Returns the buffers of `blocks` that `joins` names. The mean needs no treatment.
pub(super) fn of<'a>(
    joins: &BTreeMap<String, Join>,
    blocks: impl Iterator<Item = &'a Block> + Clone,
) -> Result<Vec<Joined>> {
    let slots = blocks.enumerate().flat_map(|(flat, block)| {
        let all = block.slots.iter();
        all.map(move |slot| (flat, block.kind, slot))
    });
    let mut found = Vec::new();
    for (name, join) in joins {
        let Some((flat, kind, slot)) = slots.clone().find(|(.., slot)| slot.name == *name) else {
            let known = slots.map(|(.., slot)| slot.name.clone()).collect();
            return Err(StateError::NoBuffer { name: name.clone(), known });
        };
        let unfit = |problem| StateError::Join { name: name.clone(), problem };
        let way = match join {
            Join::Mean if is_floating(kind) || is_complex(kind) => continue,
            _ if is_complex(kind) => return Err(unfit("complex numbers are joined by the \"mean\" alone")),
            Join::Mean => return Err(unfit("whole numbers have no mean; set \"last\"")),
            Join::Append if slot.shape.is_empty() => {
                return Err(unfit("one number is no queue; set \"mean\" or \"last\""));
            }
            Join::Append => Way::Append(Queue::default()),
            Join::Last => Way::Last(None),
        };
        found.push(Joined { flat, slot: slot.clone(), way });
    }
    Ok(found)
}

/// Returns zeros of this shape, of earlier steps if they fit. Retries, because this rank cannot report a failure.
fn zeros(known: Option<Tensor>, shape: &[i64], kind: Kind, device: Device) -> Result<Tensor, TchError> {
    match known.filter(|known| known.size() == shape) {
        Some(mut known) => known.f_zero_(),
        None => retry_on_oom(device, || Tensor::f_zeros(shape, (kind, device))),
    }
}

impl Joined {
    /// Begins a step of `samples` samples. `kind`: the dtype in which ranks reduce the buffer's values.
    pub(super) fn begin(&mut self, samples: usize, kind: Kind, device: Device) -> Result<(), TchError> {
        match &mut self.way {
            Way::Last(value) => *value = Some(zeros(value.take(), &self.slot.shape, kind, device)?),
            Way::Append(queue) => {
                let shape: Vec<i64> =
                    [samples as i64].into_iter().chain(self.slot.shape[1..].iter().copied()).collect();
                queue.rows = Some(zeros(queue.rows.take(), &shape, kind, device)?);
                queue.seen = Some(zeros(queue.seen.take(), &[2], Kind::Double, device)?);
            }
        }
        Ok(())
    }

    /// Records what the micro-batch at `places` of the step's `samples` has made of the values `before`.
    pub(super) fn record(
        &mut self,
        data: &Tensor,
        before: &Tensor,
        places: &Range<usize>,
        samples: usize,
    ) -> Result<()> {
        let (value, before) = (self.slot.view(data)?, self.slot.view(before)?);
        match &mut self.way {
            Way::Last(found) => {
                if let Some(found) = found.as_mut().filter(|_| places.end == samples) {
                    found.f_copy_(&value)?;
                }
                Ok(())
            }
            Way::Append(queue) => queue.record(&value, &before, places).map_err(|error| match error {
                Unfit::Torch(error) => error.into(),
                Unfit::Queue(problem) => StateError::Join { name: self.slot.name.clone(), problem },
            }),
        }
    }

    /// Returns the tensors that are summed over the ranks.
    pub(super) fn parts(&self) -> impl Iterator<Item = &Tensor> {
        let [first, second] = match &self.way {
            Way::Last(value) => [value.as_ref(), None],
            Way::Append(Queue { rows, seen, .. }) => [rows.as_ref(), seen.as_ref()],
        };
        first.into_iter().chain(second)
    }

    /// Makes the joined value the buffer's.
    pub(super) fn commit(&mut self, data: &Tensor, before: &Tensor) -> Result<()> {
        let (mut value, before) = (self.slot.view(data)?, self.slot.view(before)?);
        match &mut self.way {
            Way::Last(Some(found)) => value.f_copy_(found)?,
            Way::Append(queue) => {
                let unfit = |problem| StateError::Join { name: self.slot.name.clone(), problem };
                let end = queue.known_end()?.ok_or_else(|| unfit(DIFFERS))?;
                let Some(rows) = &queue.rows else { return Ok(()) };
                let (rows, length) = (rows.f_to_kind(before.kind())?, value.size()[0]);
                value.f_copy_(&match end {
                    End::Front => Tensor::f_cat(&[rows, before], 0)?.f_narrow(0, 0, length)?,
                    End::Back => {
                        let all = Tensor::f_cat(&[before, rows], 0)?;
                        all.f_narrow(0, all.size()[0] - length, length)?
                    }
                })?;
            }
            Way::Last(None) => {}
        }
        Ok(())
    }
}

const DIFFERS: &str = "\"append\" is for a queue that gets one row for each sample, at its front or its back: \
                       `cat([new, queue])[:length]` or `cat([queue, new])[-length:]`; write it so, or remove the name";
const UNCLEAR: &str =
    "the rows of the queue repeat, so its two ends look alike; begin with a queue of different rows";
const SHORT: &str = "the queue has no more rows than a micro-batch has samples; make it longer, or set memory.micro_batch lower";

/// Why a micro-batch cannot be joined.
enum Unfit {
    Torch(TchError),
    Queue(&'static str),
}

impl From<TchError> for Unfit {
    fn from(error: TchError) -> Self {
        Self::Torch(error)
    }
}

impl Queue {
    fn record(&mut self, value: &Tensor, before: &Tensor, places: &Range<usize>) -> Result<(), Unfit> {
        let (length, new) = (value.size()[0], places.len() as i64);
        let kept = length - new;
        if kept <= 0 {
            return Err(Unfit::Queue(SHORT));
        }
        let end = match self.end {
            Some(end) => end,
            None => {
                // Only in a process's first steps: it waits for the device.
                let is_at = |kept_at, from| -> Result<bool, TchError> {
                    let (after, old) = (value.f_narrow(0, kept_at, kept)?, before.f_narrow(0, from, kept)?);
                    after.f_equal(&old)
                };
                // A rehearsal has no values.
                let (front, back) =
                    if is_symbolic() { (true, false) } else { (is_at(new, 0)?, is_at(0, new)?) };
                let seen = match (front, back) {
                    (false, false) => return Err(Unfit::Queue(DIFFERS)),
                    (true, false) => [1.0, 0.0],
                    (false, true) => [0.0, 1.0],
                    // Such as a queue of zeros that gets zeros.
                    (true, true) if value.f_narrow(0, 0, new)?.f_equal(&value.f_narrow(0, kept, new)?)? => {
                        [0.0, 0.0]
                    }
                    (true, true) => return Err(Unfit::Queue(UNCLEAR)),
                };
                if let Some(all) = &mut self.seen {
                    *all = all.f_add_(&Tensor::f_from_slice(&seen)?.f_to_device(all.device())?)?;
                }
                if front { End::Front } else { End::Back }
            }
        };
        if let Some(rows) = &self.rows {
            let from = if end == End::Front { 0 } else { kept };
            rows.f_narrow(0, places.start as i64, new)?.f_copy_(&value.f_narrow(0, from, new)?)?;
        }
        Ok(())
    }

    /// Returns where the micro-batches of all ranks have added; None if they differ.
    fn known_end(&mut self) -> Result<Option<End>, TchError> {
        if is_symbolic() {
            return Ok(Some(End::Front));
        }
        if self.end.is_none()
            && let Some(seen) = &self.seen
        {
            let [front, back] = [seen.f_double_value(&[0])?, seen.f_double_value(&[1])?];
            if front > 0.0 && back > 0.0 {
                return Ok(None);
            }
            self.end = match front.total_cmp(&back) {
                Ordering::Greater => Some(End::Front),
                Ordering::Less => Some(End::Back),
                // Equal rows: either end will do for this step.
                Ordering::Equal => return Ok(Some(End::Front)),
            };
        }
        Ok(self.end)
    }
}

/// Returns the sums over ranks of these buffers' parts.
pub(super) fn sums(all: &[Joined]) -> impl Iterator<Item = Collective<'_>> {
    all.iter().flat_map(Joined::parts).map(|part| Collective::AllReduce(part, ReduceOp::Sum))
}
