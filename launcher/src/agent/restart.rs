//! Whether a group that failed is started once more, and when: pure, over the verdicts of one run's attempts.

use super::{Cause, Outcome, Verdict};
use std::time::Duration;

/// An attempt that lasted this long has done something: the pauses begin anew after it.
const LASTING: Duration = Duration::from_secs(60);
/// The second restart in a row waits so long, each further one twice as long. The first one waits for nothing: most
/// failures that a restart helps against do not come back at once.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// And no one longer than this.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// How often a master port that somebody else took is chosen anew.
const PORTS: u32 = 3;

/// What is restarted, and how often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RestartPolicy {
    /// Restarts of the whole group.
    pub(crate) max_restarts: u32,
    /// Exit codes by which a worker says that it would fail in the same way again.
    pub(crate) permanent: &'static [i32],
}

/// What comes after an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Nothing: the attempt's verdict is the run's. The reason is for the user where restarts were asked for.
    Finish { reason: Option<&'static str> },
    /// The whole group once more, after a pause; `restart` counts from 1 and is the same number on all workers.
    Restart { restart: u32, pause: Duration },
    /// The whole group once more at another port, which is not counted as a restart.
    OtherPort,
}

/// The attempts of one run so far.
#[derive(Clone, Debug)]
pub(crate) struct Restarts {
    policy: RestartPolicy,
    used: u32,
    /// Restarts since the last attempt that lasted.
    in_a_row: u32,
    ports: u32,
}

