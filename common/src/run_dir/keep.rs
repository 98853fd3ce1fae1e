//! The rule for removing checkpoints of a run, for the run itself and for `dtrain ckpt prune`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::RunDir;
use crate::manifest::Manifest;
use crate::units::Span;

/// The checkpoints that stay when a new one is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest checkpoints that stay; at least 1.
    newest: usize,
    /// Of every stretch in order; if empty, only the newest stay.
    windows: Vec<Windows>,
}

/// Steps of one stage with epochs of one length. A stage has several if its data changed its size at a resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stretch {
    /// Number of its stage, from 0.
    pub stage: usize,
    /// Steps of the run before it.
    pub begins: u64,
    /// Steps of its stage before it, in epochs of its length: finished epochs count with that length too.
    pub epoch_steps: u64,
    pub steps_per_epoch: u64,
}

/// The windows of a stretch: the last checkpoint of each stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    stage: usize,
    /// Steps of the run before the stretch.
    begins: u64,
    /// Steps of the stage's windows before the stretch.
    before: u64,
    /// Steps of a window; at least 1.
    every: u64,
}

impl Keep {
    /// Keeps the newest checkpoints.
    pub fn newest(newest: usize) -> Self {
        Self { newest, windows: Vec::new() }
    }

    /// Keeps also the last checkpoint of every `span`, counted from the start of each stage. `stretches` in order are the
    /// whole run; the first begins at step 0.
    #[must_use]
    pub fn with_every(mut self, span: Span, stretches: &[Stretch]) -> Self {
        let stage_begins =
            |stage| stretches.iter().find(|of| of.stage == stage).map_or(0, |first| first.begins);
        let of = |stretch: &Stretch| Windows {
            stage: stretch.stage,
            begins: stretch.begins,
            before: match span {
                Span::Steps(_) => stretch.begins - stage_begins(stretch.stage),
                Span::Epochs(_) => stretch.epoch_steps,
            },
            every: span.steps(stretch.steps_per_epoch).max(1),
        };
        self.windows = stretches.iter().map(of).collect();
        self
    }

    /// Returns the stage and the number of the window in which a step lies.
    fn window(&self, step: u64) -> Option<(usize, u64)> {
        let last = step.saturating_sub(1);
        let Windows { stage, begins, before, every } = *self.windows.iter().rfind(|of| of.begins <= last)?;
        Some((stage, (before + last - begins) / every))
    }

    /// Returns which of these steps, in rising order, are removed if nothing points to them.
    pub fn excess<'a>(&'a self, steps: &'a [u64]) -> impl Iterator<Item = u64> + 'a {
        let older = steps.len().saturating_sub(self.newest.max(1));
        let stays = move |at: usize| {
            let window = self.window(steps[at]);
            window.is_some() && steps.get(at + 1).is_none_or(|next| self.window(*next) != window)
        };
        (0..older).filter(move |&at| !stays(at)).map(|at| steps[at])
    }

    /// Returns which of these steps, in rising order, are removed if only the whole ones count. Asks about few: a run calls
    /// this after every checkpoint. What goes of the whole ones goes of all too, because others only add followers.
    pub fn excess_of_whole(&self, steps: &[u64], is_whole: impl Fn(u64) -> bool) -> Vec<u64> {
        let mut excess: Vec<u64> = self.excess(steps).collect();
        if excess.is_empty() {
            return excess;
        }
        let mut known = BTreeMap::new();
        let mut is_whole = |step: u64| *known.entry(step).or_insert_with(|| is_whole(step));
        let mut newest = steps.iter().rev().filter(|step| is_whole(**step));
        let Some(oldest) = newest.nth(self.newest.max(1) - 1).copied() else { return Vec::new() };
        excess.retain(|&step| {
            let window = self.window(step);
            let later = &steps[steps.partition_point(|other| *other <= step)..];
            let mut followers = later.iter().take_while(|later| self.window(**later) == window);
            step < oldest && is_whole(step) && (window.is_none() || followers.any(|later| is_whole(*later)))
        });
        excess
    }
}

impl RunDir {
    /// Returns the steps of the checkpoints that `keep` removes of those with `steps` in rising order. The targets of `latest`
    /// and `best` stay. Checkpoints that are not whole neither count nor go.
    pub fn excess(&self, keep: &Keep, steps: &[u64], is_whole: impl Fn(u64) -> bool) -> Vec<u64> {
        let linked = [self.latest(), self.best()].map(|link| self.linked(&link));
        let mut excess = keep.excess_of_whole(steps, is_whole);
        excess.retain(|step| !linked.contains(&Some(*step)));
        excess
    }

