//! Backward by module. Autograd gives a forward operation and its backward function the same number, so the module of the
//! one is that of the other.

use super::intervals::{Interval, nested};
use dtrain_common::trace::{Event, Kind};
use std::collections::HashMap;

/// The profiler's name of a call of a backward function, before the function's own.
const CALL: &str = "autograd::engine::evaluate_function: ";

/// A module, and the time in which its gradients are computed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ModuleSpan {
    pub(super) path: String,
    pub(super) begin: f64,
    pub(super) end: f64,
}

/// Returns the spans of modules in backward. Those of inner modules are within those of outer ones.
pub(super) fn backward(events: &[Event]) -> Vec<ModuleSpan> {
    let modules: Vec<&Event> = events.iter().filter(|event| event.cat == Some(Kind::Module)).collect();
    let mut of_number = HashMap::<i64, &str>::new();
    let is_call = |event: &Event| event.args.contains_key("backward");
    for event in events.iter().filter(|event| event.cat == Some(Kind::Operation) && !is_call(event)) {
        let Some(number) = event.number("sequence") else { continue };
        if let Some(module) = innermost(&modules, event) {
            of_number.insert(number, module);
        }
    }
    let mut calls: Vec<&Event> =
        events.iter().filter(|event| is_call(event) && event.name.starts_with(CALL)).collect();
    calls.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
    let intervals: Vec<Interval> = calls.iter().map(|event| (event.ts, event.end())).collect();
    // A recomputed segment is a call with calls inside it.
    let mut is_leaf = vec![true; calls.len()];
    for (_, around) in nested(&intervals) {
        around.into_iter().for_each(|around| is_leaf[around] = false);
    }
    let leaves = calls.iter().zip(is_leaf).filter(|(_, is_leaf)| *is_leaf).map(|(event, _)| *event);
    let placed = leaves.filter_map(|event| {
        let path = of_number.get(&event.number("sequence")?)?;
        Some((*path, event.ts, event.end()))
    });
    nest(placed)
}

/// Returns the module whose span is the shortest around the operation's middle.
fn innermost<'a>(modules: &[&'a Event], operation: &Event) -> Option<&'a str> {
    let middle = (operation.ts + operation.end()) / 2.0;
    let around = modules
        .iter()
        .filter(|module| module.tid == operation.tid && module.ts <= middle && middle <= module.end());
    around
        .min_by(|a, b| a.dur.partial_cmp(&b.dur).unwrap_or(std::cmp::Ordering::Equal))
        .map(|module| module.name.as_str())
}

/// Makes spans of consecutive calls in modules: a call in `a.b` is also one in `a`.
fn nest<'a>(calls: impl Iterator<Item = (&'a str, f64, f64)>) -> Vec<ModuleSpan> {
    let (mut done, mut open) = (Vec::new(), Vec::<ModuleSpan>::new());
    for (path, begin, end) in calls {
        let contains =
            |outer: &str| path == outer || path.strip_prefix(outer).is_some_and(|rest| rest.starts_with('.'));
        while let Some(ended) = open.pop_if(|last| !contains(&last.path)) {
            done.push(ended);
        }
        let depth = open.last().map_or(0, |last| last.path.len());
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        for at in ends.filter(|at| *at > depth) {
            open.push(ModuleSpan { path: path[..at].to_owned(), begin, end });
        }
        open.iter_mut().for_each(|span| span.end = end);
    }
    done.extend(open.into_iter().rev());
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(kind: Kind, name: &str, ts: f64, end: f64) -> Event {
        Event::span(kind, name, (0, 1), ts, end - ts)
    }

    #[test]
    fn backward_functions_are_of_their_forward_modules() {
        let forward = |name: &str, ts: f64, number: i64| {
            span(Kind::Operation, name, ts, ts + 1.0).with("sequence", number)
        };
        let call = |ts: f64, end: f64, number: i64| {
            span(Kind::Operation, &format!("{CALL}X"), ts, end)
                .with("sequence", number)
                .with("backward", true)
        };
        let events = [
            span(Kind::Module, "a", 0.0, 10.0),
            span(Kind::Module, "a.b", 1.0, 4.0),
            forward("mm", 2.0, 5),
            forward("relu", 6.0, 6),
            forward("outside", 20.0, 7),
            // Of a recomputed segment: its inner calls count.
            call(29.0, 45.0, 9),
            call(30.0, 31.0, 6),
            call(32.0, 34.0, 5),
            call(40.0, 41.0, 7),
        ];
        let expected = [("a.b", 32.0, 34.0), ("a", 30.0, 34.0)];
        let found: Vec<_> = backward(&events).into_iter().map(|one| (one.path, one.begin, one.end)).collect();
        assert_eq!(found, expected.map(|(path, begin, end)| (path.to_owned(), begin, end)));
    }

    #[test]
    fn neighbours_with_a_common_beginning_are_two_modules() {
        let calls = [("layer1", 0.0, 1.0), ("layer10.0", 2.0, 3.0), ("layer10.1", 4.0, 5.0)];
        let paths: Vec<_> = nest(calls.into_iter()).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["layer1", "layer10.0", "layer10.1", "layer10"]);
    }
}