impl Restarts {
    /// Before the first attempt.
    pub(crate) fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            used: 0,
            in_a_row: 0,
            ports: 0,
        }
    }

    /// How many restarts were decided on.
    pub(crate) fn used(&self) -> u32 {
        self.used
    }

    /// How many are allowed.
    pub(crate) fn allowed(&self) -> u32 {
        self.policy.max_restarts
    }

    /// Decides about an attempt that is over after it `lasted` so long. `port_taken`: the first failure was that somebody
    /// else has the workers' port, which the launcher had chosen. `time_is_up`: what is started now would be asked to stop at once.
    pub(crate) fn after(
        &mut self,
        verdict: &Verdict,
        lasted: Duration,
        port_taken: bool,
        time_is_up: bool,
    ) -> Next {
        let (Cause::Failed { rank } | Cause::Hung { rank }) = verdict.cause else {
            return Next::Finish { reason: None };
        };
        let stay = |reason| Next::Finish {
            reason: (self.policy.max_restarts > 0).then_some(reason),
        };
        if verdict.asked_to_stop {
            return stay("the launcher was asked to stop");
        }
        if time_is_up {
            return stay("the time limit is too near");
        }
        if port_taken && self.ports < PORTS {
            self.ports += 1;
            return Next::OtherPort;
        }
        let outcome = verdict.end_of(rank).map(|end| end.outcome);
        if matches!(outcome, Some(Outcome::Exited(code)) if self.policy.permanent.contains(&code)) {
            return stay("it would fail in the same way again");
        }
        if self.used == self.policy.max_restarts {
            return stay("no restart is left");
        }
        if lasted >= LASTING {
            self.in_a_row = 0;
        }
        let pause = match self.in_a_row {
            0 => Duration::ZERO,
            n => FIRST_PAUSE
                .saturating_mul(1 << (n - 1).min(16))
                .min(LONGEST_PAUSE),
        };
        self.used += 1;
        self.in_a_row += 1;
        Next::Restart {
            restart: self.used,
            pause,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::End;
    use super::*;
    use proptest::prelude::*;

    const POLICY: RestartPolicy = RestartPolicy {
        max_restarts: 4,
        permanent: &[2],
    };

    fn verdict(cause: Cause, code: i32, asked_to_stop: bool) -> Verdict {
        Verdict {
            cause,
            ends: vec![End {
                rank: 0,
                outcome: Outcome::Exited(code),
                at: Duration::ZERO,
                sent: Vec::new(),
            }],
            asked_to_stop,
        }
    }

    fn failed(code: i32) -> Verdict {
        verdict(Cause::Failed { rank: 0 }, code, false)
    }

    #[test]
    fn the_first_restart_is_at_once_and_the_others_wait_longer_and_longer() {
        let mut restarts = Restarts::new(POLICY);
        let pauses: Vec<Next> = (0..5)
            .map(|_| restarts.after(&failed(1), Duration::from_secs(2), false, false))
            .collect();
        let again = |restart, seconds| Next::Restart {
            restart,
            pause: Duration::from_secs(seconds),
        };
        let over = Next::Finish {
            reason: Some("no restart is left"),
        };
        assert_eq!(pauses, [again(1, 0), again(2, 1), again(3, 2), again(4, 4), over]);
        assert_eq!(restarts.used(), 4);
    }

    #[test]
    fn after_an_attempt_that_lasted_there_is_no_pause() {
        let mut restarts = Restarts::new(POLICY);
        for restart in 1..=3 {
            assert_eq!(
                restarts.after(&failed(1), LASTING, false, false),
                Next::Restart {
                    restart,
                    pause: Duration::ZERO
                }
            );
        }
    }

    #[test]
    fn what_would_not_help_or_is_not_wanted_is_not_restarted() {
        let over = |reason| Next::Finish { reason };
        let after = |verdict: &Verdict| Restarts::new(POLICY).after(verdict, Duration::ZERO, false, false);
        for cause in [
            Cause::Success,
            Cause::Requeue,
            Cause::Stopped { signal: 15 },
            Cause::NotStarted { rank: 0 },
        ] {
            assert_eq!(after(&verdict(cause, 0, false)), over(None), "{cause:?}");
        }
        assert_eq!(
            after(&failed(2)),
            over(Some("it would fail in the same way again"))
        );
        let asked = verdict(Cause::Failed { rank: 0 }, 1, true);
        assert_eq!(after(&asked), over(Some("the launcher was asked to stop")));
        let none = RestartPolicy {
            max_restarts: 0,
            ..POLICY
        };
        assert_eq!(
            Restarts::new(none).after(&failed(1), Duration::ZERO, false, false),
            over(None)
        );
        let late = Restarts::new(POLICY).after(&failed(1), Duration::ZERO, true, true);
        assert_eq!(late, over(Some("the time limit is too near")));
    }

    #[test]
    fn a_lost_port_costs_no_restart_but_is_not_tried_for_ever() {
        let mut restarts = Restarts::new(RestartPolicy {
            max_restarts: 0,
            ..POLICY
        });
        for _ in 0..PORTS {
            assert_eq!(
                restarts.after(&failed(5), Duration::ZERO, true, false),
                Next::OtherPort
            );
        }
        assert_eq!(
            restarts.after(&failed(5), Duration::ZERO, true, false),
            Next::Finish { reason: None }
        );
    }

    proptest! {
        /// Whatever happens, a run ends: there are never more attempts than restarts, ports and one.
        #[test]
        fn a_run_ends(max_restarts in 0_u32..6, attempts in prop::collection::vec((0_u64..200, any::<bool>(), 0_i32..4), 40)) {
            let mut restarts = Restarts::new(RestartPolicy { max_restarts, ..POLICY });
            let mut begun = 1;
            for (lasted, port_taken, code) in attempts {
                match restarts.after(&failed(code), Duration::from_secs(lasted), port_taken, false) {
                    Next::Finish { .. } => break,
                    Next::Restart { restart, pause } => {
                        prop_assert!(restart <= max_restarts && pause <= LONGEST_PAUSE);
                        begun += 1;
                    }
                    Next::OtherPort => begun += 1,
                }
            }
            prop_assert!(begun <= 1 + max_restarts + PORTS);
        }
    }
}
