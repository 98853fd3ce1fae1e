//! One file of the timelines of all ranks: a process for each rank.

use super::modules;
use super::read::Traces;
use dtrain_common::trace::{Event, Kind, Meta, RankTrace};
use std::collections::{BTreeMap, BTreeSet};

/// Numbers of threads above those of the kernel, whose limit is 2^22.
const OPERATIONS: u64 = 1 << 23;
const GPUS: u64 = 1 << 24;
const BACKWARD_MODULES: u64 = 1 << 25;

/// Joins the ranks. `clocks` has by rank the nanoseconds to add to its times.
pub(super) fn join(traces: &Traces, clocks: &BTreeMap<usize, i64>) -> RankTrace {
    let began = |trace: &RankTrace| {
        let offset = clocks.get(&trace.meta.rank).copied().unwrap_or(0);
        trace.meta.base_ns.saturating_add_signed(offset)
    };
    let base = traces.ranks.iter().map(began).min().unwrap_or(0);
    let mut events = Vec::new();
    for trace in &traces.ranks {
        let shift = (began(trace) - base) as f64 / 1e3;
        let process = trace.meta.rank as u64;
        let order = Event::naming("process_sort_index", (process, 0), "");
        events.push(Event { args: Default::default(), ..order }.with("sort_index", process));
        let mut names = BTreeSet::new();
        for event in &trace.events {
            let tid = track(event);
            if let Some(name) = name_of_track(trace, event) {
                names.insert((tid, name));
            }
            events.push(Event {
                pid: process,
                tid,
                ts: if event.ph == 'M' { 0.0 } else { event.ts + shift },
                ..event.clone()
            });
        }
        for module in modules::backward(&trace.events) {
            let (begin, length) = (module.begin + shift, module.end - module.begin);
            let place = (process, BACKWARD_MODULES);
            names.insert((BACKWARD_MODULES, "backward by module".to_owned()));
            events.push(Event::span(Kind::Module, module.path, place, begin, length));
        }
        let named = |(tid, name): (u64, String)| Event::naming("thread_name", (process, tid), &name);
        events.extend(names.into_iter().map(named));
    }
    let first = traces.ranks.first().map(|trace| trace.meta.clone()).unwrap_or_default();
    RankTrace::new(Meta { base_ns: base, ..first }, events)
}

/// Returns the track of an event. Operations have their own tracks: their times are of another clock, which differs by
/// microseconds, and spans of a track must not cross.
fn track(event: &Event) -> u64 {
    match event.cat {
        Some(Kind::Operation | Kind::Runtime) => OPERATIONS + event.tid,
        Some(Kind::Gpu) => GPUS + gpu(event) * 4096 + event.tid % 4096,
        _ => event.tid,
    }
}

fn gpu(event: &Event) -> u64 {
    event.number("gpu").and_then(|gpu| u64::try_from(gpu).ok()).unwrap_or(0)
}

fn name_of_track(trace: &RankTrace, event: &Event) -> Option<String> {
    match event.cat? {
        Kind::Operation | Kind::Runtime if event.tid == trace.meta.main_thread => {
            Some("operations".to_owned())
        }
        Kind::Operation | Kind::Runtime => Some(format!("operations of thread {}", event.tid)),
        Kind::Gpu => Some(format!("GPU {} stream {}", gpu(event), event.tid)),
        _ => None,
    }
}
