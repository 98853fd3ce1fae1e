//! Leases and clocks: a member may run workers only while its lease lasts.
//!
//! A member renews its lease with a beat, which the leader answers. The lease lasts [`Times::length`] from the
//! moment when the answered beat was sent, on the member's clock. The leader received that beat later, so on
//! its clock the lease ends before `received + length`. After that and the time to kill workers, no worker of
//! the member runs ([`Times::fence`]). Only durations are compared, so clocks may differ; their rates may differ by a
//! tenth.
//!
//! The member's clock must count the time during which the machine was suspended (`CLOCK_BOOTTIME`).
//! Source of the idea: Gray and Cheriton, Leases, SOSP 1989.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Times of the heartbeats, the same on all nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Times {
    /// Time between two beats of a member.
    pub beat: Duration,
    /// Length of a lease.
    pub length: Duration,
    /// The longest time in which a member whose lease has ended kills its workers.
    pub kill: Duration,
}

impl Times {
    /// Returns how long after the last sign of a member the leader waits until it counts the member's workers as
    /// killed. A tenth is added: chrony corrects a clock by at most 8.4% of its rate.
    pub fn fence(&self) -> Duration {
        let longest = self.length.saturating_add(self.kill);
        longest.saturating_add(longest / 10)
    }
}

impl Default for Times {
    fn default() -> Self {
        Self {
            beat: Duration::from_millis(200),
            length: Duration::from_secs(1),
            kill: Duration::from_millis(500),
        }
    }
}

/// A time on the leader's clock, known up to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moment {
    pub at: Duration,
    /// The true time is between `at - error` and `at + error`.
    pub error: Duration,
}

impl Moment {
    pub fn exact(at: Duration) -> Self {
        Self { at, error: Duration::ZERO }
    }

    /// Returns whether this moment was surely before the other.
    pub fn is_before(&self, other: &Self) -> bool {
        self.at.saturating_add(self.error) < other.at.saturating_sub(other.error)
    }
}

/// A member's lease, and the difference between its clock and the leader's.
#[derive(Clone, Debug)]
pub struct Lease {
    times: Times,
    /// The number of the latest beat, and when the beats without an answer were sent.
    sent: Vec<(u64, Duration)>,
    next: u64,
    /// When the latest answered beat was sent.
    renewed: Duration,
    clock: Option<Sample>,
}

/// The leader's clock by one beat and its answer.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Between sending and answer, on the member's clock.
    taken: Duration,
    leader: Duration,
    error: Duration,
}

/// Crystals of computers differ by less (100 ppm each).
const DRIFT: u32 = 5_000;
/// Beats without an answer that are remembered: with more, the lease has long ended.
const REMEMBERED: usize = 64;

impl Lease {
    /// Begins at `now`, when the leader has just answered a request that was sent at `sent`.
    pub fn new(times: Times, sent: Duration) -> Self {
        Self { times, sent: Vec::new(), next: 0, renewed: sent, clock: None }
    }

    /// Returns the number of a beat that is sent at `now`.
    pub fn beat(&mut self, now: Duration) -> u64 {
        self.next += 1;
        if self.sent.len() == REMEMBERED {
            self.sent.remove(0);
        }
        self.sent.push((self.next, now));
        self.next
    }

    /// Renews the lease by the answer to beat `number`, which the leader sent at `leader` on its clock.
    pub fn renew(&mut self, number: u64, leader: Duration, now: Duration) {
        let Some(place) = self.sent.iter().position(|(sent, _)| *sent == number) else {
            return; // A duplicate.
        };
        let (_, sent) = self.sent[place];
        self.sent.drain(..=place);
        self.renewed = self.renewed.max(sent);
        let half = now.saturating_sub(sent) / 2;
        let sample = Sample { taken: sent + half, leader, error: half };
        if self.clock.is_none_or(|known| sample.error <= known.error_at(now)) {
            self.clock = Some(sample);
        }
    }

    /// Returns when the lease ends, on the member's clock.
    pub fn end(&self) -> Duration {
        self.renewed.saturating_add(self.times.length)
    }

    /// Returns a moment of the member's clock on the leader's. Before the first answer the error is unbounded.
    pub fn on_leaders_clock(&self, at: Duration) -> Moment {
        let Some(sample) = self.clock else {
            return Moment { at, error: Duration::MAX };
        };
        let at_leader = match at.checked_sub(sample.taken) {
            Some(later) => sample.leader.saturating_add(later),
            None => sample.leader.saturating_sub(sample.taken - at),
        };
        Moment { at: at_leader, error: sample.error_at(at) }
    }
}

impl Sample {
    fn error_at(&self, at: Duration) -> Duration {
        self.error.saturating_add(at.abs_diff(self.taken) / DRIFT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn an_answer_renews_the_lease_from_the_time_when_the_beat_was_sent() {
        let mut lease = Lease::new(Times::default(), ms(0));
        let first = lease.beat(ms(200));
        let second = lease.beat(ms(400));
        assert_eq!(lease.end(), ms(1000));
        lease.renew(second, ms(77), ms(900));
        assert_eq!(lease.end(), ms(1400));
        lease.renew(first, ms(78), ms(950));
        assert_eq!(lease.end(), ms(1400), "a late answer to an earlier beat");
        lease.renew(second, ms(79), ms(990));
        assert_eq!(lease.end(), ms(1400), "a duplicate");
    }

    proptest! {
        /// The leader, which counts from the receipt of a beat, never declares a lease ended that has not.
        #[test]
        fn a_lease_ends_before_the_leader_counts_it_as_ended(
            offset in 0_u64..100_000,
            trips in prop::collection::vec((0_u64..2000, 0_u64..3000, 0_u64..3000, any::<bool>()), 1..40),
        ) {
            // The member's clock is `offset` ahead of the leader's.
            let mut lease = Lease::new(Times::default(), ms(offset));
            let (mut now, mut heard) = (0, 0);
            for (pause, there, back, is_answer_lost) in trips {
                now += pause;
                let number = lease.beat(ms(now + offset));
                let received = now + there;
                heard = heard.max(received);
                if !is_answer_lost {
                    lease.renew(number, ms(received), ms(received + back + offset));
                }
                now = received + back;
                prop_assert!(lease.end() <= ms(heard + offset) + Times::default().length);
                let moment = lease.on_leaders_clock(ms(now + offset));
                prop_assert!(moment.at.abs_diff(ms(now)) <= moment.error);
            }
        }
    }
}