    /// Returns whether the manifest of a step's checkpoint can be read and its files have their sizes.
    pub fn is_whole(&self, step: u64) -> bool {
        let folder = self.checkpoint(step);
        Manifest::read(&folder).is_ok_and(|manifest| manifest.check_sizes(&folder).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(stage: usize, begins: u64, epoch_steps: u64, steps_per_epoch: u64) -> Stretch {
        Stretch { stage, begins, epoch_steps, steps_per_epoch }
    }

    fn removed(newest: usize, every: Option<u64>, steps: &[u64]) -> Vec<u64> {
        let keep = Keep::newest(newest);
        let keep = match every {
            Some(every) => keep.with_every(Span::Steps(every), &[stretch(0, 0, 0, 1)]),
            None => keep,
        };
        keep.excess(steps).collect()
    }

    #[test]
    fn the_newest_stay_and_the_last_of_every_window() {
        let steps = [10, 20, 30, 40, 50, 60];
        assert_eq!(removed(2, None, &steps), [10, 20, 30, 40]);
        assert_eq!(removed(0, None, &steps), [10, 20, 30, 40, 50]);
        assert_eq!(removed(9, None, &steps), [0; 0]);
        assert_eq!(removed(1, Some(30), &steps), [10, 20, 40, 50]);
        // Checkpoints by time: the last one before the end of every 25 steps stays.
        assert_eq!(removed(1, Some(25), &[7, 24, 25, 31, 49, 52]), [7, 24, 31]);
        assert_eq!(removed(1, Some(1), &steps), [0; 0]);
    }

    /// Stages of 40 steps of 10 per epoch, then of 8 steps of 2 per epoch. While the second ran, windows of its 4 steps
    /// applied to the first: those of 20 steps had lost their checkpoints by then, or others stayed.
    #[test]
    fn windows_are_those_of_the_stage_in_which_a_checkpoint_was_written() {
        let stages = [stretch(0, 0, 0, 10), stretch(1, 40, 0, 2)];
        let keep = Keep::newest(1).with_every(Span::Epochs(2.0), &stages);
        let first = [5, 10, 15, 20, 25, 30, 35, 40];
        assert_eq!(keep.excess(&first).collect::<Vec<_>>(), [5, 10, 15, 25, 30, 35]);
        let both = [20, 40, 42, 44, 46, 48];
        assert_eq!(keep.excess(&both).collect::<Vec<_>>(), [42, 46]);
        // A stage that ends within a window: its last checkpoint stays, and windows begin anew.
        let keep = Keep::newest(1).with_every(Span::Steps(30), &stages);
        assert_eq!(keep.excess(&[10, 30, 35, 40, 50, 60, 70, 80]).collect::<Vec<_>>(), [10, 35, 50, 60]);
    }

    proptest::proptest! {
        #[test]
        fn few_checkpoints_are_read_and_the_rule_is_that_of_all_whole_ones(
            steps in proptest::collection::btree_map(1_u64..90, proptest::bool::weighted(0.7), 0..30),
            newest in 0_usize..5,
            every in 0_u64..20,
        ) {
            let names: Vec<u64> = steps.keys().copied().collect();
            let whole: Vec<u64> = names.iter().copied().filter(|step| steps[step]).collect();
            let stages = [stretch(0, 0, 0, 10), stretch(1, 40, 0, 2)];
            let keep = Keep::newest(newest);
            let keep = if every == 0 { keep } else { keep.with_every(Span::Steps(every), &stages) };
            let expected: Vec<u64> = keep.excess(&whole).collect();
            proptest::prop_assert_eq!(keep.excess_of_whole(&names, |step| steps[&step]), expected);
        }
    }

    #[test]
    fn a_long_run_reads_only_the_checkpoints_that_matter() {
        let steps: Vec<u64> = (1..=1000).map(|number| number * 10).chain([10_005]).collect();
        let read = std::cell::Cell::new(0);
        let count = |_| {
            read.set(read.get() + 1);
            true
        };
        let keep = Keep::newest(3).with_every(Span::Steps(10), &[stretch(0, 0, 0, 1)]);
        assert_eq!(keep.excess_of_whole(&steps, count), [0; 0]);
        assert_eq!(read.get(), 0);
        let keep = Keep::newest(1).with_every(Span::Steps(10), &[stretch(0, 0, 0, 1)]);
        let steps: Vec<u64> = [&steps[..], &[10_008]].concat();
        assert_eq!(keep.excess_of_whole(&steps, count), [10_005]);
        assert_eq!(read.get(), 2);
    }

    /// After 3 epochs of 10 steps the data had half its size: windows of 2 epochs were counted in epochs of 5 steps from
    /// step 0, so that epochs 1 and 2 were two windows.
    #[test]
    fn windows_follow_the_data_when_it_changes_its_size() {
        let halved = [stretch(0, 0, 0, 10), stretch(0, 30, 15, 5)];
        let keep = Keep::newest(1).with_every(Span::Epochs(2.0), &halved);
        // Ends of epochs 1 to 3, then 4 to 7: the windows end after epochs 2, 4 and 6.
        assert_eq!(keep.excess(&[10, 20, 30, 35, 40, 45, 50]).collect::<Vec<_>>(), [10, 30, 40]);
        // A number of steps means steps of the run, whatever an epoch has.
        let keep = Keep::newest(1).with_every(Span::Steps(20), &halved);
        assert_eq!(keep.excess(&[10, 20, 30, 35, 40, 45, 50]).collect::<Vec<_>>(), [10, 30, 35, 45]);
    }
}
