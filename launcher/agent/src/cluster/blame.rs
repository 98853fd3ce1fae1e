//! The cause of an epoch's end, from the reports of all nodes.

use super::lease::Moment;
use super::message::{Report, WorkerEnd};
use crate::local::{Cause, Outcome, SAME_MOMENT};
use std::time::Duration;

/// A node of the epoch, at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEnd {
    pub host: String,
    pub group_rank: usize,
    /// `None`: the node was lost before it reported.
    pub report: Option<Report>,
    /// When the leader lost the node: between the last sign of it and the end of its connection or lease.
    pub lost: Option<Moment>,
}

impl NodeEnd {
    /// Returns whether the worker of this rank ran on the node.
    pub fn has(&self, rank: usize) -> bool {
        self.report.as_ref().is_some_and(|report| {
            report.cause.rank() == Some(rank) || report.ends.iter().any(|end| end.rank == rank)
        })
    }
}

/// What ended an epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    pub cause: ClusterCause,
    /// Other ranks and nodes that failed by themselves so near in time that clocks cannot tell which was first.
    pub ambiguous: Vec<Culprit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterCause {
    /// As on one node.
    Workers(Cause),
    NodeLost {
        group_rank: usize,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Culprit {
    Rank(usize),
    Node(usize),
}

/// A failure that may have ended the epoch.
#[derive(Clone, Copy, Debug)]
struct Failure {
    culprit: Culprit,
    at: Moment,
    /// Whether it may follow from another failure.
    is_consequence: bool,
    cause: ClusterCause,
}

/// Judges an epoch in which every node has reported or is lost. `requeue` is the exit code of a worker that
/// stopped with a checkpoint.
pub fn judge(nodes: &[NodeEnd], requeue: Option<i32>) -> Judgement {
    let reports = || nodes.iter().filter_map(|node| node.report.as_ref());
    let clear = |cause| Judgement { cause: ClusterCause::Workers(cause), ambiguous: Vec::new() };
    if reports().any(|report| report.cause == Cause::Evicted) {
        return clear(Cause::Evicted);
    }
    // Workers that obeyed a request to stop have left the others without peers.
    let is_stopped = reports().any(|it| matches!(it.cause, Cause::Stopped { .. } | Cause::TimeIsUp));
    let failures: Vec<Failure> = nodes.iter().flat_map(|node| failures(node, requeue, is_stopped)).collect();
    // A failure that is surely no consequence is the cause, if it is not later than its consequences can be.
    let earliest = |failures: &mut dyn Iterator<Item = &Failure>| failures.min_by_key(|it| it.at.at).copied();
    let first = earliest(&mut failures.iter());
    let can_be_cause = |it: &&Failure| {
        let is_in_time = |first: Failure| it.at.at <= latest(first.at).saturating_add(it.at.error);
        !it.is_consequence && first.is_some_and(is_in_time)
    };
    let blamed = earliest(&mut failures.iter().filter(can_be_cause)).or(first);
    let Some(blamed) = blamed else {
        // Nodes agree, or some were stopped before the others had ended.
        let by_weight = |cause: &Cause| match cause {
            Cause::TimeIsUp => 3,
            Cause::Stopped { .. } => 2,
            Cause::Requeue => 1,
            _ => 0,
        };
        return clear(reports().map(|report| report.cause).max_by_key(by_weight).unwrap_or(Cause::Success));
    };
    let near = |it: &&Failure| {
        it.culprit != blamed.culprit
            && it.is_consequence == blamed.is_consequence
            && !blamed.at.is_before(&it.at)
            && !it.at.is_before(&blamed.at)
    };
    // Two failures on one clock are ordered, whatever the error of that clock.
    let ambiguous = failures.iter().filter(near).filter(|it| node_of(it, nodes) != node_of(&blamed, nodes));
    Judgement { cause: blamed.cause, ambiguous: ambiguous.map(|it| it.culprit).collect() }
}

/// A worker that failed until this time after the first may still be its cause.
fn latest(first: Moment) -> Duration {
    first.at.saturating_add(first.error).saturating_add(SAME_MOMENT)
}

fn node_of(failure: &Failure, nodes: &[NodeEnd]) -> Option<usize> {
    match failure.culprit {
        Culprit::Node(group_rank) => Some(group_rank),
        Culprit::Rank(rank) => nodes.iter().find(|node| node.has(rank)).map(|node| node.group_rank),
    }
}

fn failures(node: &NodeEnd, requeue: Option<i32>, is_stopped: bool) -> Vec<Failure> {
    let lost = node.lost.filter(|_| node.report.is_none()).map(|at| Failure {
        culprit: Culprit::Node(node.group_rank),
        at,
        is_consequence: false,
        cause: ClusterCause::NodeLost { group_rank: node.group_rank },
    });
    let Some(report) = &node.report else { return lost.into_iter().collect() };
    let rank_failed = |rank, at, is_consequence, cause| Failure {
        culprit: Culprit::Rank(rank),
        at,
        is_consequence,
        cause: ClusterCause::Workers(cause),
    };
    let zero = Moment::exact(Duration::ZERO);
    match report.cause {
        // The node has inspected its workers: the rank is known better than from their ends.
        Cause::Hung { rank } => {
            let since = report.silent_since.unwrap_or(zero);
            vec![rank_failed(rank, since, false, report.cause)]
        }
        Cause::NotStarted { rank, .. } => vec![rank_failed(rank, zero, false, report.cause)],
        _ => {
            let failed =
                report.ends.iter().filter(|end| !end.outcome.is_well(requeue) && !end.stopped_by_agent());
            let cause = |end: &WorkerEnd| Cause::Failed { rank: end.rank };
            failed
                .filter(|end| !(is_stopped && end.lost_peer))
                .map(|end| rank_failed(end.rank, end.at, end.lost_peer || !end.sent.is_empty(), cause(end)))
                .collect()
        }
    }
}

impl WorkerEnd {
    /// Returns whether the worker died of a signal that its agent had sent.
    fn stopped_by_agent(&self) -> bool {
        matches!(self.outcome, Outcome::Signaled(signal) if self.sent.contains(&signal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(ms: u64, error: u64) -> Moment {
        Moment { at: Duration::from_millis(ms), error: Duration::from_millis(error) }
    }

    fn end(rank: usize, code: i32, at: Moment, lost_peer: bool) -> WorkerEnd {
        WorkerEnd { rank, outcome: Outcome::Exited(code), at, sent: Vec::new(), lost_peer }
    }

    fn node(group_rank: usize, ends: Vec<WorkerEnd>) -> NodeEnd {
        let failed = ends.iter().find(|end| end.outcome != Outcome::Exited(0));
        let cause = failed.map_or(Cause::Success, |end| Cause::Failed { rank: end.rank });
        let report = Report { cause, ends, ..Report::empty() };
        NodeEnd { host: String::new(), group_rank, report: Some(report), lost: None }
    }

    fn lost(group_rank: usize, at: Moment) -> NodeEnd {
        NodeEnd { host: String::new(), group_rank, report: None, lost: Some(at) }
    }

    fn blamed(nodes: &[NodeEnd]) -> (ClusterCause, Vec<Culprit>) {
        let judgement = judge(nodes, Some(75));
        (judgement.cause, judgement.ambiguous)
    }

    fn failed(rank: usize) -> ClusterCause {
        ClusterCause::Workers(Cause::Failed { rank })
    }

    #[test]
    fn the_first_failure_on_the_leaders_clock_is_blamed() {
        let nodes =
            [node(0, vec![end(0, 1, at(900, 1), false)]), node(1, vec![end(1, 1, at(890, 1), false)])];
        assert_eq!(blamed(&nodes), (failed(1), vec![]));
    }

    #[test]
    fn failures_within_the_error_of_the_clocks_are_ambiguous() {
        let nodes =
            [node(0, vec![end(0, 1, at(900, 0), false)]), node(1, vec![end(1, 1, at(890, 30), false)])];
        assert_eq!(blamed(&nodes), (failed(1), vec![Culprit::Rank(0)]));
    }

    #[test]
    fn failures_of_one_node_are_ordered_by_its_clock() {
        let ends = vec![end(0, 1, at(900, 500), false), end(1, 1, at(901, 500), false)];
        assert_eq!(blamed(&[node(0, ends)]), (failed(0), vec![]));
    }

    #[test]
    fn a_lost_peer_is_a_consequence() {
        let nodes = [node(0, vec![end(0, 1, at(900, 0), true)]), node(1, vec![end(1, 1, at(950, 1), false)])];
        assert_eq!(blamed(&nodes), (failed(1), vec![]));
        let nodes = [node(0, vec![end(0, 1, at(900, 0), true)]), lost(1, at(1400, 500))];
        assert_eq!(blamed(&nodes), (ClusterCause::NodeLost { group_rank: 1 }, vec![]));
    }

    #[test]
    fn a_peer_that_was_asked_to_stop_is_no_failure() {
        let stopped = |failed: NodeEnd| {
            let cause = Cause::Stopped { signal: crate::signals::TERM };
            let report = Report { cause, ..Report::empty() };
            let stopped = NodeEnd { host: String::new(), group_rank: 0, report: Some(report), lost: None };
            blamed(&[stopped, failed]).0
        };
        let term = ClusterCause::Workers(Cause::Stopped { signal: crate::signals::TERM });
        assert_eq!(stopped(node(1, vec![end(1, 1, at(900, 0), true)])), term);
        assert_eq!(stopped(node(1, vec![end(1, 1, at(900, 0), false)])), failed(1));
        assert_eq!(stopped(lost(1, at(900, 0))), ClusterCause::NodeLost { group_rank: 1 });
    }

    #[test]
    fn a_later_failure_is_no_cause() {
        let nodes =
            [node(0, vec![end(0, 1, at(900, 0), true)]), node(1, vec![end(1, 1, at(5000, 1), false)])];
        assert_eq!(blamed(&nodes), (failed(0), vec![]));
    }

    #[test]
    fn of_several_failures_one_that_can_be_the_cause_is_blamed() {
        let lost_peer = node(0, vec![end(0, 1, at(10_000, 0), true)]);
        let nodes = [lost_peer, lost(1, at(11_242, 377)), lost(2, at(11_064, 0))];
        assert_eq!(blamed(&nodes), (ClusterCause::NodeLost { group_rank: 1 }, vec![Culprit::Node(2)]));
    }

    #[test]
    fn all_well_is_success_and_a_stop_with_a_checkpoint_is_a_requeue() {
        let well = |rank| node(rank, vec![end(rank, 0, at(1, 0), false)]);
        assert_eq!(blamed(&[well(0), well(1)]).0, ClusterCause::Workers(Cause::Success));
        let mut requeued = node(1, vec![end(1, 75, at(1, 0), false)]);
        requeued.report.as_mut().expect("it reported").cause = Cause::Requeue;
        assert_eq!(blamed(&[well(0), requeued]).0, ClusterCause::Workers(Cause::Requeue));
    }

    /// A node whose worker failed, or which was lost, with its clock's error and what the clock is ahead.
    #[derive(Clone, Debug)]
    struct TestNode {
        true_time: u64,
        error: u64,
        ahead: i64,
        is_lost: bool,
        lost_peer: bool,
    }

    impl TestNode {
        fn is_own(&self) -> bool {
            self.is_lost || !self.lost_peer
        }

        fn moment(&self) -> Moment {
            at(self.true_time.checked_add_signed(self.ahead).expect("it is later than the error"), self.error)
        }
    }

    fn test_node() -> impl Strategy<Value = TestNode> {
        (10_000_u64..13_000, 0_u64..400, -100_i64..=100, 0..5, any::<bool>()).prop_map(
            |(true_time, error, share, lost, lost_peer)| {
                let ahead = error as i64 * share / 100;
                TestNode { true_time, error, ahead, is_lost: lost == 0, lost_peer }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(4096))]

        /// The true first failure is blamed or named as ambiguous; a consequence is blamed only if no failure
        /// can have caused it; the ambiguous ones are those that the clocks cannot order.
        #[test]
        fn the_clocks_never_contradict_the_blame(tests in prop::collection::vec(test_node(), 1..6)) {
            let nodes: Vec<_> = tests.iter().enumerate().map(|(rank, it)| match it.is_lost {
                true => lost(rank, it.moment()),
                false => node(rank, vec![end(rank, 1, it.moment(), it.lost_peer)]),
            }).collect();
            let (cause, ambiguous) = blamed(&nodes);
            let culprit = match cause {
                ClusterCause::NodeLost { group_rank } => group_rank,
                ClusterCause::Workers(Cause::Failed { rank }) => rank,
                other => panic!("{other:?}"),
            };
            let blamed = &tests[culprit];
            let numbers = ambiguous.iter().map(|culprit| match *culprit {
                Culprit::Rank(n) | Culprit::Node(n) => n,
            });
            let numbers: Vec<_> = numbers.collect();
            let first_of = |is_own: bool| {
                let alike = tests.iter().enumerate().filter(move |(_, it)| !is_own || it.is_own());
                alike.min_by_key(|(_, it)| it.true_time)
            };
            let (first, own) = (first_of(false).unwrap_or((0, blamed)), first_of(true));
            if let Some((_, own)) = own {
                let is_possible = own.true_time <= first.1.true_time + SAME_MOMENT.as_millis() as u64;
                prop_assert!(blamed.is_own() || !is_possible, "a consequence is blamed");
            }
            let truth = if blamed.is_own() { own.unwrap_or(first).0 } else { first.0 };
            prop_assert!(culprit == truth || numbers.contains(&truth), "{truth} was first");
            for (number, it) in tests.iter().enumerate().filter(|(number, _)| *number != culprit) {
                let apart = it.moment().at.abs_diff(blamed.moment().at).as_millis() as u64;
                let is_near = it.is_own() == blamed.is_own() && apart <= it.error + blamed.error;
                prop_assert_eq!(numbers.contains(&number), is_near);
            }
        }
    }
}
