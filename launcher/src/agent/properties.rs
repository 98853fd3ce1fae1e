//! What holds for every sequence of events.

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// One thing that the simulated world does, after some milliseconds.
#[derive(Clone, Debug)]
enum Happening {
    Exit { pick: usize, code: i32 },
    Crash { pick: usize },
    Stop { signal: i32 },
    Forward { signal: i32 },
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (any::<usize>(), prop_oneof![Just(0), Just(1), Just(75), Just(143)])
            .prop_map(|(pick, code)| Happening::Exit { pick, code }),
        any::<usize>().prop_map(|pick| Happening::Crash { pick }),
        prop::sample::select(signals::STOP.to_vec()).prop_map(|signal| Happening::Stop { signal }),
        prop::sample::select(signals::FORWARD.to_vec()).prop_map(|signal| Happening::Forward { signal }),
    ]
}

/// Processes that obey SIGKILL only, run by the agent's orders.
struct World {
    agent: Agent,
    now: Duration,
    running: BTreeSet<usize>,
    killed: BTreeSet<usize>,
    started: usize,
    fails_to_start: Option<usize>,
    verdict: Option<Verdict>,
}

impl World {
    fn carry_out(&mut self, actions: Vec<Action>) {
        let mut queue = std::collections::VecDeque::from(actions);
        while let Some(action) = queue.pop_front() {
            assert!(self.verdict.is_none(), "{action:?} after the end");
            match action {
                Action::Start { rank } => {
                    assert_eq!(rank, self.started, "in order, each once");
                    self.started += 1;
                    let event = if self.fails_to_start == Some(rank) {
                        Event::NotStarted { rank }
                    } else {
                        self.running.insert(rank);
                        Event::Started { rank }
                    };
                    queue.extend(self.agent.on(&event, self.now));
                }
                Action::Signal { rank, signal } => {
                    assert!(
                        self.running.contains(&rank),
                        "signal {signal} to rank {rank}, which does not run"
                    );
                    if signal == signals::KILL {
                        self.killed.insert(rank);
                    }
                }
                Action::Tell(_) | Action::Inspect { .. } => {}
                Action::Sweep => assert!(self.running.is_empty(), "swept while {:?} run", self.running),
                Action::Finish(verdict) => self.verdict = Some(verdict),
            }
        }
    }

    fn end(&mut self, rank: usize, outcome: Outcome) {
        self.running.remove(&rank);
        self.killed.remove(&rank);
        let actions = self.agent.on(
            &Event::Ended {
                rank,
                outcome,
                at: self.now,
            },
            self.now,
        );
        self.carry_out(actions);
    }

    fn apply(&mut self, happening: &Happening) {
        let running: Vec<usize> = self.running.iter().copied().collect();
        match *happening {
            Happening::Exit { pick, code } if !running.is_empty() => {
                self.end(running[pick % running.len()], Outcome::Exited(code));
            }
            Happening::Crash { pick } if !running.is_empty() => {
                self.end(running[pick % running.len()], Outcome::Signaled(11));
            }
            Happening::Stop { signal } => {
                let actions = self.agent.on(&Event::Stop { signal }, self.now);
                self.carry_out(actions);
            }
            Happening::Forward { signal } => {
                let actions = self.agent.on(&Event::Forward { signal }, self.now);
                self.carry_out(actions);
            }
            Happening::Exit { .. } | Happening::Crash { .. } => {}
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        let actions = self.agent.on(&Event::Timer, self.now);
        self.carry_out(actions);
        for rank in self.killed.clone() {
            self.end(rank, Outcome::Signaled(signals::KILL));
        }
    }
}

proptest! {
    /// Once a failure, a stop or a requeue has been seen, the group is gone at the latest when the timeout is
    /// over, the verdict comes exactly once, and it is success only if every worker exited with 0.
    #[test]
    fn every_stop_ends_in_one_true_verdict(
        workers in 1_usize..6,
        requeue in any::<bool>(),
        fails_to_start in prop::option::weighted(0.2, 0_usize..6),
        happenings in prop::collection::vec((0_u64..2000, happening()), 0..20),
    ) {
        let timeout = Duration::from_secs(5);
        let requeue_code = requeue.then_some(75);
        let mut world = World {
            agent: Agent::new(Policy { workers, shutdown_timeout: timeout, requeue_code, hang: None, limit: None }),
            now: Duration::ZERO,
            running: BTreeSet::new(),
            killed: BTreeSet::new(),
            started: 0,
            fails_to_start: fails_to_start.filter(|rank| *rank < workers),
            verdict: None,
        };
        let actions = world.agent.begin();
        world.carry_out(actions);
        world.pass(Duration::ZERO);
        for (after, happening) in &happenings {
            world.pass(Duration::from_millis(*after));
            world.apply(happening);
        }
        if world.verdict.is_none() && world.agent.phase == Phase::Running {
            // Nothing went wrong and nobody asked: whoever is left finishes.
            for rank in world.running.clone() {
                world.end(rank, Outcome::Exited(0));
            }
        } else {
            world.pass(timeout);
        }
        let verdict = world.verdict.clone().expect("the run is over");
        prop_assert!(world.running.is_empty());
        prop_assert_eq!(world.agent.deadline(), None);
        let all_ran_well =
            verdict.ends.len() == workers && verdict.ends.iter().all(|e| e.outcome == Outcome::Exited(0));
        prop_assert_eq!(verdict.cause == Cause::Success, all_ran_well);
        if let Cause::Failed { rank } = verdict.cause {
            let end = verdict.end_of(rank).unwrap();
            prop_assert!(!end.stopped_by_agent());
            prop_assert!(end.outcome != Outcome::Exited(0));
        }
    }
}
