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
    let modules = Modules::of(events);
    let mut of_number = HashMap::<i64, &str>::new();
    let is_call = |event: &Event| event.args.contains_key("backward");
    for event in events.iter().filter(|event| event.cat == Some(Kind::Operation) && !is_call(event)) {
        let Some(number) = event.number("sequence") else { continue };
        if let Some(module) = modules.innermost(event) {
            of_number.insert(number, module);
        }
    }
    let mut calls: Vec<&Event> =
        events.iter().filter(|event| is_call(event) && event.name.starts_with(CALL)).collect();
    let intervals = sort(&mut calls);
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
    let placed: Vec<_> = placed.collect();
    let passes = passes(events);
    // A module does not reach from one backward pass to the next.
    let same = |a: &Call<'_>, b: &Call<'_>| pass_of(a, &passes) == pass_of(b, &passes);
    placed.chunk_by(same).flat_map(|calls| nest(calls.iter().copied())).collect()
}

/// The module of a call, and its begin and end.
type Call<'a> = (&'a str, f64, f64);

/// Returns when backward passes begin, in rising order.
fn passes(events: &[Event]) -> Vec<f64> {
    let begins = events.iter().filter(|event| event.cat == Some(Kind::Backward)).map(|event| event.ts);
    let mut begins: Vec<f64> = begins.collect();
    begins.sort_by(f64::total_cmp);
    begins
}

/// Returns the number of the backward pass of a call. Clocks differ by microseconds, so its middle counts.
fn pass_of((_, begin, end): &Call<'_>, passes: &[f64]) -> usize {
    passes.partition_point(|pass| *pass <= (begin + end) / 2.0)
}

/// Sorts spans as [`nested`] takes them, and returns their intervals.
fn sort(spans: &mut [&Event]) -> Vec<Interval> {
    spans.sort_by(|a, b| a.ts.total_cmp(&b.ts).then(b.end().total_cmp(&a.end())));
    spans.iter().map(|event| (event.ts, event.end())).collect()
}

/// The spans of modules in forward, by thread: each with the number of the one directly around it.
struct Modules<'a>(HashMap<u64, Vec<(&'a Event, Option<usize>)>>);

impl<'a> Modules<'a> {
    fn of(events: &'a [Event]) -> Self {
        let mut by_thread = HashMap::<u64, Vec<&Event>>::new();
        for event in events.iter().filter(|event| event.cat == Some(Kind::Module)) {
            by_thread.entry(event.tid).or_default().push(event);
        }
        let placed = by_thread.into_iter().map(|(thread, mut spans)| {
            let around = nested(&sort(&mut spans)).into_iter().map(|(_, around)| around);
            (thread, spans.into_iter().zip(around).collect::<Vec<_>>())
        });
        Self(placed.collect())
    }

    /// Returns the innermost module around the operation's middle.
    fn innermost(&self, operation: &Event) -> Option<&'a str> {
        let middle = (operation.ts + operation.end()) / 2.0;
        let spans = self.0.get(&operation.tid)?;
        // It is the last that has begun, or is around it.
        let mut number = spans.partition_point(|(module, _)| module.ts <= middle).checked_sub(1);
        while let Some((module, around)) = number.map(|number| spans[number]) {
            if middle <= module.end() {
                return Some(module.name.as_str());
            }
            number = around;
        }
        None
    }
}

/// Makes spans of consecutive calls in modules: a call in `a.b` is also one in `a`.
fn nest<'a>(calls: impl Iterator<Item = Call<'a>>) -> Vec<ModuleSpan> {
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

    fn forward(name: &str, ts: f64, number: i64) -> Event {
        span(Kind::Operation, name, ts, ts + 1.0).with("sequence", number)
    }

    fn call(ts: f64, end: f64, number: i64) -> Event {
        let call = span(Kind::Operation, &format!("{CALL}X"), ts, end);
        call.with("sequence", number).with("backward", true)
    }

    fn found(events: &[Event]) -> Vec<(String, f64, f64)> {
        backward(events).into_iter().map(|one| (one.path, one.begin, one.end)).collect()
    }

    #[test]
    fn backward_functions_are_of_their_forward_modules() {
        let events = [
            span(Kind::Module, "a", 0.0, 10.0),
            span(Kind::Module, "a.b", 1.0, 4.0),
            forward("mm", 2.0, 5),
            forward("relu", 6.0, 6),
            forward("outside", 20.0, 7),
            // On another thread.
            Event { tid: 2, ..forward("other", 3.0, 8) },
            // Of a recomputed segment: its inner calls count.
            call(29.0, 45.0, 9),
            call(30.0, 31.0, 6),
            call(32.0, 34.0, 5),
            call(40.0, 41.0, 7),
            call(42.0, 43.0, 8),
        ];
        let expected = [("a.b", 32.0, 34.0), ("a", 30.0, 34.0)];
        assert_eq!(found(&events), expected.map(|(path, begin, end)| (path.to_owned(), begin, end)));
    }

    #[test]
    fn a_module_ends_with_its_backward_pass() {
        let step = |at: f64, number: i64| {
            [
                span(Kind::Module, "a", at, at + 10.0),
                forward("mm", at + 2.0, number),
                span(Kind::Backward, "backward", at + 20.0, at + 30.0),
                call(at + 21.0, at + 22.0, number),
            ]
        };
        let expected = [21.0, 61.0].map(|begin| ("a".to_owned(), begin, begin + 1.0));
        assert_eq!(found(&[step(0.0, 5), step(40.0, 6)].concat()), expected);
    }

    #[test]
    fn neighbours_with_a_common_beginning_are_two_modules() {
        let calls = [("layer1", 0.0, 1.0), ("layer10.0", 2.0, 3.0), ("layer10.1", 4.0, 5.0)];
        let paths: Vec<_> = nest(calls.into_iter()).into_iter().map(|one| one.path).collect();
        assert_eq!(paths, ["layer1", "layer10.0", "layer10.1", "layer10"]);
    }
}
