//! Properties of every sequence of events, over all attempts of a run.

mod world;

use super::super::*;
use crate::signals::{self, ABRT, KILL, USR1};
use proptest::prelude::*;
use std::time::Duration;
use world::{Ending, World};

const SHUTDOWN: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(3);

/// An event of the simulated world.
#[derive(Clone, Debug)]
enum TestEvent {
    Ended {
        pick: usize,
        outcome: Outcome,
        lost_peer: bool,
    },
    Stop {
        signal: i32,
        again: bool,
    },
    Forward {
        signal: i32,
    },
    Beat {
        pick: usize,
        writing: bool,
    },
    /// All workers beat, some times.
    Steps {
        count: u64,
    },
    Inspected,
    OthersFailed,
    OthersRequeue,
    LeaseEnded,
    /// No process runs, not even the launcher.
    Freeze {
        ms: u64,
    },
}

fn test_event() -> impl Strategy<Value = TestEvent> {
    use TestEvent::*;
    let end = |outcome, lost_peer| move |pick| Ended { pick, outcome, lost_peer };
    prop_oneof![
        3 => (any::<usize>(), prop_oneof![3 => Just(0), 1 => Just(1), 1 => Just(75), 1 => Just(143)])
            .prop_map(|(pick, code)| Ended { pick, outcome: Outcome::Exited(code), lost_peer: false }),
        1 => any::<usize>().prop_map(end(Outcome::Signaled(11), false)),
        1 => any::<usize>().prop_map(end(Outcome::Exited(1), true)),
        1 => (prop::sample::select(signals::STOP.to_vec()), prop::bool::weighted(0.3))
            .prop_map(|(signal, again)| Stop { signal, again }),
        1 => prop::sample::select(signals::FORWARD.to_vec()).prop_map(|signal| Forward { signal }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(pick, writing)| Beat { pick, writing }),
        8 => (1_u64..8).prop_map(|count| Steps { count }),
        4 => Just(Inspected),
        1 => prop::sample::select(vec![OthersFailed, OthersRequeue, LeaseEnded]),
        1 => (2001_u64..60_000).prop_map(|ms| Freeze { ms }),
    ]
}

/// The settings of a run.
#[derive(Clone, Debug)]
struct Setup {
    workers: usize,
    training: bool,
    has_checkpoint: bool,
    max_restarts: u32,
    /// The time when workers are asked to stop, in ms.
    ask: Option<u64>,
    /// By attempt: the rank that does not start, and whether a retry may succeed.
    refused: Vec<Option<(usize, bool)>>,
}

fn setup() -> impl Strategy<Value = Setup> {
    let refused = prop::option::weighted(0.2, (0_usize..6, any::<bool>()));
    (
        1_usize..5,
        any::<bool>(),
        any::<bool>(),
        0_u32..5,
        prop::option::weighted(0.3, 1000_u64..40_000),
        prop::collection::vec(refused, 8),
    )
        .prop_map(|(workers, training, has_checkpoint, max_restarts, ask, refused)| Setup {
            workers,
            training,
            has_checkpoint,
            max_restarts,
            ask,
            refused,
        })
}

impl Setup {
    fn limit(&self) -> Option<TimeLimit> {
        self.ask.map(|ask| TimeLimit {
            ask: Duration::from_millis(ask),
            end: Duration::from_millis(ask + 4000),
            signal: if self.training { USR1 } else { signals::TERM },
        })
    }

    fn policy(&self, notices: Vec<i32>) -> Policy {
        Policy {
            workers: self.workers,
            shutdown_timeout: SHUTDOWN,
            requeue_code: self.training.then_some(75),
            hang: Some(HangPolicy { factor: 2, least: SILENCE, early: None }),
            limit: self.limit(),
            notices,
        }
    }
}

/// The longest stop without new reports of a write: the timeout, or the wait for a silent write.
const LONGEST_STOP: Duration = Duration::from_secs(15);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    /// A run ends, once and with a true verdict, whatever happens: it is a success if and only if every
    /// worker of its last attempt exited with 0, and a program not because it was asked to stop. Asserted on the way: no worker is killed because of a
    /// freeze, suspected after a recent beat, or started after the time limit; no notice is lost; a failure elsewhere
    /// kills workers after the shutdown timeout, and the end of a lease at once.
    #[test]
    fn runs_end_with_one_correct_verdict(
        setup in setup(),
        happenings in prop::collection::vec((0_u64..5000, test_event()), 0..60),
    ) {
        let mut world = World::new(&setup);
        for (after, test_event) in &happenings {
            world.pass(Duration::from_millis(*after));
            world.apply(test_event);
        }
        let ending = world.settle();
        prop_assert!(world.running.is_empty());
        prop_assert!(world.attempts <= 1 + setup.max_restarts as usize);
        let Ending::Verdict(verdict) = ending else {
            prop_assert!(world.attempts <= setup.max_restarts as usize, "a pause was for one more");
            return Ok(());
        };
        let all_ran_well =
            verdict.ends.len() == setup.workers && verdict.ends.iter().all(|e| e.outcome == Outcome::Exited(0));
        prop_assert!(all_ran_well || verdict.cause != Cause::Success);
        let was_asked = !setup.training && verdict.stop_source.is_some();
        prop_assert!(!all_ran_well || was_asked || verdict.cause == Cause::Success);
        let requeue = setup.training.then_some(75);
        if world.was_stopped_for_others && verdict.ends.iter().any(|end| !end.outcome.is_well(requeue)) {
            let own = |end: &End| end.sent.is_empty() && !end.lost_peer;
            let failed_before = match verdict.cause {
                Cause::Failed { rank } => own(verdict.end_of(rank).unwrap()),
                _ => false,
            };
            prop_assert!(failed_before || verdict.cause == Cause::OthersFailed, "{:?}", verdict);
        }
        match verdict.cause {
            Cause::Failed { rank } => {
                let end = verdict.end_of(rank).unwrap();
                prop_assert!(!end.stopped_by_agent());
                prop_assert!(end.outcome != Outcome::Exited(0));
            }
            Cause::Requeue => prop_assert!(setup.training || (all_ran_well && setup.ask.is_some())),
            Cause::TimeIsUp => prop_assert!(setup.ask.is_some()),
            Cause::Stopped { .. } => {
                let was_requested = matches!(verdict.stop_source, Some(StopSource::Request { .. }));
                prop_assert!(was_requested);
            },
            Cause::Success | Cause::Hung { .. } | Cause::NotStarted { .. } => {}
            Cause::Evicted => prop_assert!(false, "nobody else had the folder"),
            Cause::OthersFailed => prop_assert!(world.was_stopped_for_others),
        }
    }
}
