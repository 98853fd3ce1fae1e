//! Signals to the launcher, and workers that stop on request.

use super::*;

#[test]
fn stop_signals_are_forwarded_and_then_killed() {
    for signal in [INT, TERM, HUP, QUIT] {
        let mut agent = running(2, None);
        let actions = stop(&mut agent, signal, 100);
        assert_eq!(actions[..2], to(signal, &[0, 1]));
        assert_eq!(actions[2..], [Action::Tell(Notice::Stopping { signal, workers: 2 })]);
        assert_eq!(agent.deadline(), Some(ms(30_100)));
        assert_eq!(die(&mut agent, 0, signal, 110), []);
        assert_eq!(signals_in(&timer(&mut agent, 30_100)), to(KILL, &[1]));
        assert_eq!(verdict(&die(&mut agent, 1, KILL, 30_101)).cause, Cause::Stopped { signal });
    }
}

#[test]
fn a_second_request_kills_but_that_of_another_node_does_not() {
    for (first, second) in [(INT, INT), (TERM, TERM), (INT, TERM)] {
        let mut agent = running(2, None);
        stop(&mut agent, first, 1000);
        for late in [1100, 1700, 6000] {
            assert_eq!(stop(&mut agent, second, late), [], "the same request, heard twice");
        }
        let actions = stop_again(&mut agent, second, 6100);
        assert_eq!(signals_in(&actions), to(KILL, &[0, 1]));
        assert_eq!(
            actions[2],
            Action::Tell(Notice::Killing { ranks: vec![0, 1], why: KillReason::Requested })
        );
        die(&mut agent, 0, KILL, 6110);
        assert_eq!(verdict(&die(&mut agent, 1, KILL, 6111)).cause, Cause::Stopped { signal: first });
    }
}

#[test]
fn hang_up_after_an_interrupt_is_forwarded_not_a_kill() {
    let mut agent = running(1, None);
    stop(&mut agent, INT, 0);
    assert_eq!(signals_in(&stop(&mut agent, HUP, 5000)), to(HUP, &[0]));
    assert_eq!(agent.deadline(), Some(TIMEOUT), "the first request's time continues");
    assert_eq!(verdict(&die(&mut agent, 0, HUP, 5001)).cause, Cause::Stopped { signal: INT });
}

#[test]
fn an_interrupt_while_a_failure_is_handled_is_forwarded_and_a_second_kills() {
    let mut agent = running(2, None);
    exit(&mut agent, 0, 1, 10);
    assert_eq!(signals_in(&stop(&mut agent, INT, 1000)), to(INT, &[1]));
    assert_eq!(signals_in(&stop_again(&mut agent, INT, 2000)), to(KILL, &[1]));
    assert_eq!(verdict(&die(&mut agent, 1, KILL, 2001)).cause, Cause::Failed { rank: 0 });
}

#[test]
fn a_clean_exit_after_a_stop_request_is_success_only_for_a_training() {
    for (requeue_code, cause) in [(Some(75), Cause::Success), (None, Cause::Stopped { signal: TERM })] {
        let mut agent = running(2, requeue_code);
        stop(&mut agent, TERM, 10);
        exit(&mut agent, 0, 0, 20);
        assert_eq!(verdict(&exit(&mut agent, 1, 0, 21)).cause, cause);
    }
}

#[test]
fn requeue_after_a_stop_request() {
    let mut agent = running(2, Some(75));
    stop(&mut agent, TERM, 10);
    assert_eq!(exit(&mut agent, 0, 75, 20), []);
    assert_eq!(verdict(&exit(&mut agent, 1, 75, 21)).cause, Cause::Requeue);
}

#[test]
fn requeue_without_a_request_leaves_the_others_to_finish_but_not_for_ever() {
    let mut agent = running(2, Some(75));
    assert_eq!(exit(&mut agent, 0, 75, 20), []);
    assert_eq!(agent.deadline(), Some(ms(30_020)));
    assert_eq!(signals_in(&timer(&mut agent, 30_020)), to(KILL, &[1]));
    let last = die(&mut agent, 1, KILL, 30_021);
    assert_eq!(signals_in(&last), []);
    assert_eq!(verdict(&last).cause, Cause::Requeue);
}

