//! Workers that make no progress, and freezes of the launcher.

use super::*;

const LEAST: u64 = 5_000;

/// Builds a group of two that beat once a second until 10 s and then stop; a hang counts from 15 s on.
fn beating(shutdown_timeout: Duration) -> Agent {
    let hang = Some(HangPolicy { factor: 2, least: ms(LEAST), early: None });
    let mut agent = Agent::new(Policy { shutdown_timeout, requeue_code: Some(75), hang, ..policy(2) });
    agent.begin(Duration::ZERO);
    agent.on(&Event::Started { rank: 0 }, ms(0));
    agent.on(&Event::Started { rank: 1 }, ms(0));
    for second in 1..=10 {
        beat(&mut agent, 1, second * 1000, false);
        beat(&mut agent, 0, second * 1000 + 1, false);
    }
    assert_eq!(agent.deadline(), Some(ms(15_000)));
    agent
}

fn beat(agent: &mut Agent, rank: usize, at: u64, writing: bool) -> Vec<Action> {
    let beat = Event::Beat { rank, at: ms(at), writing };
    on(agent, &beat, at)
}

/// Returns a group that is suspected at 15 s and inspected.
fn suspected() -> Agent {
    let mut agent = beating(TIMEOUT);
    assert_eq!(timer(&mut agent, 14_999), []);
    assert_eq!(
        timer(&mut agent, 15_000),
        [
            Action::Tell(Notice::Hanging { silent: vec![(1, ms(5000)), (0, ms(4999))] }),
            Action::Inspect { ranks: vec![0, 1], number: 1 }
        ]
    );
    agent
}

#[test]
fn workers_that_hang_are_asked_where_they_are_and_then_killed() {
    let mut agent = suspected();
    // The inspection took 2 s, so the workers get 2 s more.
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, 17_000), []);
    assert_eq!(agent.deadline(), Some(ms(19_000)));
    assert_eq!(timer(&mut agent, 19_000), to(crate::signals::ABRT, &[0, 1]));
    die(&mut agent, 0, crate::signals::ABRT, 19_100);
    assert_eq!(signals_in(&timer(&mut agent, 29_000)), to(KILL, &[1]));
    let last = die(&mut agent, 1, KILL, 29_001);
    assert_eq!(verdict(&last).cause, Cause::Hung { rank: 1 });
}

#[test]
fn an_inspection_that_does_not_end_is_not_waited_for() {
    let mut agent = suspected();
    let end = 15_000 + INSPECTION.as_millis() as u64;
    assert_eq!(agent.deadline(), Some(ms(end)));
    assert_eq!(signals_in(&timer(&mut agent, end)).len(), 2);
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, end + 1), [], "too late");
}

#[test]
fn workers_that_go_on_while_they_are_inspected_are_left_alone() {
    let mut agent = suspected();
    assert_eq!(beat(&mut agent, 0, 16_000, false), [], "the other one is still silent");
    assert_eq!(beat(&mut agent, 1, 16_001, false), [Action::Tell(Notice::Recovered)]);
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, 17_000), []);
    assert_eq!(agent.deadline(), Some(ms(21_000)));
    exit(&mut agent, 0, 0, 18_000);
    assert_eq!(verdict(&exit(&mut agent, 1, 0, 18_001)).cause, Cause::Success);
}

#[test]
fn a_silent_worker_that_fails_is_no_longer_taken_for_hanging() {
    let mut agent = suspected();
    beat(&mut agent, 0, 16_000, false);
    let ended = Event::Ended { rank: 1, outcome: Outcome::Exited(1), at: ms(16_001), lost_peer: true };
    assert_eq!(on(&mut agent, &ended, 16_001), [Action::Tell(Notice::Recovered)]);
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, 16_002), []);
    assert_eq!(signals_in(&timer(&mut agent, 17_001)), to(TERM, &[0]), "a failure");
}

#[test]
fn workers_that_end_well_while_they_are_inspected_have_not_hung() {
    for code in [0, 75] {
        let mut agent = suspected();
        exit(&mut agent, 1, code, 16_000);
        let last = exit(&mut agent, 0, code, 16_001);
        let expected = if code == 0 { Cause::Success } else { Cause::Requeue };
        assert_eq!(verdict(&last).cause, expected);
    }
}

