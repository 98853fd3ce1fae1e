#![allow(clippy::unwrap_used)]

use super::*;
use crate::signals::{INT, TERM};

const REJOIN: Duration = Duration::from_secs(10);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

fn member() -> Member {
    let node = Node { host: "n1".into(), instance: 1, workers: 1, ..Node::default() };
    let policy = MemberPolicy { join_timeout: ms(600_000), rejoin_timeout: REJOIN };
    Member::new(node, policy, Duration::ZERO).0
}

fn welcome(leader: u64) -> MemberEvent {
    let run = RunInfo { leader, ..RunInfo::default() };
    MemberEvent::Received(ToMember::Welcome { times: Times::short(), run, is_spare: false })
}

fn propose(epoch: u64) -> MemberEvent {
    let placement = Placement { group_rank: 1, group_world_size: 2, first_rank: 1, world_size: 2 };
    let preparation = Preparation { epoch, restart: 0, logs: 0, placement, notices: vec![], has_trial: true };
    MemberEvent::Received(ToMember::Propose(preparation))
}

fn prepared(epoch: u64) -> MemberEvent {
    MemberEvent::Prepared { epoch, listens: None, logs: 0, place: None }
}

fn start(epoch: u64) -> MemberEvent {
    let rank0 = Endpoint { host: "n0".into(), port: 1, is_served: false };
    MemberEvent::Received(ToMember::Start { epoch, rank0 })
}

fn over() -> MemberEvent {
    let verdict = Verdict {
        cause: Cause::OthersFailed,
        ends: vec![],
        stop_source: None,
        silent_since: None,
        notices: vec![],
    };
    let finished = FinishedAttempt { verdict, port_taken: false, has_checkpoint: false, blame: None };
    MemberEvent::Over(Box::new(finished))
}

fn on(member: &mut Member, events: impl IntoIterator<Item = MemberEvent>, now: u64) -> Vec<MemberAction> {
    events.into_iter().flat_map(|event| member.on(event, ms(now))).collect()
}

/// Returns a member whose workers run in epoch 1 since 0 ms, with a lease until 1000 ms.
fn running() -> Member {
    let mut member = member();
    let actions = on(&mut member, [MemberEvent::Connected, welcome(1), propose(1), prepared(1), start(1)], 0);
    assert!(actions.iter().any(|action| matches!(action, MemberAction::Start { .. })), "{actions:?}");
    member
}

fn endings(actions: &[MemberAction]) -> Vec<&MemberEnding> {
    let ends = actions.iter().filter_map(|action| match action {
        MemberAction::Finish(ending) => Some(ending),
        _ => None,
    });
    ends.collect()
}

fn sends(actions: &[MemberAction], message: &ToLeader) -> bool {
    actions.contains(&MemberAction::Send(message.clone()))
}

#[test]
fn a_late_answer_to_an_earlier_preparation_is_not_reported() {
    let mut member = member();
    on(&mut member, [MemberEvent::Connected, welcome(1), propose(1)], 0);
    let stop = MemberEvent::Received(ToMember::Stop { epoch: 1, reason: StopReason::Regroup });
    let actions = on(&mut member, [stop, prepared(1), propose(2), prepared(1)], 1);
    let is_ready = |action: &MemberAction| matches!(action, MemberAction::Send(ToLeader::Ready { .. }));
    assert!(!actions.iter().any(is_ready), "{actions:?}");
    assert!(sends(
        &on(&mut member, [prepared(2)], 2),
        &ToLeader::Ready { epoch: 2, listens: None, logs: 0, place: None }
    ));
}

#[test]
fn a_start_of_an_earlier_epoch_or_after_the_lease_starts_nothing() {
    let mut member = member();
    on(&mut member, [MemberEvent::Connected, welcome(1), propose(2), prepared(2)], 0);
    let is_start = |action: &MemberAction| matches!(action, MemberAction::Start { .. });
    assert!(!on(&mut member, [start(1)], 1).iter().any(is_start));
    let late = on(&mut member, [start(2), propose(3)], 1000);
    assert_eq!(late[..2], [MemberAction::Disconnect, MemberAction::Connect], "{late:?}");
    assert_eq!(late.len(), 2, "{late:?}");
}

#[test]
fn a_member_does_not_follow_another_leader() {
    let mut member = running();
    on(&mut member, [MemberEvent::Disconnected, over(), MemberEvent::Connected], 10);
    let actions = on(&mut member, [welcome(2)], 20);
    assert_eq!(endings(&actions), [&MemberEnding::LeaderLost]);
}

#[test]
fn workers_of_a_lost_connection_are_killed_when_its_lease_ends() {
    let mut member = running();
    on(&mut member, [MemberEvent::Disconnected, MemberEvent::Connected, welcome(1)], 500);
    assert_eq!(member.lease_end(), Some(ms(1000)), "the new connection's lease is for later workers");
    assert!(!on(&mut member, [MemberEvent::Timer], 999).contains(&MemberAction::Kill));
    assert!(on(&mut member, [MemberEvent::Timer], 1000).contains(&MemberAction::Kill));
    assert!(member.deadline() > Some(ms(1000)), "they are not killed again");
    on(&mut member, [over()], 1100);
    assert_eq!(member.lease_end(), None, "no worker needs one");
}

