//! Workers that end, fail or do not start.

use super::*;

#[test]
fn all_succeed() {
    let mut agent = running(3, None);
    assert_eq!(exit(&mut agent, 1, 0, 5), []);
    assert_eq!(exit(&mut agent, 0, 0, 9), []);
    let last = exit(&mut agent, 2, 0, 12);
    assert_eq!(verdict(&last).cause, Cause::Success);
    assert_eq!(verdict(&last).ends.iter().map(|e| e.rank).collect::<Vec<_>>(), [1, 0, 2]);
    assert_eq!(agent.deadline(), None);
}

#[test]
fn a_failure_stops_the_others_at_once_and_kills_them_after_the_timeout() {
    let mut agent = running(3, None);
    let actions = exit(&mut agent, 1, 42, 1000);
    assert_eq!(actions[..2], to(TERM, &[0, 2]));
    let told = Notice::Failed { rank: 1, outcome: Outcome::Exited(42), stopping: 2 };
    assert_eq!(actions[2..], [Action::Tell(told)]);
    assert_eq!(agent.deadline(), Some(ms(31_000)));

    assert_eq!(die(&mut agent, 0, TERM, 1100), []);
    assert_eq!(timer(&mut agent, 30_999), [], "an early timer does nothing");
    let actions = timer(&mut agent, 31_000);
    assert_eq!(actions[0], Action::Signal { rank: 2, signal: KILL });
    assert_eq!(
        actions[1..],
        [Action::Tell(Notice::Killing { ranks: vec![2], why: KillReason::TimedOut(TIMEOUT) })]
    );
    assert_eq!(agent.deadline(), Some(ms(41_000)), "killed once, then only waited for");

    let last = die(&mut agent, 2, KILL, 31_001);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 1 });
    assert_eq!(verdict(&last).end_of(2).unwrap().sent, [TERM, KILL]);
    assert!(verdict(&last).end_of(2).unwrap().stopped_by_agent());
}

#[test]
fn a_signal_death_is_a_failure() {
    let mut agent = running(2, Some(75));
    assert_eq!(signals_in(&die(&mut agent, 0, KILL, 10)), to(TERM, &[1]));
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 20)).cause, Cause::Failed { rank: 0 });
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
    let late_news = Event::Ended { rank: 2, outcome: Outcome::Exited(7), at: ms(90), lost_peer: false };
    exit(&mut agent, 1, 1, 100);
    agent.on(&late_news, ms(101));
    let last = die(&mut agent, 0, TERM, 200);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 2 });
    assert!(verdict(&last).end_of(2).unwrap().sent.is_empty(), "it ended before the signal was sent");
}

#[test]
fn a_peer_that_exits_with_a_code_after_sigterm_is_not_the_cause() {
    let mut agent = running(2, None);
    exit(&mut agent, 1, 3, 100);
    assert_eq!(verdict(&exit(&mut agent, 0, 143, 150)).cause, Cause::Failed { rank: 1 });
}

#[test]
fn code_75_of_a_program_that_does_not_know_it_is_a_failure() {
    let mut agent = running(2, None);
    assert_eq!(signals_in(&exit(&mut agent, 0, 75, 20)), to(TERM, &[1]));
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 30)).cause, Cause::Failed { rank: 0 });
}

/// Ends a worker whose last messages report another worker as gone.
fn lose_peer(agent: &mut Agent, rank: usize, at: u64) -> Vec<Action> {
    let ended = Event::Ended { rank, outcome: Outcome::Exited(1), at: ms(at), lost_peer: true };
    on(agent, &ended, at)
}

#[test]
fn a_rank_that_lost_another_is_not_the_cause_where_that_one_fails_by_itself() {
    let mut agent = running(3, None);
    assert_eq!(lose_peer(&mut agent, 0, 100), [], "the others are left to fail");
    assert_eq!(agent.deadline(), Some(ms(1100)));
    assert_eq!(lose_peer(&mut agent, 2, 300), []);
    let last = exit(&mut agent, 1, 7, 900);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 1 });
}

#[test]
fn a_rank_that_lost_another_has_failed_where_no_other_does() {
    let mut agent = running(2, None);
    lose_peer(&mut agent, 0, 100);
    assert_eq!(timer(&mut agent, 1099), []);
    let actions = timer(&mut agent, 1100);
    assert_eq!(signals_in(&actions), to(TERM, &[1]));
    assert!(matches!(actions[1], Action::Tell(Notice::Failed { rank: 0, .. })));
    // The failure comes too late, and the worker was asked to stop.
    assert_eq!(verdict(&exit(&mut agent, 1, 7, 1150)).cause, Cause::Failed { rank: 0 });
}

#[test]
fn a_failure_of_its_own_stops_the_rest_that_lost_it() {
    let mut agent = running(3, None);
    lose_peer(&mut agent, 0, 100);
    assert_eq!(signals_in(&exit(&mut agent, 1, 7, 500)), to(TERM, &[2]));
    let last = die(&mut agent, 2, TERM, 510);
    assert_eq!(verdict(&last).cause, Cause::Failed { rank: 1 });
}

