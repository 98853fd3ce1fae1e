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
            // A switch that restarts a port, and a machine whose CPU time is used up, are silent for seconds.
            length: Duration::from_secs(5),
            kill: Duration::from_millis(500),
        }
    }
}

#[cfg(test)]
impl Times {
    /// A lease of 1 s.
    pub(crate) fn short() -> Self {
        Self { length: Duration::from_secs(1), ..Self::default() }
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
    /// How far the clocks' latest samples contradict each other: a clock was set, slewed, or stood still while its
    /// machine was suspended. Halved by each sample that does not.
    doubt: Duration,
}

/// The leader's clock by one beat and its answer.
#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Between sending and answer, on the member's clock.
    taken: Duration,
    leader: Duration,
    error: Duration,
}

/// Crystals of computers differ by less (100 ppm each). Larger differences, such as of a suspended virtual machine whose
/// clock stood still or of a clock that NTP slews, are seen at the next answer: [`Lease::doubt`](Lease). Until then,
/// for about one beat, the error is too small.
const DRIFT: u32 = 5_000;
/// Beats without an answer that are remembered: with more, the lease has long ended.
const REMEMBERED: usize = 64;

impl Lease {
    /// Begins at `now`, when the leader has just answered a request that was sent at `sent`.
    pub fn new(times: Times, sent: Duration) -> Self {
        Self { times, sent: Vec::new(), next: 0, renewed: sent, clock: None, doubt: Duration::ZERO }
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
        let contradiction = self.clock.map_or(Duration::ZERO, |known| {
            let apart = known.at_leader(sample.taken).abs_diff(sample.leader);
            apart.saturating_sub(known.error_at(sample.taken).saturating_add(sample.error))
        });
        self.doubt = (self.doubt / 2).max(contradiction);
        if self.clock.is_none_or(|known| !contradiction.is_zero() || sample.error <= known.error_at(now)) {
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
        Moment { at: sample.at_leader(at), error: sample.error_at(at).saturating_add(self.doubt) }
    }
}

impl Sample {
    fn at_leader(&self, at: Duration) -> Duration {
        match at.checked_sub(self.taken) {
            Some(later) => self.leader.saturating_add(later),
            None => self.leader.saturating_sub(self.taken - at),
        }
    }

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
        let mut lease = Lease::new(Times::short(), ms(0));
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

    /// Exchanges beats of 200 ms; the leader's clock is at `leader` and the member's at `member`, in ms.
    fn beats(lease: &mut Lease, count: u64, leader: u64, member: u64) {
        for n in 1..=count {
            let number = lease.beat(ms(member + 200 * n));
            lease.renew(number, ms(leader + 200 * n), ms(member + 200 * n));
        }
    }

    #[test]
    fn a_clock_that_stood_still_makes_times_uncertain_for_a_while() {
        let mut lease = Lease::new(Times::short(), ms(0));
        beats(&mut lease, 10, 0, 0);
        assert!(lease.on_leaders_clock(ms(2000)).error < ms(1));
        // The member's machine was suspended for 600 ms that its clock does not count.
        beats(&mut lease, 1, 2600, 2000);
        for (member, leader) in [(1900, 1900), (2100, 2700)] {
            let moment = lease.on_leaders_clock(ms(member));
            assert!(moment.at.abs_diff(ms(leader)) <= moment.error, "{moment:?} instead of {leader} ms");
        }
        beats(&mut lease, 20, 2800, 2200);
        let moment = lease.on_leaders_clock(ms(6000));
        assert!(moment.at == ms(6600) && moment.error < ms(2), "{moment:?}");
    }

    proptest! {
        /// Also if a clock is slewed by up to a tenth, the true time is within the error.
        #[test]
        fn slewed_clocks_are_noticed(ppm in 0_u64..100_000, after in 0_u64..200_000) {
            let mut lease = Lease::new(Times::short(), ms(0));
            beats(&mut lease, 10, 0, 0);
            let rate = |micros: u64| Duration::from_micros(2_000_000 + micros + micros * ppm / 1_000_000);
            let member = |micros: u64| Duration::from_micros(2_000_000 + micros);
            for n in 1..=10 {
                let at = n * 200_000;
                let number = lease.beat(member(at));
                lease.renew(number, rate(at), member(at));
            }
            let moment = lease.on_leaders_clock(member(2_000_000 + after));
            prop_assert!(moment.at.abs_diff(rate(2_000_000 + after)) <= moment.error + Duration::from_micros(100));
        }

        /// The leader, which counts from the receipt of a beat, never declares a lease ended that has not.
        #[test]
        fn a_lease_ends_before_the_leader_counts_it_as_ended(
            offset in 0_u64..100_000,
            trips in prop::collection::vec((0_u64..2000, 0_u64..3000, 0_u64..3000, any::<bool>()), 1..40),
        ) {
            // The member's clock is `offset` ahead of the leader's.
            let mut lease = Lease::new(Times::short(), ms(offset));
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
                prop_assert!(lease.end() <= ms(heard + offset) + Times::short().length);
                let moment = lease.on_leaders_clock(ms(now + offset));
                prop_assert!(moment.at.abs_diff(ms(now)) <= moment.error);
            }
        }
    }
}
