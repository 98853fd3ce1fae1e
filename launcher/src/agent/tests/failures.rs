//! Workers that end, fail or do not start.

use super::*;

#[test]
fn all_succeed() {
    let mut agent = running(3, None);
    assert_eq!(exit(&mut agent, 1, 0, 5), []);
    assert_eq!(exit(&mut agent, 0, 0, 9), []);
    let last = exit(&mut agent, 2, 0, 12);
    assert_eq!(verdict(&last).cause, Cause::Success);
    assert_eq!(
        verdict(&last).ends.iter().map(|e| e.rank).collect::<Vec<_>>(),
        [1, 0, 2]
    );
    assert_eq!(agent.deadline(), None);
}

#[test]
fn a_failure_stops_the_others_at_once_and_kills_them_after_the_timeout() {
    let mut agent = running(3, None);
    let actions = exit(&mut agent, 1, 42, 1000);
    assert_eq!(actions[..2], to(TERM, &[0, 2]));
    let told = Notice::Failed {
        rank: 1,
        outcome: Outcome::Exited(42),
        stopping: 2,
    };
    assert_eq!(actions[2..], [Action::Tell(told)]);
    assert_eq!(agent.deadline(), Some(ms(31_000)));

    assert_eq!(die(&mut agent, 0, TERM, 1100), []);
    assert_eq!(
        agent.on(&Event::Timer, ms(30_999)),
        [],
        "an early timer does nothing"
    );
    let actions = agent.on(&Event::Timer, ms(31_000));
    assert_eq!(
        actions[0],
        Action::Signal {
            rank: 2,
            signal: KILL
        }
    );
    assert_eq!(
        actions[1..],
        [Action::Tell(Notice::Killing {
            ranks: vec![2],
            timed_out: Some(TIMEOUT)
        })]
    );
    assert_eq!(agent.deadline(), None, "killed once, then only waited for");

    let last = die(&mut agent, 2, KILL, 31_001);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 1 });
    assert_eq!(verdict(&last).end_of(2).unwrap().sent, [TERM, KILL]);
    assert!(verdict(&last).end_of(2).unwrap().stopped_by_agent());
}

#[test]
fn a_signal_death_is_a_failure() {
    let mut agent = running(2, Some(75));
    assert_eq!(signals_in(&die(&mut agent, 0, KILL, 10)), to(TERM, &[1]));
    assert_eq!(
        verdict(&die(&mut agent, 1, TERM, 20)).cause,
        Cause::Failed { rank: 0 }
    );
}

#[test]
fn a_single_worker_that_fails_ends_the_run() {
    let mut agent = running(1, None);
    let actions = exit(&mut agent, 0, 1, 10);
    assert_eq!(signals_in(&actions), []);
    assert_eq!(verdict(&actions).cause, Cause::Failed { rank: 0 });
}

#[test]
fn the_first_failure_by_time_is_the_cause_whatever_the_order_of_the_news() {
    let mut agent = running(3, None);
    let late_news = Event::Ended {
        rank: 2,
        outcome: Outcome::Exited(7),
        at: ms(90),
    };
    exit(&mut agent, 1, 1, 100);
    agent.on(&late_news, ms(101));
    let last = die(&mut agent, 0, TERM, 200);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 2 });
    assert!(
        verdict(&last).end_of(2).unwrap().sent.is_empty(),
        "it ended before the signal was sent"
    );
}

#[test]
fn a_peer_that_exits_with_a_code_after_sigterm_is_not_the_cause() {
    let mut agent = running(2, None);
    exit(&mut agent, 1, 3, 100);
    assert_eq!(
        verdict(&exit(&mut agent, 0, 143, 150)).cause,
        Cause::Failed { rank: 1 }
    );
}

#[test]
fn code_75_of_a_program_that_does_not_know_it_is_a_failure() {
    let mut agent = running(2, None);
    assert_eq!(signals_in(&exit(&mut agent, 0, 75, 20)), to(TERM, &[1]));
    assert_eq!(
        verdict(&die(&mut agent, 1, TERM, 30)).cause,
        Cause::Failed { rank: 0 }
    );
}
