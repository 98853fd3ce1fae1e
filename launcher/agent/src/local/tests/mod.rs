//! The agent's rules.

#![allow(clippy::unwrap_used)]

mod failures;
mod hangs;
mod properties;
mod requests;

use super::times::ALONE;
use super::*;
use crate::signals::{HUP, INT, KILL, QUIT, TERM, USR1, USR2};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(30);

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Returns the policy of programs without a limit.
fn policy(workers: usize) -> Policy {
    Policy { workers, shutdown_timeout: TIMEOUT, ..Policy::default() }
}

/// Returns a group of `workers`, all running, at 0 ms.
fn running(workers: usize, requeue_code: Option<i32>) -> Agent {
    let mut agent = Agent::new(Policy { requeue_code, ..policy(workers) });
    let mut next = agent.begin(Duration::ZERO);
    for rank in 0..workers {
        assert_eq!(next, [Action::Start { rank }], "workers start one after the other");
        next = agent.on(&Event::Started { rank }, ms(0));
    }
    assert_eq!(next, []);
    agent
}

/// Returns the actions after an event at `at`, of a launcher that was awake before.
fn on(agent: &mut Agent, event: &Event, at: u64) -> Vec<Action> {
    agent.latest = ms(at);
    agent.on(event, ms(at))
}

fn timer(agent: &mut Agent, at: u64) -> Vec<Action> {
    on(agent, &Event::Timer, at)
}

fn exit(agent: &mut Agent, rank: usize, code: i32, at: u64) -> Vec<Action> {
    on(agent, &Event::Ended { rank, outcome: Outcome::Exited(code), at: ms(at), lost_peer: false }, at)
}

fn die(agent: &mut Agent, rank: usize, signal: i32, at: u64) -> Vec<Action> {
    on(agent, &Event::Ended { rank, outcome: Outcome::Signaled(signal), at: ms(at), lost_peer: false }, at)
}

fn stop(agent: &mut Agent, signal: i32, at: u64) -> Vec<Action> {
    on(agent, &Event::Stop { signal, again: false }, at)
}

fn stop_again(agent: &mut Agent, signal: i32, at: u64) -> Vec<Action> {
    on(agent, &Event::Stop { signal, again: true }, at)
}

/// Returns the verdict of the last actions, which must end the run.
fn verdict(actions: &[Action]) -> &Verdict {
    match actions {
        [.., Action::Sweep, Action::Finish(verdict)] => verdict,
        other => panic!("the run is not over: {other:?}"),
    }
}

fn to(signal: i32, ranks: &[usize]) -> Vec<Action> {
    ranks.iter().map(|&rank| Action::Signal { rank, signal }).collect()
}

fn signals_in(actions: &[Action]) -> Vec<Action> {
    actions.iter().filter(|a| matches!(a, Action::Signal { .. })).cloned().collect()
}
