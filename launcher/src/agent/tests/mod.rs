//! The agent's rules, one by one.

#![allow(clippy::unwrap_used)]

mod failures;
mod requests;

use super::*;
use crate::process::signals::{HUP, INT, KILL, QUIT, TERM, USR1, USR2};

const TIMEOUT: Duration = Duration::from_secs(30);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A group of `workers` that all run, at 0 ms.
fn running(workers: usize, requeue_code: Option<i32>) -> Agent {
    let mut agent = Agent::new(Policy {
        workers,
        shutdown_timeout: TIMEOUT,
        requeue_code,
        hang: None,
        limit: None,
    });
    let mut next = agent.begin();
    for rank in 0..workers {
        assert_eq!(
            next,
            [Action::Start { rank }],
            "workers start one after the other"
        );
        next = agent.on(&Event::Started { rank }, ms(0));
    }
    assert_eq!(next, []);
    agent
}

fn exit(agent: &mut Agent, rank: usize, code: i32, at: u64) -> Vec<Action> {
    agent.on(
        &Event::Ended {
            rank,
            outcome: Outcome::Exited(code),
            at: ms(at),
        },
        ms(at),
    )
}

fn die(agent: &mut Agent, rank: usize, signal: i32, at: u64) -> Vec<Action> {
    agent.on(
        &Event::Ended {
            rank,
            outcome: Outcome::Signaled(signal),
            at: ms(at),
        },
        ms(at),
    )
}

fn stop(agent: &mut Agent, signal: i32, at: u64) -> Vec<Action> {
    agent.on(&Event::Stop { signal }, ms(at))
}

/// The verdict of the last actions, which must end the run.
fn verdict(actions: &[Action]) -> &Verdict {
    match actions {
        [.., Action::Sweep, Action::Finish(verdict)] => verdict,
        other => panic!("the run is not over: {other:?}"),
    }
}

fn to(signal: i32, ranks: &[usize]) -> Vec<Action> {
    ranks
        .iter()
        .map(|&rank| Action::Signal { rank, signal })
        .collect()
}

fn signals_in(actions: &[Action]) -> Vec<Action> {
    actions
        .iter()
        .filter(|a| matches!(a, Action::Signal { .. }))
        .cloned()
        .collect()
}
