//! The order of attempts.

use super::*;
use crate::local::End;
use proptest::prelude::*;

const POLICY: RestartPolicy = RestartPolicy { max_restarts: 4, permanent: &[2], limit: None, training: true };
const NOW: Duration = Duration::from_secs(1000);

/// Returns the policy of a run whose workers are asked to stop at this second.
fn limited(ask: u64) -> RestartPolicy {
    let (ask, end) = (Duration::from_secs(ask), Duration::from_secs(ask + 60));
    RestartPolicy { limit: Some(TimeLimit { ask, end, signal: signals::USR1 }), ..POLICY }
}

fn verdict(cause: Cause, code: i32, stop_source: Option<StopSource>) -> Verdict {
    let (outcome, at) = (Outcome::Exited(code), Duration::ZERO);
    let ends = vec![End { rank: 0, outcome, at, sent: Vec::new(), lost_peer: false }];
    Verdict { cause, ends, stop_source, silent_since: None, notices: Vec::new() }
}

fn failed(code: i32) -> Verdict {
    verdict(Cause::Failed { rank: 0 }, code, None)
}

#[test]
fn the_first_restart_is_at_once_and_the_others_wait_longer_and_longer() {
    let mut restarts = Restarts::new(POLICY);
    let pauses: Vec<Next> =
        (0..5).map(|_| restarts.after(&failed(1), Duration::from_secs(2), false, NOW)).collect();
    let again = |restart, seconds| Next::Restart { restart, pause: Duration::from_secs(seconds) };
    let over = Next::Finish { reason: Some("no restart is left") };
    assert_eq!(pauses, [again(1, 0), again(2, 1), again(3, 2), again(4, 4), over]);
    assert_eq!(restarts.used, 4);
}

#[test]
fn after_an_attempt_that_lasted_there_is_no_pause() {
    let mut restarts = Restarts::new(POLICY);
    for restart in 1..=3 {
        assert_eq!(
            restarts.after(&failed(1), LASTING, false, NOW),
            Next::Restart { restart, pause: Duration::ZERO }
        );
    }
}

#[test]
fn useless_or_unwanted_restarts_do_not_happen() {
    let over = |reason| Next::Finish { reason };
    let after = |verdict: &Verdict| Restarts::new(POLICY).after(verdict, Duration::ZERO, false, NOW);
    for cause in [
        Cause::Success,
        Cause::Requeue,
        Cause::Stopped { signal: 15 },
        Cause::NotStarted { rank: 0, temporary: false },
    ] {
        assert_eq!(after(&verdict(cause, 0, None)), over(None), "{cause:?}");
    }
    assert_eq!(after(&failed(2)), over(Some("it would fail in the same way again")));
    let late = verdict(Cause::Failed { rank: 0 }, 1, Some(StopSource::TimeLimit));
    assert_eq!(after(&late), over(Some("the time limit was reached")));
    let none = RestartPolicy { max_restarts: 0, ..POLICY };
    assert_eq!(Restarts::new(none).after(&failed(1), Duration::ZERO, false, NOW), over(None));
    let late = Restarts::new(limited(1000)).after(&failed(1), Duration::ZERO, true, NOW);
    assert_eq!(late, over(Some("the time limit is too near")));
}

#[test]
fn a_pause_that_outlasts_the_time_limit_is_not_begun() {
    let mut restarts = Restarts::new(limited(1002));
    let mut after = || restarts.after(&failed(1), Duration::ZERO, false, NOW);
    let pauses = [after(), after(), after()];
    let late = Next::Finish { reason: Some("the time limit is too near") };
    assert_eq!(pauses[2], late, "a pause of 2 s");
    assert!(matches!(pauses[1], Next::Restart { restart: 2, .. }));
    let soon = Duration::from_secs(1001);
    assert_eq!(restarts.resume(soon, false), Resumption::Start { notices: Vec::new() });
    assert!(matches!(restarts.resume(Duration::from_secs(1002), true), Resumption::TooLate { .. }));
    assert_eq!(restarts.used, 2);
}

#[test]
fn a_request_in_the_pause_ends_with_the_checkpoint_that_is_there_or_is_kept() {
    let (usr1, usr2, term) = (
        Event::Forward { signal: signals::USR1 },
        Event::Forward { signal: signals::USR2 },
        Event::Stop { signal: signals::TERM, again: false },
    );
    let resumed = |training, events: &[&Event], has_checkpoint| {
        let mut restarts = Restarts::new(RestartPolicy { training, ..POLICY });
        for event in events {
            assert!(restarts.on_event(event), "{event:?} ends the pause");
        }
        restarts.resume(NOW, has_checkpoint)
    };
    let start = |signals: &[i32]| Resumption::Start { notices: signals.to_vec() };
    let stopped = Resumption::Stopped { signal: signals::TERM };
    assert_eq!(resumed(true, &[&usr1], true), Resumption::Requeue);
    assert_eq!(resumed(true, &[&term], true), Resumption::Requeue);
    assert_eq!(resumed(true, &[&usr2], true), start(&[signals::USR2]));
    assert_eq!(resumed(true, &[&usr1, &usr1], false), start(&[signals::USR1]));
    assert_eq!(resumed(true, &[&usr1, &term], false), stopped);
    assert_eq!(resumed(false, &[&usr1], true), start(&[signals::USR1]));
    assert_eq!(resumed(false, &[&term], true), stopped);
    let abandoned = resumed(true, &[&usr1, &Event::Abandoned], true);
    assert_eq!(abandoned, Resumption::Stopped { signal: signals::KILL });
}

