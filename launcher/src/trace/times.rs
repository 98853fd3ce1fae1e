//! The time of a step by its parts.

use super::intervals::{Interval, covered, nested};
use dtrain_common::trace::{Event, Kind, RankTrace};
use std::collections::BTreeMap;

/// Shorter operations are overhead rather than arithmetic: libtorch takes some microseconds for a call.
const LONG_US: f64 = 20.0;

/// A rank's mean step. Times are in milliseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Times {
    pub(super) rank: usize,
    pub(super) steps: usize,
    pub(super) step_ms: f64,
    /// By kind of span, without what is inside it; the rest of the step is under [`Kind::Step`].
    pub(super) parts: BTreeMap<Kind, f64>,
    pub(super) operations: f64,
    /// Time on the host of operations that are long enough to be arithmetic, without those inside them.
    pub(super) long_ms: f64,
    /// The sizes of the reduced buckets, in bytes.
    pub(super) buckets: Vec<u64>,
    pub(super) gpu: Option<Gpu>,
}

/// The work of a GPU in a step, in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Gpu {
    pub(super) kernels: f64,
    pub(super) computing_ms: f64,
    /// Reductions while no kernel computes.
    pub(super) reducing_ms: f64,
}

impl Times {
    pub(super) fn of(trace: &RankTrace) -> Option<Self> {
        let steps = steps(trace);
        let count = steps.len() as f64;
        let mut sum = Self { rank: trace.meta.rank, steps: steps.len(), ..Self::default() };
        for step in &steps {
            sum.add(trace, step);
        }
        (count > 0.0).then(|| {
            let each = [&mut sum.step_ms, &mut sum.operations, &mut sum.long_ms];
            each.into_iter().chain(sum.parts.values_mut()).for_each(|value| *value /= count);
            if let Some(gpu) = &mut sum.gpu {
                for value in [&mut gpu.kernels, &mut gpu.computing_ms, &mut gpu.reducing_ms] {
                    *value /= count;
                }
            }
            sum
        })
    }

    /// Returns the time of a part.
    pub(super) fn part(&self, kind: Kind) -> f64 {
        self.parts.get(&kind).copied().unwrap_or(0.0)
    }

    /// Returns the time of forward, backward and update.
    pub(super) fn computing(&self) -> f64 {
        [Kind::Forward, Kind::Backward, Kind::Recompute, Kind::Update]
            .map(|kind| self.part(kind))
            .iter()
            .sum()
    }

    fn add(&mut self, trace: &RankTrace, step: &Event) {
        let within =
            |event: &&Event| event.ph == 'X' && step.ts <= event.ts && event.end() <= step.end() + 1.0;
        let events: Vec<&Event> = trace.events.iter().filter(within).collect();
        let sorted = |is_wanted: &dyn Fn(&Event) -> bool| {
            let mut some: Vec<&Event> = events.iter().copied().filter(|event| is_wanted(event)).collect();
            some.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
            some
        };
        let own = sorted(&|event| event.tid == step.tid && event.cat.is_some_and(is_part));
        let all: Vec<Interval> = own.iter().map(|event| (event.ts, event.end())).collect();
        for (event, (length, _)) in own.iter().zip(nested(&all)) {
            let kind = event.cat.unwrap_or(Kind::Step);
            *self.parts.entry(kind).or_default() += length / 1e3;
        }
        self.step_ms += (step.end() - step.ts) / 1e3;
        self.buckets.extend(events.iter().filter_map(|event| {
            let bytes = event.number("bytes").filter(|_| event.cat == Some(Kind::Bucket));
            bytes.and_then(|bytes| u64::try_from(bytes).ok())
        }));

        let waits: Vec<Interval> = own
            .iter()
            .filter(|event| matches!(event.cat, Some(Kind::Load | Kind::Communication | Kind::Bucket)))
            .map(|event| (event.ts, event.end()))
            .collect();
        let operations = sorted(&|event| event.tid == step.tid && event.cat == Some(Kind::Operation));
        let all: Vec<Interval> = operations.iter().map(|event| (event.ts, event.end())).collect();
        let own = nested(&all);
        let mut is_leaf = vec![true; all.len()];
        own.iter().filter_map(|(_, around)| *around).for_each(|around| is_leaf[around] = false);
        let waiting = |at: f64| waits.iter().any(|(begin, end)| (*begin..*end).contains(&at));
        // An operation that computes may start others, such as one that allocates its result.
        let long = all
            .iter()
            .zip(&own)
            .filter(|((begin, end), (length, _))| *length >= LONG_US && !waiting((begin + end) / 2.0));
        self.long_ms += long.map(|(_, (length, _))| length).sum::<f64>() / 1e3;
        self.operations += is_leaf.iter().filter(|is_leaf| **is_leaf).count() as f64;
        self.add_gpu(&events);
    }

    fn add_gpu(&mut self, events: &[&Event]) {
        let kernels: Vec<&&Event> = events
            .iter()
            .filter(|event| event.cat == Some(Kind::Gpu))
            .filter(|event| !event.name.starts_with("Memcpy") && !event.name.starts_with("Memset"))
            .collect();
        if kernels.is_empty() {
            return;
        }
        let interval = |event: &&&Event| (event.ts, event.end());
        let computes = |event: &&&&Event| !event.name.contains("nccl");
        let computing = covered(kernels.iter().filter(computes).map(interval));
        let busy = covered(kernels.iter().map(interval));
        let gpu = self.gpu.get_or_insert_default();
        gpu.kernels += kernels.len() as f64;
        gpu.computing_ms += computing / 1e3;
        gpu.reducing_ms += (busy - computing) / 1e3;
    }
}

/// Returns the last attempt at each step: one that ran out of memory is retried.
fn steps(trace: &RankTrace) -> Vec<&Event> {
    let all = trace.events.iter().filter(|event| event.cat == Some(Kind::Step));
    let mut by_name: Vec<&Event> = Vec::new();
    for step in all {
        by_name.retain(|other| other.name != step.name);
        by_name.push(step);
    }
    by_name
}

/// Whether spans of this kind divide a step.
fn is_part(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Module | Kind::Reduction | Kind::Decode | Kind::Operation | Kind::Runtime | Kind::Gpu
    )
}
