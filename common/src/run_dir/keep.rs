//! The rule for removing checkpoints of a run, for the run itself and for `dtrain ckpt prune`.

use std::io;

use super::RunDir;
use crate::manifest::Manifest;
use crate::units::Span;

/// The checkpoints that stay when a new one is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest checkpoints that stay; at least 1.
    newest: usize,
    /// Of every stage in order; if empty, only the newest stay.
    windows: Vec<Windows>,
}

/// The windows of a stage: the last checkpoint of each stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Windows {
    /// Steps of the run before the stage.
    begins: u64,
    /// Steps of a window; at least 1.
    every: u64,
}

impl Keep {
    /// Keeps the newest checkpoints.
    pub fn newest(newest: usize) -> Self {
        Self { newest, windows: Vec::new() }
    }

    /// Keeps also the last checkpoint of every `span`, counted from the begin of each stage. `stages` are the steps before
    /// each stage, and its steps per epoch.
    #[must_use]
    pub fn with_every(mut self, span: Span, stages: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let of = |(begins, per_epoch)| Windows { begins, every: span.steps(per_epoch).max(1) };
        self.windows = stages.into_iter().map(of).collect();
        self
    }

    /// Returns the stage and the number of the window in which a step lies.
    fn window(&self, step: u64) -> Option<(usize, u64)> {
        let last = step.saturating_sub(1);
        let stage = self.windows.iter().rposition(|windows| windows.begins <= last)?;
        let Windows { begins, every } = self.windows[stage];
        Some((stage, (last - begins) / every))
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
}

impl RunDir {
    /// Returns the steps of the checkpoints that `keep` removes of the whole ones, whose steps are `whole` in rising order.
    /// The targets of `latest` and `best` stay. Checkpoints that are not whole neither count nor go.
    pub fn excess(&self, keep: &Keep, whole: &[u64]) -> Vec<u64> {
        let linked = [self.latest(), self.best()].map(|link| self.linked(&link));
        keep.excess(whole).filter(|step| !linked.contains(&Some(*step))).collect()
    }

    /// Returns the steps of the checkpoints whose manifests can be read and whose files have their sizes.
    pub fn whole_steps(&self) -> io::Result<Vec<u64>> {
        let is_whole = |step: &u64| {
            let folder = self.checkpoint(*step);
            Manifest::read(&folder).is_ok_and(|manifest| manifest.check_sizes(&folder).is_ok())
        };
        Ok(self.steps()?.into_iter().filter(is_whole).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(newest: usize, every: Option<u64>, steps: &[u64]) -> Vec<u64> {
        let keep = Keep::newest(newest);
        let keep = match every {
            Some(every) => keep.with_every(Span::Steps(every), [(0, 1)]),
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
        let keep = Keep::newest(1).with_every(Span::Epochs(2.0), [(0, 10), (40, 2)]);
        let first = [5, 10, 15, 20, 25, 30, 35, 40];
        assert_eq!(keep.excess(&first).collect::<Vec<_>>(), [5, 10, 15, 25, 30, 35]);
        let both = [20, 40, 42, 44, 46, 48];
        assert_eq!(keep.excess(&both).collect::<Vec<_>>(), [42, 46]);
        // A stage that ends within a window: its last checkpoint stays, and windows begin anew.
        let keep = Keep::newest(1).with_every(Span::Steps(30), [(0, 10), (40, 2)]);
        assert_eq!(keep.excess(&[10, 30, 35, 40, 50, 60, 70, 80]).collect::<Vec<_>>(), [10, 35, 50, 60]);
    }
}
