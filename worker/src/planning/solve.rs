//! Chooses the fitting cut with the least expected cost.
//!
//! Effective batch, learning rate, precision and sharding never change. Micro-steps and recomputed segments
//! cost time, by [`relative_time`]. A prediction may take seconds, so predictions are kept, and interpolation
//! over micro-batch and segments selects the cuts to predict.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::cost::relative_time;
use super::search::find_largest;
use super::{Cut, Gpu, PlannedDevice, Prediction, Predictor, Subject};
use dtrain_common::batch::{BatchError, Partition};
use dtrain_recipe::{Amp, MicroBatch, Recipe, Recompute};

/// Number of cuts with recompute that are predicted, the best by interpolation first.
const CANDIDATES: usize = 2;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CutRequest {
    pub(crate) ranks: usize,
    /// Bytes that the tensors of a rank may take.
    pub(crate) budget: u64,
    /// From the recipe, as the fields below; a number is never reduced.
    pub(crate) micro_batch: MicroBatch,
    /// Never `Auto`.
    pub(crate) amp: Amp,
    pub(crate) recompute: Recompute,
    pub(crate) shard_optimizer: bool,
}

/// The result. `partition` describes the division of the effective batch in words.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Choice {
    Fit {
        prediction: Prediction,
        partition: String,
        grad_accum_steps: usize,
        /// The expected time of a step, relative to the plain cut. Predicted.
        relative_time: f64,
    },
    NoFit {
        /// The smallest cut that the recipe allows.
        smallest: Prediction,
        partition: String,
        grad_accum_steps: usize,
    },
}

impl Choice {
    /// Returns the prediction of the chosen cut, or of the smallest.
    pub(crate) fn prediction(&self) -> &Prediction {
        match self {
            Self::Fit { prediction, .. } => prediction,
            Self::NoFit { smallest, .. } => smallest,
        }
    }
}

/// The subject of a prediction.
#[derive(PartialEq, Eq, Hash)]
struct Predicted {
    device: PlannedDevice,
    overrides: Vec<String>,
    cut: Cut,
}

/// Chooses cuts for one subject. Keeps predictions from one GPU to the next.
pub(crate) struct Solver<'a, P> {
    pub(super) subject: &'a Subject,
    predictor: &'a mut P,
    device: PlannedDevice,
    known: HashMap<Predicted, Prediction>,
}

impl<'a, P: Predictor> Solver<'a, P> {
    /// Makes a solver for `subject`, with predictions for the unchanged recipe.
    pub(crate) fn new(subject: &'a Subject, predictor: &'a mut P) -> Self {
        Self { subject, predictor, device: PlannedDevice::Gpu(None), known: HashMap::new() }
    }

    /// Predicts for another device from now on.
    pub(crate) fn set_device(&mut self, gpu: &Gpu) {
        self.device = PlannedDevice::of(gpu);
        self.predictor.set_device(self.device);
    }

    fn predict(&mut self, cut: Cut) -> Result<Prediction, P::Error> {
        self.predict_with(&[], cut)
    }

    /// Predicts `cut`, with `overrides` as `key=value` on top of the recipe; each cut is predicted once.
    pub(crate) fn predict_with(&mut self, overrides: &[String], cut: Cut) -> Result<Prediction, P::Error> {
        let key = Predicted { device: self.device, overrides: overrides.to_vec(), cut };
        if let Some(known) = self.known.get(&key) {
            return Ok(*known);
        }
        let prediction = self.predictor.predict(overrides, cut)?;
        self.known.insert(key, prediction);
        Ok(prediction)
    }

    /// Returns the cut of a step if memory does not matter: a rank's whole share at once, without recompute.
    pub(crate) fn plain(&mut self, request: &CutRequest) -> Result<Prediction, P::Error> {
        let whole = self.subject.partition(request.ranks, None)?;
        self.predict(request.cut(whole.micro_batch(), 0))
    }

    /// Returns the fitting cut with the least expected cost; of equal costs, the larger micro-batch.
    pub(crate) fn solve(&mut self, request: &CutRequest) -> Result<Choice, P::Error> {
        let partitions = self.partitions(request)?;
        let sizes: Vec<_> = partitions.iter().map(Partition::micro_batch).collect();
        let segments = self.subject.segments;
        let (least, most) = request.segments(segments);
        let plain = self.plain(request)?;
        let whole = self.subject.partition(request.ranks, None)?;
        let time = |prediction: &Prediction, partition: &Partition| {
            relative_time((&plain, &whole), (prediction, partition), segments)
        };
        let mut fitting: Vec<(usize, Prediction)> = Vec::new();
        let without = find_largest(&sizes, request.budget, |micro_batch| {
            let prediction = self.predict(request.cut(micro_batch, least))?;
            Ok::<_, P::Error>(Some(prediction.peak))
        })?;
        if let Some(position) = without {
            fitting.push((position, self.predict(request.cut(sizes[position], least))?));
        }
        let rest = without.map_or(0, |position| position + 1);
        if rest < sizes.len() && least < most {
            for position in self.promising(request, &partitions[rest..], time)? {
                let found = self.fewest_segments(request, sizes[position + rest], most)?;
                fitting.extend(found.map(|prediction| (position + rest, prediction)));
            }
            if fitting.is_empty() {
                let found = self.fewest_segments(request, sizes[0], most)?;
                fitting.extend(found.map(|prediction| (0, prediction)));
            }
        }
        let timed = fitting.into_iter().map(|(position, prediction)| {
            let relative_time = time(&prediction, &partitions[position]);
            (relative_time, position, prediction)
        });
        let best = timed.min_by(|(one, a, _), (other, b, _)| one.total_cmp(other).then(b.cmp(a)));
        let of = &partitions[best.map_or(0, |(_, position, _)| position)];
        let (partition, grad_accum_steps) = (of.to_string(), of.grad_accum_steps());
        Ok(match best {
            Some((relative_time, _, prediction)) => {
                Choice::Fit { prediction, partition, grad_accum_steps, relative_time }
            }
            None => Choice::NoFit { smallest: self.smallest(request)?, partition, grad_accum_steps },
        })
    }