#[test]
fn workers_that_end_well_although_they_were_asked_where_they_are_have_not_hung() {
    let mut agent = suspected();
    timer(&mut agent, 45_000);
    exit(&mut agent, 0, 0, 45_001);
    assert_eq!(verdict(&exit(&mut agent, 1, 0, 45_002)).cause, Cause::Success);
}

#[test]
fn a_failure_or_a_request_while_they_are_inspected_counts() {
    let mut agent = suspected();
    assert_eq!(signals_in(&exit(&mut agent, 0, 3, 16_000)), to(TERM, &[1]));
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 16_100)).cause, Cause::Failed { rank: 0 });
    let mut agent = suspected();
    assert_eq!(signals_in(&stop(&mut agent, TERM, 16_000)), to(TERM, &[0, 1]));
    exit(&mut agent, 0, 75, 16_100);
    assert_eq!(verdict(&exit(&mut agent, 1, 75, 16_200)).cause, Cause::Requeue);
}

fn resumed(frozen: u64, hang_dropped: bool) -> Vec<Action> {
    let frozen = ms(frozen);
    vec![Action::Tell(Notice::Resumed { frozen, hang_dropped })]
}

#[test]
fn a_job_that_was_frozen_as_a_whole_is_not_taken_for_hanging() {
    let mut agent = beating(TIMEOUT);
    // No tick came for an hour.
    assert_eq!(agent.on(&Event::Timer, ms(3_610_000)), resumed(3_599_999, false));
    assert_eq!(agent.deadline(), Some(ms(3_615_000)));
    assert_eq!(beat(&mut agent, 1, 3_611_000, false), []);
    assert_eq!(beat(&mut agent, 0, 3_611_000, false), []);
    assert_eq!(timer(&mut agent, 3_616_000).len(), 2, "but it may still hang");
}

#[test]
fn a_job_that_was_frozen_while_it_was_inspected_is_judged_anew() {
    let mut agent = suspected();
    assert_eq!(agent.on(&Event::Timer, ms(3_615_000)), resumed(3_600_000, true));
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, 3_615_001), []);
    assert_eq!(agent.deadline(), Some(ms(3_620_000)));
}

#[test]
fn a_hang_is_found_however_often_the_job_is_frozen() {
    let mut agent = suspected();
    // The job runs for 2 s at a time.
    let runs = (1..100).find(|n| {
        let before = ms(10_000 + n * 5_000);
        agent.latest = before;
        let mut actions = agent.on(&Event::Timer, before + ms(3_000));
        actions.extend(agent.on(&Event::Timer, before + ms(5_000)));
        !signals_in(&actions).is_empty()
    });
    let longest = 2 * LEAST + INSPECTION.as_millis() as u64;
    assert!(runs.is_some_and(|runs| 2000 * runs <= longest), "{runs:?}");
}

#[test]
fn the_answer_of_an_earlier_inspection_is_not_that_of_this_one() {
    let mut agent = suspected();
    beat(&mut agent, 0, 16_000, false);
    beat(&mut agent, 1, 16_000, false);
    assert_eq!(timer(&mut agent, 26_000).len(), 2, "silent again");
    let until = agent.deadline();
    assert_eq!(on(&mut agent, &Event::Inspected { number: 1 }, 27_000), []);
    assert_eq!(agent.deadline(), until);
    on(&mut agent, &Event::Inspected { number: 2 }, 27_000);
    assert_eq!(agent.deadline(), Some(ms(28_000)));
}

#[test]
fn a_job_that_was_frozen_while_it_stopped_has_its_time_anew_but_not_for_ever() {
    let mut agent = running(1, Some(75));
    stop(&mut agent, TERM, 1000);
    timer(&mut agent, 21_000);
    assert_eq!(agent.on(&Event::Timer, ms(3_621_000)), resumed(3_600_000, false));
    assert_eq!(agent.deadline(), Some(ms(3_651_000)));
    timer(&mut agent, 3_641_000);
    agent.on(&Event::Timer, ms(7_241_000));
    assert_eq!(agent.deadline(), Some(ms(7_261_000)), "twice the timeout is the most");
    assert_eq!(verdict(&exit(&mut agent, 0, 75, 7_242_000)).cause, Cause::Requeue);
}

