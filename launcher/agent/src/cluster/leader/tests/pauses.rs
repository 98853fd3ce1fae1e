//! A leader that did not run for a time.

use super::*;

/// Lets the leader sleep, and then handle the ends of all connections.
fn sleep(cluster: &mut Cluster, pause: u64) -> Vec<LeaderAction> {
    cluster.now += ms(pause);
    let others: Vec<_> = cluster.ids().into_iter().filter(|id| *id != OWN).collect();
    let ends = others.into_iter().flat_map(|from| cluster.on(LeaderEvent::Disconnected { from }));
    ends.collect()
}

#[test]
fn a_leader_that_stood_still_blames_itself() {
    for pause in [700, 1500, 60_000] {
        let mut cluster = Cluster::running(2..=3);
        cluster.pass(ms(1000));
        let actions = sleep(&mut cluster, pause);
        assert_eq!(stops(&actions)[0].0, OWN, "{actions:?}");
        let lost =
            |action: &LeaderAction| matches!(action, LeaderAction::Tell(LeaderNotice::NodeLost { .. }));
        assert!(!actions.iter().any(lost), "{actions:?}");
        let mut rest = cluster.drained(OWN, Report { cause: Cause::Failed { rank: 0 }, ..Report::empty() });
        rest.extend(cluster.pass(ms(2000)));
        assert_eq!(ending(&rest), Some(&Ending::LeaderFrozen { pause: ms(pause) }), "{rest:?}");
    }
}

#[test]
fn a_leader_that_stood_still_while_no_worker_ran_ends_only_if_the_others_have_ended() {
    for (pause, ends) in [(20_000, false), (60_000, true)] {
        let mut cluster = Cluster::new(3..=3);
        cluster.join(0);
        cluster.join(1);
        let actions = sleep(&mut cluster, pause);
        assert_eq!(ending(&actions), ends.then_some(&Ending::LeaderFrozen { pause: ms(pause) }));
    }
}

#[test]
fn a_node_that_is_lost_while_the_leader_runs_is_blamed() {
    let mut cluster = Cluster::running(2..=2);
    cluster.pass(ms(1000));
    cluster.now += ms(100);
    let lost = cluster.on(LeaderEvent::Disconnected { from: 1 });
    assert!(
        lost.contains(&LeaderAction::Tell(LeaderNotice::NodeLost { host: "n1".into(), is_connection: true }))
    );
    cluster.now += ms(60_000);
    // No other node is connected, so a pause costs nothing.
    cluster.on(LeaderEvent::Timer);
    let next = cluster.drained(OWN, Report { cause: Cause::OthersFailed, ..Report::empty() });
    assert!(matches!(ending(&next), None | Some(Ending::Judged { .. })), "{next:?}");
}

#[test]
fn a_pause_after_the_work_of_the_others_changes_nothing() {
    let mut cluster = Cluster::running(2..=2);
    cluster.drained(1, Report::empty());
    sleep(&mut cluster, 60_000);
    let actions = cluster.drained(OWN, Report::empty());
    let judged = |cause| matches!(ending(&actions), Some(Ending::Judged { judgement, .. }) if judgement.cause == cause);
    assert!(judged(ClusterCause::Workers(Cause::Success)), "{actions:?}");
}
