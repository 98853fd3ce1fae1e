//! Whether a group that failed is started once more, and when: pure, over the verdicts of one run's attempts.

use super::{Asked, Cause, Event, Outcome, TimeLimit, Verdict};
use crate::process::signals;
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
    /// When the run must be over.
    pub(crate) limit: Option<TimeLimit>,
    /// Whether USR1 asks the workers to stop with a checkpoint.
    pub(crate) training: bool,
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

/// What comes after the pause between two attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Resumption {
    /// The next attempt, which is to heed these signals for the workers.
    Start { notices: Vec<i32> },
    /// The end: the launcher was asked to stop by this signal.
    Stopped { signal: i32 },
    /// The end: workers were asked to stop while none ran, and a checkpoint is there.
    Requeue,
    /// The end: what is started now would be asked to stop at once. The reason is for the user.
    TooLate { reason: &'static str },
}

const NO_TIME: &str = "the time limit is too near";

/// The attempts of one run so far.
#[derive(Clone, Debug)]
pub(crate) struct Restarts {
    policy: RestartPolicy,
    used: u32,
    /// Restarts since the last attempt that lasted.
    in_a_row: u32,
    ports: u32,
    /// Signals for the workers that no attempt has heeded.
    notices: Vec<i32>,
    /// The signal that asked the launcher to stop while no worker ran.
    stopped: Option<i32>,
}

