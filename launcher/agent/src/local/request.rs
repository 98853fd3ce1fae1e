//! Which signals to the launcher are one request to stop.
//!
//! Batch systems signal every process of a job, so that the launcher may get one request twice: directly, and later from
//! its guardian. `timeout` signals its child and then its process group. A request is a further one only if it comes by
//! the same way as one before, and not at the same moment.

use super::times::SAME_REQUEST;
use std::time::Duration;

/// How a signal came to the launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Direct,
    /// Its guardian passed it on.
    Guardian,
}

/// The requests to stop by INT or TERM so far.
#[derive(Clone, Debug, Default)]
pub struct Requests {
    direct: Received,
    by_guardian: Received,
    known: u32,
}

/// What came by one way.
#[derive(Clone, Copy, Debug, Default)]
struct Received {
    requests: u32,
    latest: Option<Duration>,
}

impl Requests {
    /// Counts a signal that came at `now`. Returns `None` for a request that is known already, else whether it is a
    /// further one after the first.
    pub fn on(&mut self, way: Way, now: Duration) -> Option<bool> {
        let received = match way {
            Way::Direct => &mut self.direct,
            Way::Guardian => &mut self.by_guardian,
        };
        if received.latest.is_some_and(|at| now < at + SAME_REQUEST) {
            return None;
        }
        received.latest = Some(now);
        received.requests += 1;
        if received.requests <= self.known {
            return None;
        }
        self.known = received.requests;
        Some(self.known > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Way::{Direct, Guardian};
    use proptest::prelude::*;

    fn heard(signals: &[(Way, u64)]) -> Vec<Option<bool>> {
        let mut requests = Requests::default();
        signals.iter().map(|(way, at)| requests.on(*way, Duration::from_millis(*at))).collect()
    }

    #[test]
    fn signals_at_one_moment_are_one_request() {
        assert_eq!(heard(&[(Direct, 1000), (Direct, 1249)]), [Some(false), None]);
        assert_eq!(heard(&[(Direct, 1000), (Direct, 1250)]), [Some(false), Some(true)]);
        assert_eq!(
            heard(&[(Guardian, 0), (Guardian, 300), (Guardian, 600)]),
            [Some(false), Some(true), Some(true)]
        );
    }

    #[test]
    fn what_the_guardian_passes_on_later_is_the_same_request() {
        assert_eq!(heard(&[(Direct, 0), (Guardian, 5000)]), [Some(false), None]);
        assert_eq!(heard(&[(Guardian, 0), (Direct, 700)]), [Some(false), None]);
        let twice_by_both = [(Direct, 0), (Guardian, 400), (Direct, 3000), (Guardian, 3400)];
        assert_eq!(heard(&twice_by_both), [Some(false), None, Some(true), None]);
    }

    proptest! {
        /// However late the copies come: requests that come by both ways count once each.
        #[test]
        fn copies_by_the_other_way_add_no_request(gaps in prop::collection::vec((250u64..5000, 0u64..5000), 1..5)) {
            let mut times = Vec::new();
            let mut at = 0;
            for (gap, delay) in &gaps {
                at += gap;
                times.push((at, Direct));
                times.push((at + delay, Guardian));
            }
            times.sort_by_key(|(at, _)| *at);
            let signals: Vec<_> = times.into_iter().map(|(at, way)| (way, at)).collect();
            let found = heard(&signals).into_iter().flatten().collect::<Vec<_>>();
            prop_assert_eq!(found.len(), gaps.len());
            prop_assert!(!found[0] && found[1..].iter().all(|again| *again));
        }
    }
}