#[test]
fn a_failure_after_an_unasked_requeue_is_the_cause() {
    let mut agent = running(3, Some(75));
    exit(&mut agent, 0, 75, 20);
    assert_eq!(signals_in(&exit(&mut agent, 1, 1, 30)), to(TERM, &[2]));
    assert_eq!(verdict(&exit(&mut agent, 2, 75, 40)).cause, Cause::Failed { rank: 1 });
}

#[test]
fn a_worker_that_breaks_during_a_requested_stop_is_the_cause() {
    for outcome in [Outcome::Exited(1), Outcome::Signaled(11), Outcome::Signaled(KILL), Outcome::Lost] {
        let mut agent = running(2, Some(75));
        stop(&mut agent, TERM, 10);
        agent.on(&Event::Ended { rank: 1, outcome, at: ms(20), lost_peer: false }, ms(20));
        let last = exit(&mut agent, 0, 75, 30);
        assert_eq!(
            verdict(&last).cause,
            Cause::Failed { rank: 1 },
            "{outcome:?} was not the launcher's doing"
        );
    }
}

#[test]
fn failures_after_the_stop_signal_are_not_the_cause() {
    let mut agent = running(2, Some(75));
    stop(&mut agent, TERM, 10);
    die(&mut agent, 0, TERM, 20);
    assert_eq!(verdict(&exit(&mut agent, 1, 5, 30)).cause, Cause::Stopped { signal: TERM });
}

#[test]
fn user_signals_are_passed_to_those_that_run_and_change_nothing() {
    let mut agent = running(3, None);
    exit(&mut agent, 1, 0, 5);
    for signal in [USR1, USR2] {
        assert_eq!(agent.on(&Event::Forward { signal }, ms(10)), to(signal, &[0, 2]));
    }
    assert_eq!(agent.deadline(), None);
    exit(&mut agent, 0, 0, 20);
    assert_eq!(verdict(&exit(&mut agent, 2, 0, 21)).cause, Cause::Success);
}

#[test]
fn a_worker_killed_by_a_passed_on_signal_has_failed() {
    let mut agent = running(1, None);
    agent.on(&Event::Forward { signal: USR1 }, ms(10));
    assert_eq!(verdict(&die(&mut agent, 0, USR1, 11)).cause, Cause::Failed { rank: 0 });
}

#[test]
fn a_program_that_does_not_start_ends_the_run_with_the_others_killed() {
    let mut agent = Agent::new(policy(3));
    agent.begin(Duration::ZERO);
    assert_eq!(agent.on(&Event::Started { rank: 0 }, ms(1)), [Action::Start { rank: 1 }]);
    assert_eq!(
        agent.on(&Event::NotStarted { rank: 1, temporary: false }, ms(2)),
        to(KILL, &[0]),
        "rank 2 is not tried"
    );
    let last = die(&mut agent, 0, KILL, 3);
    assert_eq!(verdict(&last).cause, Cause::NotStarted { rank: 1, temporary: false });
}

#[test]
fn the_first_program_that_does_not_start_leaves_nothing_to_wait_for() {
    let mut agent = Agent::new(policy(2));
    agent.begin(Duration::ZERO);
    let last = agent.on(&Event::NotStarted { rank: 0, temporary: false }, ms(2));
    assert_eq!(verdict(&last).cause, Cause::NotStarted { rank: 0, temporary: false });
    assert_eq!(verdict(&last).ends, []);
}

#[test]
fn a_stop_while_workers_are_being_started_reaches_the_one_in_the_making() {
    let mut agent = Agent::new(policy(3));
    agent.begin(Duration::ZERO);
    agent.on(&Event::Started { rank: 0 }, ms(1));
    assert_eq!(signals_in(&stop(&mut agent, INT, 2)), to(INT, &[0]));
    assert_eq!(agent.on(&Event::Started { rank: 1 }, ms(3)), to(INT, &[1]), "and rank 2 is not started");
    die(&mut agent, 0, INT, 4);
    assert_eq!(verdict(&die(&mut agent, 1, INT, 5)).cause, Cause::Stopped { signal: INT });
}

