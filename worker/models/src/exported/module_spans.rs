//! The modules of a program's operations, on a timeline.

use dtrain_common::trace::{self, Kind, Span};

/// The open spans of the modules around the last operation, outermost first.
#[derive(Default)]
pub(super) struct ModuleSpans(Vec<(String, Span)>);

impl ModuleSpans {
    /// Ends the modules that do not contain the module at `path`, and begins those that do.
    pub(super) fn enter(&mut self, path: &str) {
        if !trace::is_recording() {
            return;
        }
        let contains = |outer: &str| {
            path.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        while self.0.pop_if(|(outer, _)| !contains(outer)).is_some() {}
        let known = self.0.last().map_or(0, |(outer, _)| outer.len());
        let ends = path.match_indices('.').map(|(at, _)| at).chain([path.len()]);
        for end in ends.filter(|end| *end > known) {
            let path = path[..end].to_owned();
            self.0.push((path.clone(), trace::named_span(Kind::Module, || path)));
        }
    }

    /// Ends all modules.
    pub(super) fn leave(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Drop for ModuleSpans {
    /// The innermost module ends first.
    fn drop(&mut self) {
        self.leave();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_within_those_that_contain_them() {
        trace::start();
        let mut modules = ModuleSpans::default();
        for path in ["a.b", "a.b", "a.c.d", "a", "ab"] {
            modules.enter(path);
        }
        drop(modules);
        let (spans, _) = trace::stop();
        let names: Vec<_> = spans.iter().map(|span| &*span.name).collect();
        assert_eq!(names, ["a.b", "a.c.d", "a.c", "a", "ab"]);
        assert!(spans.windows(2).all(|pair| pair[0].end_ns <= pair[1].end_ns));
    }
}