#[test]
fn after_the_kill_only_the_end_of_the_workers_is_awaited() {
    let mut member = running();
    assert!(on(&mut member, [MemberEvent::Timer], 1000).contains(&MemberAction::Kill));
    assert_eq!(member.deadline(), None);
    on(&mut member, [over()], 60_000);
    assert_eq!(member.deadline(), Some(ms(60_000) + REJOIN), "the wait for the leader begins now");
}

#[test]
fn a_request_without_a_connection_is_sent_with_the_next() {
    let mut member = running();
    let lost =
        on(&mut member, [MemberEvent::Disconnected, MemberEvent::Asked { signal: TERM, again: false }], 10);
    assert!(!sends(&lost, &ToLeader::Asked { signal: TERM, again: false }), "{lost:?}");
    let again = on(&mut member, [MemberEvent::Connected, welcome(1)], 20);
    assert!(sends(&again, &ToLeader::Asked { signal: TERM, again: false }), "{again:?}");
}

#[test]
fn a_node_that_is_asked_to_stop_waits_for_no_leader() {
    let mut waiting = member();
    let stopped = MemberEnding::Stopped { signal: INT };
    let asked = MemberEvent::Asked { signal: INT, again: false };
    assert_eq!(endings(&on(&mut waiting, [asked.clone()], 0)), [&stopped]);
    let mut member = running();
    assert_eq!(endings(&on(&mut member, [MemberEvent::Disconnected, asked], 10)), Vec::<&_>::new());
    assert_eq!(endings(&on(&mut member, [over()], 20)), [&stopped]);
}

#[test]
fn a_leader_that_accepts_connections_but_does_not_answer_is_given_up() {
    let mut member = running();
    on(&mut member, [MemberEvent::Disconnected, over()], 0);
    for second in 0..10 {
        let actions = on(&mut member, [MemberEvent::Connected, MemberEvent::Disconnected], second * 1000);
        assert_eq!(endings(&actions), Vec::<&_>::new(), "after {second} s");
    }
    assert_eq!(endings(&on(&mut member, [MemberEvent::Connected], 10_000)), [&MemberEnding::LeaderLost]);
}

#[test]
fn ranks_and_times_of_a_report_are_the_leaders() {
    let mut member = running();
    on(&mut member, [MemberEvent::Timer], 200);
    let answer = ToMember::Beat { number: 1, time: ms(50_000) };
    on(&mut member, [MemberEvent::Received(answer)], 200);
    let end = End { rank: 0, outcome: Outcome::Exited(1), at: ms(100), sent: vec![], lost_peer: false };
    let actions = on(&mut member, [MemberEvent::Failed(end)], 300);
    let [MemberAction::Send(ToLeader::Failed { epoch: 1, end })] = &actions[..] else {
        panic!("{actions:?}")
    };
    assert_eq!(end.rank, 1);
    assert!(end.at.at.abs_diff(ms(49_900)) <= end.at.error + ms(100), "{:?}", end.at);
    assert!(end.at.is_before(&Moment::exact(ms(60_000))));
}

#[test]
fn a_proposal_waits_for_the_end_of_earlier_workers() {
    let mut member = running();
    let prepared = |actions: &[MemberAction]| {
        actions.iter().any(|action| matches!(action, MemberAction::Prepare(it) if it.epoch == 2))
    };
    let early =
        on(&mut member, [MemberEvent::Disconnected, MemberEvent::Connected, welcome(1), propose(2)], 500);
    assert!(!prepared(&early), "{early:?}");
    assert!(on(&mut member, [MemberEvent::Timer], 1000).contains(&MemberAction::Kill));
    assert!(prepared(&on(&mut member, [over()], 1100)));
}

#[test]
fn a_lost_leader_is_no_failure_after_the_good_end() {
    for (announced, code) in [(true, Some(0)), (false, None)] {
        let mut member = running();
        let mut events = vec![over()];
        events.extend(announced.then_some(MemberEvent::Received(ToMember::EndedWell)));
        events.push(MemberEvent::Disconnected);
        assert!(endings(&on(&mut member, events, 10)).is_empty());
        let actions = on(&mut member, [MemberEvent::LeaderGone], 20);
        match code {
            Some(code) => {
                assert!(
                    matches!(endings(&actions)[..], [MemberEnding::Decided { code: found, .. }] if *found == code)
                );
            }
            None => assert_eq!(endings(&actions), [&MemberEnding::LeaderLost]),
        }
    }
}

#[test]
fn a_member_whose_leader_is_gone_waits_for_its_workers() {
    let mut member = running();
    let actions = on(&mut member, [MemberEvent::Disconnected, MemberEvent::LeaderGone], 10);
    assert!(endings(&actions).is_empty(), "{actions:?}");
    assert_eq!(endings(&on(&mut member, [over()], 20)), [&MemberEnding::LeaderLost]);
}

#[test]
fn a_signal_before_the_start_is_not_lost() {
    let mut member = member();
    on(&mut member, [MemberEvent::Connected, welcome(1), propose(1), prepared(1)], 0);
    let actions = on(&mut member, [MemberEvent::Asked { signal: TERM, again: false }, start(1)], 10);
    assert!(!actions.iter().any(|action| matches!(action, MemberAction::Start { .. })), "{actions:?}");
    let report = Box::new(Report { cause: Cause::Stopped { signal: TERM }, ..Report::empty() });
    assert!(sends(&actions, &ToLeader::Drained { epoch: 1, report }), "{actions:?}");
}
