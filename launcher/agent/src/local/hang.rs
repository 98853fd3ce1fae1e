//! Detects hangs from the workers' heartbeats: pure.
//!
//! A worker beats once per step, and while it evaluates or writes. In every step, all ranks of a training
//! wait for each other. So if a rank hangs, all stop beating, and the first silent rank is the likely cause.

use std::collections::VecDeque;
use std::time::Duration;

/// Silence is a hang after `factor` times the median time between beats, but at least after `least`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HangPolicy {
    pub factor: u32,
    pub least: Duration,
    /// The silence that counts as a hang while a worker has too few heartbeats to know its usual time; `None` if such workers are
    /// not judged: a program may beat in any way.
    pub early: Option<Duration>,
}

impl HangPolicy {
    /// Returns the time between looks at the beats, short enough that the median stays below `least /
    /// factor`: of shorter steps, only one per look is seen.
    pub fn poll_interval(&self) -> Duration {
        (self.least / (2 * self.factor.max(1))).min(super::times::TICK)
    }
}

/// Times between beats that are kept for each rank.
const KEPT_INTERVALS: usize = 64;
/// With fewer times the usual time is unknown.
const MIN_INTERVALS: usize = 3;

/// The heartbeats of one attempt; without a policy no rank hangs.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress {
    policy: Option<HangPolicy>,
    ranks: Vec<Rank>,
    /// The end and the length of the last freeze of the launcher.
    resumed: Duration,
    frozen: Duration,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    last: Option<Duration>,
    intervals: VecDeque<Duration>,
    /// The time of freezes since the last beat; it does not count as silence.
    frozen: Duration,
    /// Whether the time until the next beat must not count as usual.
    is_unusual: bool,
    ended: bool,
}

impl Progress {
    pub(super) fn new(policy: impl Into<Option<HangPolicy>>, workers: usize) -> Self {
        Self { policy: policy.into(), ranks: vec![Rank::default(); workers], ..Self::default() }
    }

    /// Records a beat. During a write, beats come from a clock and do not show the length of a step.
    pub(super) fn beat(&mut self, rank: usize, at: Duration, writing: bool) {
        let rank = &mut self.ranks[rank];
        // A beat from before a freeze may be seen only after it.
        let is_old = at < self.resumed;
        rank.frozen = if is_old { self.frozen } else { Duration::ZERO };
        let was_unusual = std::mem::replace(&mut rank.is_unusual, writing || is_old);
        if let Some(last) = rank.last.replace(at)
            && !was_unusual
            && !writing
        {
            if rank.intervals.len() == KEPT_INTERVALS {
                rank.intervals.pop_front();
            }
            rank.intervals.push_back(at.saturating_sub(last));
        }
    }

    pub(super) fn ended(&mut self, rank: usize) {
        self.ranks[rank].ended = true;
    }

    /// Returns the time of this rank's last beat.
    pub(super) fn last_beat(&self, rank: usize) -> Option<Duration> {
        self.ranks.get(rank)?.last
    }

    /// Records that no process ran for the time `frozen`, not even the launcher.
    pub(super) fn record_freeze(&mut self, frozen: Duration, now: Duration) {
        (self.resumed, self.frozen) = (now, frozen);
        for rank in &mut self.ranks {
            rank.frozen += frozen;
            rank.is_unusual = true;
        }
    }