impl Restarts {
    /// Before the first attempt.
    pub(crate) fn new(policy: RestartPolicy) -> Self {
        Self {
            policy,
            used: 0,
            in_a_row: 0,
            ports: 0,
            notices: Vec::new(),
            stopped: None,
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

    /// Decides at `now` about an attempt that is over after it `lasted` so long. `port_taken`: the first failure was that somebody
    /// else has the workers' port, which the launcher had chosen.
    pub(crate) fn after(
        &mut self,
        verdict: &Verdict,
        lasted: Duration,
        port_taken: bool,
        now: Duration,
    ) -> Next {
        let outcome = match verdict.cause {
            Cause::Failed { rank } | Cause::Hung { rank } => verdict.end_of(rank).map(|end| end.outcome),
            Cause::NotStarted { passing: true, .. } => None,
            _ => return Next::Finish { reason: None },
        };
        let allowed = self.policy.max_restarts;
        let stay = |reason| Next::Finish {
            reason: (allowed > 0).then_some(reason),
        };
        match verdict.asked {
            Some(Asked::Request) => return stay("the launcher was asked to stop"),
            Some(Asked::TimeLimit) => return stay("the time limit was reached"),
            None => {}
        }
        if self.is_too_late(now) {
            return stay(NO_TIME);
        }
        for &signal in &verdict.notices {
            self.heard(&Event::Forward { signal });
        }
        if port_taken && self.ports < PORTS {
            self.ports += 1;
            return Next::OtherPort;
        }
        if matches!(outcome, Some(Outcome::Exited(code)) if self.policy.permanent.contains(&code)) {
            return stay("it would fail in the same way again");
        }
        if self.used == allowed {
            return stay("no restart is left");
        }
        let in_a_row = if lasted >= LASTING { 0 } else { self.in_a_row };
        let pause = match in_a_row {
            0 => Duration::ZERO,
            n => FIRST_PAUSE
                .saturating_mul(1 << (n - 1).min(16))
                .min(LONGEST_PAUSE),
        };
        if self.is_too_late(now.saturating_add(pause)) {
            return stay(NO_TIME);
        }
        self.used += 1;
        self.in_a_row = in_a_row + 1;
        Next::Restart {
            restart: self.used,
            pause,
        }
    }

    /// Takes in what happened while no worker ran. Whether the pause is over because of it.
    pub(crate) fn heard(&mut self, event: &Event) -> bool {
        match *event {
            Event::Stop { signal } => self.stopped = Some(self.stopped.unwrap_or(signal)),
            Event::Abandoned => self.stopped = Some(signals::KILL),
            Event::Forward { signal } if !self.notices.contains(&signal) => self.notices.push(signal),
            _ => {}
        }
        self.is_asked()
    }

    /// Whether something came that the pause need not be waited for.
    pub(crate) fn is_asked(&self) -> bool {
        self.stopped.is_some() || !self.notices.is_empty()
    }

    /// Decides at `now`, after the pause. `has_checkpoint`: the run has one that a later launch goes on from.
    pub(crate) fn resume(&mut self, now: Duration, has_checkpoint: bool) -> Resumption {
        let asked = self.stopped.is_some() || self.notices.contains(&signals::USR1);
        match self.stopped {
            // Nobody is there who would start it again.
            Some(signals::KILL) => Resumption::Stopped {
                signal: signals::KILL,
            },
            _ if asked && self.policy.training && has_checkpoint => Resumption::Requeue,
            Some(signal) => Resumption::Stopped { signal },
            None if self.is_too_late(now) => Resumption::TooLate { reason: NO_TIME },
            None => Resumption::Start {
                notices: std::mem::take(&mut self.notices),
            },
        }
    }

    fn is_too_late(&self, now: Duration) -> bool {
        self.policy.limit.is_some_and(|limit| limit.ask <= now)
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
        limit: None,
        training: true,
    };
    const NOW: Duration = Duration::from_secs(1000);

    /// Workers are asked to stop at this second.
    fn limited(ask: u64) -> RestartPolicy {
        let limit = TimeLimit {
            ask: Duration::from_secs(ask),
            end: Duration::from_secs(ask + 60),
            signal: signals::USR1,
        };
        RestartPolicy {
            limit: Some(limit),
            ..POLICY
        }
    }

    fn verdict(cause: Cause, code: i32, asked: Option<Asked>) -> Verdict {
        Verdict {
            cause,
            ends: vec![End {
                rank: 0,
                outcome: Outcome::Exited(code),
                at: Duration::ZERO,
                sent: Vec::new(),
                lost_peer: false,
            }],
            asked,
            notices: Vec::new(),
        }
    }

    fn failed(code: i32) -> Verdict {
        verdict(Cause::Failed { rank: 0 }, code, None)
    }

    #[test]
    fn the_first_restart_is_at_once_and_the_others_wait_longer_and_longer() {
        let mut restarts = Restarts::new(POLICY);
        let pauses: Vec<Next> = (0..5)
            .map(|_| restarts.after(&failed(1), Duration::from_secs(2), false, NOW))
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
                restarts.after(&failed(1), LASTING, false, NOW),
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
        let after = |verdict: &Verdict| Restarts::new(POLICY).after(verdict, Duration::ZERO, false, NOW);
        for cause in [
            Cause::Success,
            Cause::Requeue,
            Cause::Stopped { signal: 15 },
            Cause::NotStarted {
                rank: 0,
                passing: false,
            },
        ] {
            assert_eq!(after(&verdict(cause, 0, None)), over(None), "{cause:?}");
        }
        assert_eq!(
            after(&failed(2)),
            over(Some("it would fail in the same way again"))
        );
        let asked = |by| verdict(Cause::Failed { rank: 0 }, 1, Some(by));
        assert_eq!(
            after(&asked(Asked::Request)),
            over(Some("the launcher was asked to stop"))
        );
        assert_eq!(
            after(&asked(Asked::TimeLimit)),
            over(Some("the time limit was reached"))
        );
        let none = RestartPolicy {
            max_restarts: 0,
            ..POLICY
        };
        assert_eq!(
            Restarts::new(none).after(&failed(1), Duration::ZERO, false, NOW),
            over(None)
        );
        let late = Restarts::new(limited(1000)).after(&failed(1), Duration::ZERO, true, NOW);
        assert_eq!(late, over(Some("the time limit is too near")));
    }

    #[test]
    fn a_pause_that_outlasts_the_time_limit_is_not_begun() {
        let mut restarts = Restarts::new(limited(1002));
        let mut after = || restarts.after(&failed(1), Duration::ZERO, false, NOW);
        let pauses = [after(), after(), after()];
        let late = Next::Finish {
            reason: Some("the time limit is too near"),
        };
        assert_eq!(pauses[2], late, "a pause of 2 s");
        assert!(matches!(pauses[1], Next::Restart { restart: 2, .. }));
        let soon = Duration::from_secs(1001);
        assert_eq!(
            restarts.resume(soon, false),
            Resumption::Start { notices: Vec::new() }
        );
        assert!(matches!(
            restarts.resume(Duration::from_secs(1002), true),
            Resumption::TooLate { .. }
        ));
        assert_eq!(restarts.used(), 2);
    }

    #[test]
    fn a_request_in_the_pause_ends_with_the_checkpoint_that_is_there_or_is_kept() {
        let (usr1, usr2, term) = (
            Event::Forward {
                signal: signals::USR1,
            },
            Event::Forward {
                signal: signals::USR2,
            },
            Event::Stop {
                signal: signals::TERM,
            },
        );
        let resumed = |training, events: &[&Event], has_checkpoint| {
            let mut restarts = Restarts::new(RestartPolicy { training, ..POLICY });
            for event in events {
                assert!(restarts.heard(event), "{event:?} ends the pause");
            }
            restarts.resume(NOW, has_checkpoint)
        };
        let start = |signals: &[i32]| Resumption::Start {
            notices: signals.to_vec(),
        };
        let stopped = Resumption::Stopped {
            signal: signals::TERM,
        };
        assert_eq!(resumed(true, &[&usr1], true), Resumption::Requeue);
        assert_eq!(resumed(true, &[&term], true), Resumption::Requeue);
        assert_eq!(resumed(true, &[&usr2], true), start(&[signals::USR2]));
        assert_eq!(resumed(true, &[&usr1, &usr1], false), start(&[signals::USR1]));
        assert_eq!(resumed(true, &[&usr1, &term], false), stopped);
        assert_eq!(resumed(false, &[&usr1], true), start(&[signals::USR1]));
        assert_eq!(resumed(false, &[&term], true), stopped);
        let abandoned = resumed(true, &[&usr1, &Event::Abandoned], true);
        assert_eq!(
            abandoned,
            Resumption::Stopped {
                signal: signals::KILL
            }
        );
    }

    #[test]
    fn what_an_attempt_did_not_heed_the_next_one_has_to() {
        let mut restarts = Restarts::new(POLICY);
        let missed = Verdict {
            notices: vec![signals::USR1],
            ..failed(1)
        };
        restarts.after(&missed, Duration::ZERO, false, NOW);
        let next = Resumption::Start {
            notices: vec![signals::USR1],
        };
        assert_eq!(restarts.resume(NOW, false), next);
        restarts.after(&missed, Duration::ZERO, false, NOW);
        assert_eq!(restarts.resume(NOW, true), Resumption::Requeue);
    }

    #[test]
    fn a_start_that_the_system_refused_for_now_is_tried_again() {
        let refused = |passing| {
            let cause = Cause::NotStarted { rank: 0, passing };
            let next = Restarts::new(POLICY).after(&verdict(cause, 0, None), Duration::ZERO, false, NOW);
            matches!(next, Next::Restart { .. })
        };
        assert!(refused(true));
        assert!(!refused(false));
    }

    #[test]
    fn a_lost_port_costs_no_restart_but_is_not_tried_for_ever() {
        let mut restarts = Restarts::new(RestartPolicy {
            max_restarts: 0,
            ..POLICY
        });
        for _ in 0..PORTS {
            assert_eq!(
                restarts.after(&failed(5), Duration::ZERO, true, NOW),
                Next::OtherPort
            );
        }
        assert_eq!(
            restarts.after(&failed(5), Duration::ZERO, true, NOW),
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
                match restarts.after(&failed(code), Duration::from_secs(lasted), port_taken, NOW) {
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