#[test]
fn a_time_limit_goes_on_while_a_job_is_frozen_but_workers_may_still_stop() {
    let limited = || {
        let (shutdown_timeout, requeue_code) = (ms(4000), Some(75));
        let limit = Some(TimeLimit { ask: ms(10_000), end: ms(20_000), signal: USR1 });
        let mut agent = Agent::new(Policy { shutdown_timeout, requeue_code, limit, ..policy(1) });
        agent.begin(Duration::ZERO);
        agent.on(&Event::Started { rank: 0 }, ms(0));
        agent
    };
    let mut agent = limited();
    assert_eq!(signals_in(&agent.on(&Event::Timer, ms(15_000))), to(USR1, &[0]));
    assert_eq!(agent.deadline(), Some(ms(20_000)));
    // Frozen until after the end.
    let mut agent = limited();
    assert_eq!(signals_in(&agent.on(&Event::Timer, ms(60_000))), to(USR1, &[0]));
    assert_eq!(agent.deadline(), Some(ms(64_000)));
    let mut agent = limited();
    timer(&mut agent, 10_000);
    assert_eq!(agent.on(&Event::Timer, ms(60_000)), resumed(50_000, false));
    assert_eq!(signals_in(&timer(&mut agent, 64_000)), to(KILL, &[0]));
}

#[test]
fn a_checkpoint_that_is_written_is_waited_for_beyond_the_timeout() {
    let mut agent = beating(ms(2000));
    stop(&mut agent, TERM, 11_000);
    for at in [11_500, 12_000, 12_500] {
        assert_eq!(beat(&mut agent, 0, at, true), []);
    }
    assert_eq!(timer(&mut agent, 13_000), [Action::Tell(Notice::Writing { ranks: vec![0], left: None })]);
    for at in (13_500..600_000).step_by(500) {
        assert_eq!(beat(&mut agent, 0, at, true), []);
        assert_eq!(timer(&mut agent, at), [], "told once, killed never");
    }
    exit(&mut agent, 1, 75, 600_000);
    assert_eq!(verdict(&exit(&mut agent, 0, 75, 600_001)).cause, Cause::Requeue);
}

#[test]
fn a_write_that_falls_silent_is_not_waited_for() {
    let mut agent = beating(ms(2000));
    stop(&mut agent, TERM, 11_000);
    beat(&mut agent, 0, 12_500, true);
    assert_eq!(timer(&mut agent, 13_000).len(), 1);
    assert_eq!(agent.deadline(), Some(ms(22_500)));
    assert_eq!(signals_in(&timer(&mut agent, 22_500)), to(KILL, &[0, 1]));
}

#[test]
fn a_write_is_waited_for_no_longer_than_the_limit_or_a_second_request_allow() {
    let mut agent = beating(ms(2000));
    agent.policy.limit = Some(TimeLimit { ask: ms(20_000), end: ms(21_000), signal: USR1 });
    stop(&mut agent, TERM, 11_000);
    beat(&mut agent, 0, 12_900, true);
    timer(&mut agent, 13_000);
    assert_eq!(agent.deadline(), Some(ms(21_000)));
    beat(&mut agent, 0, 20_900, true);
    assert_eq!(signals_in(&timer(&mut agent, 21_000)), to(KILL, &[0, 1]));

    let mut agent = beating(ms(2000));
    stop(&mut agent, TERM, 11_000);
    beat(&mut agent, 0, 12_900, true);
    timer(&mut agent, 13_000);
    assert_eq!(signals_in(&stop_again(&mut agent, TERM, 14_000)), to(KILL, &[0, 1]));
}

#[test]
fn a_write_of_workers_that_have_lost_one_is_not_waited_for() {
    let mut agent = beating(ms(2000));
    exit(&mut agent, 1, 1, 11_000);
    beat(&mut agent, 0, 12_900, true);
    assert_eq!(signals_in(&timer(&mut agent, 13_000)), to(KILL, &[0]));
}