    /// Predicts the smallest cut that the recipe allows, whatever the budget.
    pub(crate) fn smallest(&mut self, request: &CutRequest) -> Result<Prediction, P::Error> {
        let smallest = self.partitions(request)?[0].micro_batch();
        let (_, most) = request.segments(self.subject.segments);
        self.predict(request.cut(smallest, most))
    }

    /// Returns the partitions of a step for all micro-batches that the recipe allows, in ascending order.
    fn partitions(&self, request: &CutRequest) -> Result<Vec<Partition>, BatchError> {
        let cut = |limit| self.subject.partition(request.ranks, limit);
        if let MicroBatch::Value(size) = request.micro_batch {
            return Ok(vec![cut(Some(size))?]);
        }
        let whole = cut(None)?;
        let share = whole.micro_batch();
        let mut all = vec![whole];
        let mut micro_batch = share;
        while micro_batch > 1 {
            // The fewest micro-steps that reduce the micro-batch.
            micro_batch = share.div_ceil(share.div_ceil(micro_batch - 1));
            let Ok(partition) = cut(Some(micro_batch)) else { break };
            if partition.smallest_micro_batch() < self.subject.min_micro_batch {
                break;
            }
            // With groups, sizes may repeat.
            if all.last().is_some_and(|last| partition.micro_batch() < last.micro_batch()) {
                all.push(partition);
            }
        }
        all.reverse();
        Ok(all)
    }

    /// Returns positions of partitions that may be best with recompute; empty if nothing fits. Interpolates
    /// between the smallest and the largest of `partitions` (at least one), with all segments and with none.
    fn promising(
        &mut self,
        request: &CutRequest,
        partitions: &[Partition],
        time: impl Fn(&Prediction, &Partition) -> f64,
    ) -> Result<Vec<usize>, P::Error> {
        let segments = self.subject.segments;
        let sizes: Vec<_> = partitions.iter().map(Partition::micro_batch).collect();
        let (low, high) = (sizes[0], sizes[sizes.len() - 1]);
        if self.predict(request.cut(low, segments))?.peak > request.budget {
            return Ok(Vec::new());
        }
        let ends = |solver: &mut Self, recompute| {
            Ok::<_, P::Error>((
                solver.predict(request.cut(low, recompute))?,
                solver.predict(request.cut(high, recompute))?,
            ))
        };
        let (none, all) = (ends(self, 0)?, ends(self, segments)?);
        let between = |(from, to): &(Prediction, Prediction), size: usize| {
            let part = (size - low) as f64 / (high - low).max(1) as f64;
            from.peak as f64 + part * (to.peak as f64 - from.peak as f64)
        };
        let mut ranked: Vec<(f64, usize)> = Vec::new();
        for (position, &size) in sizes.iter().enumerate() {
            let (most, least) = (between(&none, size), between(&all, size));
            let over = (most - request.budget as f64).max(0.0);
            let part = over / (most - least).max(1.0);
            if part > 1.0 {
                continue;
            }
            let recompute = (part * segments as f64).ceil() as usize;
            let again = recompute as f64 / segments as f64;
            let guess = Prediction {
                cut: request.cut(size, recompute),
                flops: none.0.flops + again * (all.0.flops - none.0.flops),
                ..none.0
            };
            ranked.push((time(&guess, &partitions[position]), position));
        }
        ranked.sort_by(|(one, a), (other, b)| one.total_cmp(other).then(b.cmp(a)));
        let best = ranked.into_iter().take(CANDIDATES);
        Ok(best.map(|(_, position)| position).collect())
    }

    /// Predicts a micro-batch with the fewest segments, up to `most`, that make it fit; None if it cannot.
    fn fewest_segments(
        &mut self,
        request: &CutRequest,
        micro_batch: usize,
        most: usize,
    ) -> Result<Option<Prediction>, P::Error> {
        // Kept segments: 0 to `most`.
        let kept: Vec<_> = (0..=most).collect();
        let found = find_largest(&kept, request.budget, |kept| {
            let prediction = self.predict(request.cut(micro_batch, most - kept))?;
            Ok::<_, P::Error>(Some(prediction.peak))
        })?;
        found.map(|kept| self.predict(request.cut(micro_batch, most - kept))).transpose()
    }
}

impl CutRequest {
    /// Returns the choices that `recipe` leaves on `ranks` ranks with `budget` bytes for the tensors of each.
    /// `amp` is the precision that `precision.amp` results in on their device.
    pub(crate) fn new(recipe: &Recipe, ranks: usize, budget: u64, amp: Amp) -> Self {
        Self {
            ranks,
            budget,
            micro_batch: recipe.memory.micro_batch,
            amp,
            recompute: recipe.memory.recompute,
            shard_optimizer: recipe.memory.shard_optimizer,
        }
    }

    /// Returns the fewest and the most segments that may be recomputed, out of `all`.
    fn segments(&self, all: usize) -> (usize, usize) {
        match self.recompute {
            Recompute::Off => (0, 0),
            Recompute::On => (all, all),
            Recompute::Auto => (0, all),
        }
    }

    fn cut(&self, micro_batch: usize, recompute: usize) -> Cut {
        Cut {
            ranks: self.ranks,
            micro_batch,
            amp: self.amp,
            recompute,
            shard_optimizer: self.shard_optimizer,
        }
    }
}

#[cfg(test)]
mod tests;
