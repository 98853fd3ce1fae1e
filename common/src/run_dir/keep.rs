//! The rule for removing checkpoints of a run.

/// The checkpoints that stay when a new one is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Number of newest checkpoints that stay; at least 1.
    pub newest: usize,
    /// If set, the last checkpoint of every span of this many steps stays too; at least 1.
    pub every: Option<u64>,
}

impl Keep {
    /// Returns which of these steps, in rising order, are removed.
    pub fn excess(self, steps: &[u64]) -> impl Iterator<Item = u64> {
        let older = steps.len().saturating_sub(self.newest.max(1));
        let window = move |step: u64| self.every.map(|every| step.saturating_sub(1) / every.max(1));
        let stays = move |at: usize| {
            self.every.is_some() && steps.get(at + 1).is_none_or(|next| window(*next) != window(steps[at]))
        };
        (0..older).filter(move |&at| !stays(at)).map(|at| steps[at])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn removed(newest: usize, every: Option<u64>, steps: &[u64]) -> Vec<u64> {
        Keep { newest, every }.excess(steps).collect()
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
}