#[test]
fn nothing_happens_after_the_end() {
    let mut agent = running(1, None);
    exit(&mut agent, 0, 0, 5);
    for event in [Event::Stop { signal: INT, again: true }, Event::Forward { signal: USR1 }, Event::Timer] {
        assert_eq!(agent.on(&event, ms(100)), []);
    }
}

#[test]
fn an_endless_timeout_does_not_overflow() {
    let mut agent = Agent::new(Policy { shutdown_timeout: Duration::MAX, ..policy(1) });
    agent.begin(Duration::ZERO);
    agent.on(&Event::Started { rank: 0 }, ms(1));
    stop(&mut agent, TERM, 10);
    assert_eq!(agent.deadline(), Some(Duration::MAX));
}

/// Builds a group of two whose workers are asked to stop at 100 ms, and killed at 150 ms.
fn limited(signal: i32, requeue_code: Option<i32>) -> Agent {
    let limit = Some(TimeLimit { ask: ms(100), end: ms(150), signal });
    let mut agent = Agent::new(Policy { requeue_code, limit, ..policy(2) });
    agent.begin(Duration::ZERO);
    agent.on(&Event::Started { rank: 0 }, ms(0));
    agent.on(&Event::Started { rank: 1 }, ms(0));
    assert_eq!(agent.deadline(), Some(ms(100)));
    assert_eq!(timer(&mut agent, 99), []);
    agent
}

#[test]
fn before_its_time_limit_a_training_is_asked_to_stop_and_may_be_requeued() {
    let mut agent = limited(USR1, Some(75));
    let asked = timer(&mut agent, 100);
    assert_eq!(signals_in(&asked), to(USR1, &[0, 1]));
    assert!(asked.contains(&Action::Tell(Notice::TimeLimit { workers: 2, left: ms(50) })));
    exit(&mut agent, 0, 75, 120);
    let last = exit(&mut agent, 1, 75, 121);
    let verdict = verdict(&last);
    assert_eq!(verdict.cause, Cause::Requeue);
    assert!(verdict.stop_source.is_some(), "nothing is restarted");
}

#[test]
fn workers_are_killed_at_the_time_limit() {
    let mut agent = limited(USR1, Some(75));
    timer(&mut agent, 100);
    assert_eq!(agent.deadline(), Some(ms(150)));
    exit(&mut agent, 0, 75, 120);
    // The batch system's signal before the limit is only passed on.
    assert_eq!(signals_in(&stop(&mut agent, TERM, 130)), to(TERM, &[1]));
    assert_eq!(signals_in(&timer(&mut agent, 150)), to(KILL, &[1]));
    assert_eq!(verdict(&die(&mut agent, 1, KILL, 151)).cause, Cause::TimeIsUp);
}

#[test]
fn a_program_that_ends_well_when_its_time_is_up_is_started_again() {
    let mut agent = limited(TERM, None);
    timer(&mut agent, 101);
    exit(&mut agent, 0, 0, 110);
    assert_eq!(verdict(&exit(&mut agent, 1, 0, 111)).cause, Cause::Requeue);
    let mut agent = limited(TERM, None);
    timer(&mut agent, 101);
    die(&mut agent, 0, TERM, 110);
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 111)).cause, Cause::TimeIsUp);
}

#[test]
fn a_worker_in_the_making_is_told_of_the_time_limit_too() {
    let limit = Some(TimeLimit { ask: ms(10), end: ms(20), signal: USR1 });
    let mut agent = Agent::new(Policy { limit, ..policy(2) });
    agent.begin(Duration::ZERO);
    agent.on(&Event::Started { rank: 0 }, ms(5));
    timer(&mut agent, 10);
    assert_eq!(agent.on(&Event::Started { rank: 1 }, ms(11)), to(USR1, &[1]));
}