#[test]
fn a_notice_that_an_attempt_does_not_heed_is_left_for_the_next() {
    // A training that fails after a request to stop.
    let mut agent = running(1, Some(75));
    assert_eq!(
        on(&mut agent, &Event::Forward { signal: USR1 }, 100),
        [Action::Notify { rank: 0, signal: USR1 }]
    );
    assert_eq!(verdict(&exit(&mut agent, 0, 1, 200)).notices, [USR1]);
    // A running program has received the notice, unless it was being stopped.
    let mut agent = running(2, None);
    on(&mut agent, &Event::Forward { signal: USR1 }, 100);
    exit(&mut agent, 0, 1, 200);
    on(&mut agent, &Event::Forward { signal: USR2 }, 300);
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 400)).notices, [USR2]);
}

#[test]
fn a_notice_from_before_reaches_workers_when_they_are_started() {
    let mut agent = Agent::new(Policy { notices: vec![USR1], ..policy(2) });
    agent.begin(Duration::ZERO);
    let notify = |rank, signal| Action::Notify { rank, signal };
    assert_eq!(agent.on(&Event::Started { rank: 0 }, ms(1)), [notify(0, USR1), Action::Start { rank: 1 }]);
    let sent = agent.on(&Event::Forward { signal: USR2 }, ms(2));
    assert_eq!(signals_in(&sent), to(USR2, &[0]));
    assert_eq!(agent.on(&Event::Started { rank: 1 }, ms(3)), [notify(1, USR1), notify(1, USR2)]);
    exit(&mut agent, 0, 0, 10);
    assert!(verdict(&exit(&mut agent, 1, 0, 11)).notices.is_empty());
}

#[test]
fn nothing_is_started_after_the_time_limit() {
    let limit = Some(TimeLimit { ask: ms(100), end: ms(200), signal: TERM });
    let limited = || Agent::new(Policy { limit, ..policy(2) });
    assert_eq!(verdict(&limited().begin(ms(100))).cause, Cause::TimeIsUp);
    let mut agent = limited();
    agent.begin(ms(99));
    let actions = agent.on(&Event::Started { rank: 0 }, ms(100));
    assert_eq!(signals_in(&actions), to(TERM, &[0]));
    assert_eq!(verdict(&exit(&mut agent, 0, 0, 150)).cause, Cause::TimeIsUp, "one was never started");
}

#[test]
fn workers_stopped_for_other_nodes_are_not_to_blame() {
    let mut agent = running(3, Some(75));
    assert_eq!(signals_in(&on(&mut agent, &Event::OthersFailed, 10)), to(TERM, &[0, 1, 2]));
    exit(&mut agent, 0, 1, 20);
    exit(&mut agent, 1, 75, 30);
    assert_eq!(verdict(&die(&mut agent, 2, TERM, 40)).cause, Cause::OthersFailed);
}

#[test]
fn a_training_that_has_lost_other_nodes_is_killed_soon_unless_it_writes() {
    let killed_after = |requeue_code, beats: bool| {
        let mut agent = running(1, requeue_code);
        on(&mut agent, &Event::Beat { rank: 0, at: ms(5), writing: beats }, 5);
        on(&mut agent, &Event::OthersFailed, 10);
        let deadline = agent.deadline().unwrap();
        assert_eq!(signals_in(&timer(&mut agent, 10 + deadline.as_millis() as u64)), to(KILL, &[0]));
        deadline - ms(10)
    };
    assert_eq!(killed_after(Some(75), false), ALONE);
    assert_eq!(killed_after(Some(75), true), TIMEOUT, "it may finish the checkpoint");
    assert_eq!(killed_after(None, false), TIMEOUT, "a program may do what it wants at SIGTERM");
}

#[test]
fn a_peer_of_another_node_is_lost_because_of_others() {
    let mut agent = running(2, None);
    lose_peer(&mut agent, 0, 5);
    on(&mut agent, &Event::OthersFailed, 10);
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 40)).cause, Cause::OthersFailed);
}

#[test]
fn a_worker_that_failed_before_the_others_is_to_blame() {
    let mut agent = running(2, None);
    // The agent learns of the end after the message about the others.
    on(&mut agent, &Event::OthersFailed, 10);
    on(&mut agent, &Event::Ended { rank: 0, outcome: Outcome::Exited(1), at: ms(5), lost_peer: false }, 20);
    assert_eq!(verdict(&die(&mut agent, 1, TERM, 40)).cause, Cause::Failed { rank: 0 });
}

#[test]
fn a_worker_that_starts_after_the_end_of_the_lease_is_killed() {
    let mut agent = Agent::new(policy(2));
    agent.begin(Duration::ZERO);
    assert_eq!(on(&mut agent, &Event::LeaseEnded, 1), []);
    assert_eq!(on(&mut agent, &Event::Started { rank: 0 }, 2), to(KILL, &[0]));
    assert_eq!(verdict(&die(&mut agent, 0, KILL, 3)).cause, Cause::OthersFailed);
}

#[test]
fn workers_killed_after_other_nodes_stopped_with_a_checkpoint_are_no_success() {
    let mut agent = running(1, Some(75));
    assert_eq!(on(&mut agent, &Event::OthersRequeue, 10), []);
    assert_eq!(signals_in(&timer(&mut agent, 10 + 30_000)), to(KILL, &[0]));
    assert_eq!(verdict(&die(&mut agent, 0, KILL, 30_020)).cause, Cause::Requeue);
}