    /// Returns when the first rank will have been silent for too long, if it does not beat before.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.ranks.iter().filter_map(|rank| self.limit(rank)).min()
    }

    /// Returns the ranks with the time since their last beat, the longest first; empty without a hang.
    pub(super) fn silent(&self, now: Duration) -> Vec<(usize, Duration)> {
        if self.deadline().is_none_or(|deadline| deadline > now) {
            return Vec::new();
        }
        let live = self.ranks.iter().enumerate().filter(|(_, rank)| !rank.ended);
        let mut silent: Vec<_> =
            live.filter_map(|(number, rank)| Some((number, now.saturating_sub(rank.last?)))).collect();
        silent.sort_by_key(|(number, since)| (std::cmp::Reverse(*since), *number));
        silent
    }

    fn limit(&self, rank: &Rank) -> Option<Duration> {
        let policy = self.policy?;
        if rank.ended {
            return None;
        }
        let mut intervals: Vec<Duration> = rank.intervals.iter().copied().collect();
        intervals.sort_unstable();
        let (least, usual) = match intervals.len() {
            // With few beats the longest time is the usual one.
            ..MIN_INTERVALS => (policy.early?, intervals.last()),
            count => (policy.least, intervals.get(count / 2)),
        };
        let timeout = usual.map_or(Duration::ZERO, |usual| usual.saturating_mul(policy.factor)).max(least);
        let last = rank.last?;
        // Paged-out memory is slow, so the wait restarts after a freeze, but is at most doubled.
        let anew = last.max(self.resumed).saturating_add(timeout);
        let most = (last + rank.frozen).saturating_add(timeout.saturating_mul(2));
        Some(anew.min(most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const POLICY: HangPolicy = HangPolicy { factor: 10, least: Duration::from_secs(5), early: None };

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_first_silent_worker_is_named_first() {
        let mut progress = Progress::new(POLICY, 3);
        for second in 0..5 {
            for rank in 0..3 {
                if rank != 1 || second < 4 {
                    progress.beat(rank, s(second), false);
                }
            }
        }
        assert_eq!(progress.deadline(), Some(s(13)));
        assert_eq!(progress.silent(s(12)), []);
        assert_eq!(progress.silent(s(13)), [(1, s(10)), (0, s(9)), (2, s(9))]);
        progress.ended(1);
        assert_eq!(progress.deadline(), Some(s(14)));
    }

    #[test]
    fn short_steps_still_have_the_least_time() {
        let mut progress = Progress::new(POLICY, 1);
        for beat in 0..10 {
            progress.beat(0, Duration::from_millis(beat), false);
        }
        assert_eq!(progress.deadline(), Some(Duration::from_millis(9) + s(5)));
    }

    #[test]
    fn workers_with_few_heartbeats_are_not_judged() {
        let mut progress = Progress::new(POLICY, 2);
        assert_eq!(progress.deadline(), None);
        for second in 0..MIN_INTERVALS as u64 {
            progress.beat(0, s(second), false);
        }
        assert_eq!(progress.silent(s(100_000)), []);
    }

    #[test]
    fn a_training_with_few_heartbeats_has_more_time() {
        let mut progress = Progress::new(HangPolicy { early: Some(s(20)), ..POLICY }, 2);
        assert_eq!(progress.deadline(), None, "it has not begun");
        progress.beat(0, s(1), false);
        assert_eq!(progress.deadline(), Some(s(21)));
        progress.beat(0, s(4), false);
        assert_eq!(progress.deadline(), Some(s(34)), "ten times the longest time");
        progress.beat(0, s(5), false);
        progress.beat(0, s(6), false);
        assert_eq!(progress.deadline(), Some(s(16)), "its usual time is known");
    }

    #[test]
    fn beats_of_a_write_are_signs_of_life_and_no_steps() {
        let mut progress = Progress::new(POLICY, 1);
        for second in 0..4 {
            progress.beat(0, s(10 * second), false);
        }
        for second in 30..130 {
            progress.beat(0, s(second), true);
        }
        progress.beat(0, s(150), false);
        assert_eq!(progress.deadline(), Some(s(250)), "a step still takes 10 s");
    }

    #[test]
    fn a_freeze_restarts_the_timeout_and_keeps_the_order() {
        let mut progress = Progress::new(POLICY, 2);
        for second in 0..5 {
            progress.beat(0, s(second), false);
            progress.beat(1, s(second + 1), false);
        }
        progress.record_freeze(s(990), s(1000));
        assert_eq!(progress.deadline(), Some(s(1010)));
        assert_eq!(progress.silent(s(1009)), []);
        assert_eq!(progress.silent(s(1010)), [(0, s(1006)), (1, s(1005))]);
        // This beat came before the freeze, and is seen after it.
        progress.beat(0, s(9), false);
        assert_eq!(progress.deadline(), Some(s(1010)));
        progress.beat(0, s(1001), false);
        progress.beat(1, s(1001), false);
        assert_eq!(progress.deadline(), Some(s(1011)), "the pause is no usual step");
    }

    #[test]
    fn freezes_put_off_no_hang_for_ever() {
        let mut progress = Progress::new(POLICY, 1);
        for second in 0..5 {
            progress.beat(0, s(second), false);
        }
        // It runs for a second, and then is frozen for three.
        let awake = (1..100).find(|time| {
            let now = s(4 + 4 * time);
            progress.record_freeze(s(3), now);
            !progress.silent(now).is_empty()
        });
        assert_eq!(awake, Some(20), "twice the patience");
    }

    #[test]
    fn how_often_is_looked_never_makes_the_patience_longer() {
        for least in [1, 5, 300] {
            let policy = HangPolicy { factor: 20, least: s(least), early: None };
            let mut progress = Progress::new(policy, 1);
            // Steps of 1 ms: one beat is seen at each look.
            for look in 0..10 {
                progress.beat(0, policy.poll_interval() * look, false);
            }
            assert_eq!(progress.deadline(), Some(policy.poll_interval() * 9 + s(least)));
        }
    }

    proptest! {
        /// Workers that beat in time are never reported, whatever came before.
        #[test]
        fn regular_beats_are_no_hang(gaps in prop::collection::vec(1_u64..100, 4..200)) {
            let mut progress = Progress::new(HangPolicy { factor: 200, least: s(100), early: None }, 1);
            let mut now = Duration::ZERO;
            for gap in gaps {
                now += s(gap);
                prop_assert!(progress.silent(now).is_empty());
                progress.beat(0, now, false);
            }
        }
    }
}