#[test]
fn a_worker_that_the_same_signal_killed_a_moment_earlier_has_obeyed() {
    let mut agent = running(2, None);
    stop(&mut agent, INT, 1000);
    on(
        &mut agent,
        &Event::Ended { rank: 0, outcome: Outcome::Signaled(INT), at: ms(999), lost_peer: false },
        1000,
    );
    let last = die(&mut agent, 1, INT, 1001);
    assert_eq!(verdict(&last).cause, Cause::Stopped { signal: INT });
}

#[test]
fn a_worker_that_dies_of_ctrl_c_at_its_terminal_is_one_request() {
    let mut agent = running(2, None);
    let asked = on(&mut agent, &Event::Interrupted, 1000);
    assert_eq!(signals_in(&asked), to(INT, &[0, 1]));
    die(&mut agent, 0, INT, 1000);
    assert_eq!(on(&mut agent, &Event::Interrupted, 3000), []);
    assert_eq!(signals_in(&stop(&mut agent, INT, 4000)), to(KILL, &[1]));
}

#[test]
fn a_worker_that_dies_of_the_ctrl_c_that_it_was_sent_is_no_second_request() {
    let mut agent = running(2, None);
    stop(&mut agent, INT, 1000);
    assert_eq!(on(&mut agent, &Event::Interrupted, 1300), []);
    assert_eq!(signals_in(&die(&mut agent, 0, INT, 1300)), []);
    let last = exit(&mut agent, 1, 0, 3000);
    assert_eq!(verdict(&last).cause, Cause::Stopped { signal: INT });
}

#[test]
fn workers_whose_run_directory_another_run_has_taken_are_killed_at_once() {
    let mut agent = running(2, Some(75));
    let killed = on(&mut agent, &Event::Evicted, 1000);
    assert_eq!(killed, to(KILL, &[0, 1]));
    assert_eq!(agent.deadline(), Some(ms(11_000)), "killed once");
    die(&mut agent, 0, KILL, 1001);
    let last = die(&mut agent, 1, KILL, 1002);
    assert_eq!(verdict(&last).cause, Cause::Evicted);
}

#[test]
fn a_killed_worker_that_does_not_end_is_given_up_after_a_while() {
    let mut agent = running(2, None);
    stop(&mut agent, TERM, 0);
    stop_again(&mut agent, TERM, 1000);
    die(&mut agent, 0, KILL, 1010);
    assert_eq!(agent.deadline(), Some(ms(11_000)));
    assert_eq!(timer(&mut agent, 10_999), []);
    let actions = timer(&mut agent, 11_000);
    assert_eq!(actions[0], Action::Tell(Notice::Stuck { ranks: vec![1] }));
    assert_eq!(verdict(&actions).cause, Cause::Stopped { signal: TERM });
    assert_eq!(verdict(&actions).ends[1].outcome, Outcome::Signaled(KILL));
}

#[test]
fn the_limit_of_another_node_is_no_second_signal() {
    let limit = Some(TimeLimit { ask: ms(1000), end: ms(60_000), signal: TERM });
    let mut agent = Agent::new(Policy { limit, ..policy(1) });
    agent.begin(Duration::ZERO);
    on(&mut agent, &Event::Started { rank: 0 }, 0);
    assert_eq!(signals_in(&timer(&mut agent, 1000)), to(TERM, &[0]));
    assert_eq!(stop(&mut agent, TERM, 2000), []);
    assert_eq!(verdict(&exit(&mut agent, 0, 0, 3000)).cause, Cause::Requeue);
}

#[test]
fn a_node_that_joins_is_no_request_that_a_failed_attempt_passes_on() {
    for (event, notices) in [(Event::Admit, vec![]), (Event::Forward { signal: USR1 }, vec![USR1])] {
        let mut agent = running(1, Some(75));
        let asked = on(&mut agent, &event, 10);
        assert_eq!(asked, [Action::Notify { rank: 0, signal: USR1 }]);
        assert_eq!(verdict(&exit(&mut agent, 0, 1, 20)).notices, notices);
    }
}
