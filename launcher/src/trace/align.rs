//! The clocks of the hosts. No rank leaves a step's agreement before all have entered it, so all leave it at almost
//! the same time: the median difference of these times is the difference of two clocks.

use dtrain_common::trace::{Event, Kind, RankTrace};
use std::collections::BTreeMap;

/// The name of the span in which ranks agree on a step.
const AGREEMENT: &str = "agree";

/// Returns by rank the nanoseconds to add to its times, so that they are those of the first rank's host. Ranks of a host
/// share a clock.
pub(super) fn clocks(ranks: &[RankTrace]) -> BTreeMap<usize, i64> {
    let Some(first) = ranks.first() else { return BTreeMap::new() };
    let reference = agreements(first);
    let mut by_host = BTreeMap::<&str, Vec<i64>>::new();
    for trace in ranks.iter().filter(|trace| trace.meta.host != first.meta.host) {
        let own = agreements(trace);
        let differences = own.iter().filter_map(|(step, time)| Some(reference.get(step)? - time));
        by_host.entry(&trace.meta.host).or_default().extend(differences);
    }
    let offset = |trace: &RankTrace| by_host.get(trace.meta.host.as_str()).and_then(|all| median(all));
    ranks.iter().map(|trace| (trace.meta.rank, offset(trace).unwrap_or(0))).collect()
}

fn median(numbers: &[i64]) -> Option<i64> {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied()
}

/// Returns by step when the rank left its agreement, in nanoseconds since 1970.
fn agreements(trace: &RankTrace) -> BTreeMap<u64, i64> {
    let base = i64::try_from(trace.meta.base_ns).unwrap_or(0);
    let mut left = BTreeMap::new();
    for step in trace.events.iter().filter(|event| event.cat == Some(Kind::Step)) {
        let within = |event: &&Event| {
            event.name == AGREEMENT && event.tid == step.tid && (step.ts..=step.end()).contains(&event.ts)
        };
        let last = trace.events.iter().filter(within).map(Event::end).reduce(f64::max);
        if let (Some(end), Some(number)) = (last, step_number(step)) {
            left.insert(number, base + (end * 1e3) as i64);
        }
    }
    left
}

/// Returns the number of a step's span.
pub(super) fn step_number(step: &Event) -> Option<u64> {
    step.name.strip_prefix("step ")?.parse().ok()
}