#[test]
fn a_request_while_a_failure_is_handled_comes_to_the_same_as_one_in_the_pause_after_it() {
    let signal = signals::TERM;
    let asked = |code| verdict(Cause::Failed { rank: 0 }, code, Some(StopSource::Request { signal }));
    for (policy, has_checkpoint, expected) in [
        (POLICY, true, Resumption::Requeue),
        (POLICY, false, Resumption::Stopped { signal }),
        (RestartPolicy { training: false, ..POLICY }, true, Resumption::Stopped { signal }),
    ] {
        for port_taken in [false, true] {
            let mut restarts = Restarts::new(policy);
            assert_eq!(restarts.after(&asked(1), Duration::ZERO, port_taken, NOW), Next::Stop);
            assert_eq!(restarts.resume(NOW, has_checkpoint), expected);
            assert_eq!(restarts.used, 0);
        }
    }
    // Without a next attempt, the run ends with the failure.
    let none = RestartPolicy { max_restarts: 0, ..POLICY };
    for (policy, code) in [(none, 1), (POLICY, 2)] {
        let next = Restarts::new(policy).after(&asked(code), Duration::ZERO, false, NOW);
        assert!(matches!(next, Next::Finish { .. }), "{next:?}");
    }
}

#[test]
fn unhandled_notices_pass_to_the_next_attempt() {
    let mut restarts = Restarts::new(POLICY);
    let missed = Verdict { notices: vec![signals::USR1], ..failed(1) };
    restarts.after(&missed, Duration::ZERO, false, NOW);
    let next = Resumption::Start { notices: vec![signals::USR1] };
    assert_eq!(restarts.resume(NOW, false), next);
    restarts.after(&missed, Duration::ZERO, false, NOW);
    assert_eq!(restarts.resume(NOW, true), Resumption::Requeue);
}

#[test]
fn a_request_that_kills_a_worker_without_a_handler_is_a_request_and_no_failure() {
    let mut killed = failed(0);
    killed.ends[0].outcome = Outcome::Signaled(signals::USR1);
    let none = RestartPolicy { max_restarts: 0, ..POLICY };
    let again = |restart| Next::Restart { restart, pause: Duration::ZERO };
    let mut restarts = Restarts::new(none);
    for attempt in 1..=EARLY_REQUESTS {
        assert_eq!(restarts.after(&killed, Duration::ZERO, false, NOW), again(attempt));
        assert_eq!(restarts.resume(NOW, false), Resumption::Start { notices: vec![signals::USR1] });
    }
    let over = restarts.after(&killed, Duration::ZERO, false, NOW);
    assert!(matches!(over, Next::Finish { .. }), "a worker that kills itself: {over:?}");

    let mut restarts = Restarts::new(none);
    assert_eq!(restarts.after(&killed, Duration::ZERO, false, NOW), again(1));
    assert_eq!(restarts.resume(NOW, true), Resumption::Requeue);

    let program = RestartPolicy { training: false, ..none };
    let next = Restarts::new(program).after(&killed, Duration::ZERO, false, NOW);
    assert_eq!(next, Next::Finish { reason: None }, "a program may end by the signal on purpose");
}

#[test]
fn a_start_that_the_system_refused_for_now_is_tried_again() {
    let refused = |temporary| {
        let cause = Cause::NotStarted { rank: 0, temporary };
        let next = Restarts::new(POLICY).after(&verdict(cause, 0, None), Duration::ZERO, false, NOW);
        matches!(next, Next::Restart { .. })
    };
    assert!(refused(true));
    assert!(!refused(false));
}

#[test]
fn a_lost_port_costs_no_restart_but_is_not_tried_for_ever() {
    let mut restarts = Restarts::new(RestartPolicy { max_restarts: 0, ..POLICY });
    for _ in 0..PORTS {
        assert_eq!(restarts.after(&failed(5), Duration::ZERO, true, NOW), Next::OtherPort);
    }
    assert_eq!(restarts.after(&failed(5), Duration::ZERO, true, NOW), Next::Finish { reason: None });
}

proptest! {
    /// Every run ends: its attempts are at most restarts, ports and one.
    #[test]
    fn a_run_ends(max_restarts in 0_u32..6, attempts in prop::collection::vec((0_u64..200, any::<bool>(), 0_i32..4), 40)) {
        let mut restarts = Restarts::new(RestartPolicy { max_restarts, ..POLICY });
        let mut count = 1;
        for (lasted, port_taken, code) in attempts {
            match restarts.after(&failed(code), Duration::from_secs(lasted), port_taken, NOW) {
                Next::Finish { .. } | Next::Stop => break,
                Next::Restart { restart, pause } => {
                    prop_assert!(restart <= max_restarts && pause <= LONGEST_PAUSE);
                    count += 1;
                }
                Next::OtherPort => count += 1,
            }
        }
        prop_assert!(count <= 1 + max_restarts + PORTS);
    }
}
