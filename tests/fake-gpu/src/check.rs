//! A check of the order of memory accesses, without luck: by vector clocks, not by what happened to run first.
//!
//! Each stream and the host have a clock. Waits join clocks. Two accesses of the same bytes, one of them a write, need
//! an order: else they are a race, also if they did not collide this time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::counts::{self, Kind};
use crate::machine::MACHINE;
use crate::messages;

/// The number of each stream's newest operation that is known to be done.
pub(crate) type Clock = BTreeMap<usize, u64>;

/// Memory that an operation uses.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Use {
    pub(crate) at: usize,
    pub(crate) size: usize,
    pub(crate) writes: bool,
}

impl Use {
    pub(crate) fn read(at: usize, size: usize) -> Self {
        Self { at, size, writes: false }
    }

    pub(crate) fn write(at: usize, size: usize) -> Self {
        Self { at, size, writes: true }
    }
}

/// An earlier access.
struct Access {
    what: String,
    used: Use,
    stream: usize,
    number: u64,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<usize, Clock>,
    host: Clock,
    /// Accesses that the host does not know to be done.
    open: Vec<Access>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// The most accesses that are kept; older ones are forgotten.
const MOST: usize = 4096;

fn with<R: Default>(act: impl FnOnce(&mut State) -> R) -> R {
    if !MACHINE.check {
        return R::default();
    }
    act(STATE.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_default())
}

fn join(clock: &mut Clock, other: &Clock) {
    for (stream, number) in other {
        let own = clock.entry(*stream).or_default();
        *own = (*own).max(*number);
    }
}

/// Notes the accesses of a stream's next operation, and reports those without an order.
pub(crate) fn access(stream: usize, what: &str, uses: &[Use]) {
    let races = with(|state| state.access(stream, what, uses));
    for race in races {
        counts::count(Kind::Race, 1);
        messages::report(&race);
    }
}

impl State {
    fn access(&mut self, stream: usize, what: &str, uses: &[Use]) -> Vec<String> {
        let clock = self.streams.entry(stream).or_default();
        join(clock, &self.host);
        let number = clock.entry(stream).or_default();
        *number += 1;
        let number = *number;
        let is_known = |access: &Access| clock.get(&access.stream).is_some_and(|done| *done >= access.number);
        let mut races = Vec::new();
        for used in uses {
            let collides = |access: &&Access| {
                let overlaps =
                    access.used.at < used.at + used.size && used.at < access.used.at + access.used.size;
                overlaps && (access.used.writes || used.writes) && !is_known(access)
            };
            races.extend(self.open.iter().find(collides).map(|access| {
                let act = |used: &Use| if used.writes { "writes" } else { "reads" };
                format!(
                    "race: {} on stream {stream:#x} {} {:#x}, which {} on stream {:#x} {} without an order: \
                     let one stream wait for an event of the other",
                    short(what),
                    act(used),
                    used.at,
                    short(&access.what),
                    access.stream,
                    act(&access.used),
                )
            }));
        }
        // An access that all later ones of its stream follow is not needed any more.
        self.open.retain(|old| {
            !(is_known(old)
                && uses.iter().any(|used| {
                    used.writes
                        && used.at <= old.used.at
                        && old.used.at + old.used.size <= used.at + used.size
                }))
        });
        self.open.extend(uses.iter().map(|used| Access {
            what: what.to_owned(),
            used: *used,
            stream,
            number,
        }));
        if self.open.len() > MOST {
            self.open.drain(..MOST / 4);
        }
        races
    }
}

fn short(name: &str) -> String {
    name.chars().take(120).collect()
}

/// Returns a stream's clock, for an event.
pub(crate) fn now(stream: usize) -> Clock {
    with(|state| {
        let mut clock = state.host.clone();
        join(&mut clock, state.streams.entry(stream).or_default());
        clock
    })
}

/// A stream waits for an event.
pub(crate) fn waited(stream: usize, event: &Clock) {
    with(|state| join(state.streams.entry(stream).or_default(), event));
}

/// The host waits for all of a stream.
pub(crate) fn host_waited(stream: usize) {
    with(|state| {
        let clock = state.streams.entry(stream).or_default().clone();
        state.host_knows(&clock);
    });
}

/// The host waits for an event.
pub(crate) fn host_waited_for(event: &Clock) {
    with(|state| state.host_knows(event));
}

impl State {
    fn host_knows(&mut self, clock: &Clock) {
        join(&mut self.host, clock);
        let host = &self.host;
        self.open.retain(|access| host.get(&access.stream).is_none_or(|done| *done < access.number));
    }
}

/// Forgets accesses of memory that is free.
pub(crate) fn forget(at: usize, size: usize) {
    with(|state| state.open.retain(|access| access.used.at < at || access.used.at >= at + size));
}

/// Reports a use of an event that was never recorded.
pub(crate) fn unrecorded(what: &str) {
    if MACHINE.check {
        counts::note("[unrecorded event]");
        counts::report_once(&format!(
            "{what}: an event is waited on before it is recorded: the wait does nothing"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accesses_without_an_order_are_races() {
        let mut state = State::default();
        assert!(state.access(1, "copy", &[Use::write(100, 10)]).is_empty());
        assert!(state.access(1, "kernel", &[Use::read(105, 1)]).is_empty());
        assert_eq!(state.access(2, "kernel", &[Use::read(109, 4)]).len(), 1);
        assert!(state.access(2, "kernel", &[Use::read(110, 4)]).is_empty());
        let event = state.streams[&1].clone();
        join(state.streams.entry(3).or_default(), &event);
        assert!(state.access(3, "kernel", &[Use::read(100, 4)]).is_empty());
    }
}
