//! How far a course has come whose end may move on the way.

use std::ops::Range;

/// A course from 0 to 1 over steps or epochs. If its end moves, it continues from where it is, to the new end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Pace {
    from: u64,
    /// Units done at `from`, of all units. At the present pace, each step is a unit.
    done: f64,
    pub(super) units: f64,
    end: u64,
}

impl Pace {
    pub(super) fn new(span: &Range<u64>) -> Self {
        Self {
            from: span.start,
            done: 0.0,
            units: span.end.saturating_sub(span.start).max(1) as f64,
            end: span.end,
        }
    }

    /// Returns the course over `span`, as known at `now`. A course that has not begun is a new one.
    pub(super) fn moved(self, now: u64, span: &Range<u64>) -> Self {
        if now <= span.start {
            return Self::new(span);
        }
        if span.end == self.end {
            return self;
        }
        let part = self.done(now) / self.units;
        let (done, units) = match span.end > now && part < 1.0 {
            true => {
                let units = (span.end - now) as f64 / (1.0 - part);
                (part * units, units)
            }
            false => (1.0, 1.0),
        };
        Self { from: now, done, units, end: span.end }
    }

    /// Returns the units done at a step, at most all.
    pub(super) fn done(&self, step: u64) -> f64 {
        (self.done + step.saturating_sub(self.from) as f64).min(self.units)
    }

    /// Returns the step at which this part is done, rounded; before the course's end, and not before its last change. Of a
    /// course that ended by the change, the end.
    pub(super) fn step_at(&self, part: f64) -> u64 {
        if self.end <= self.from {
            return self.from;
        }
        let steps = (part * self.units - self.done).round().max(0.0) as u64;
        self.from.saturating_add(steps).min(self.end.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_over_at_a_step_before_the_end() {
        let after = |at, steps: u64| Pace::new(&(0..steps)).step_at(at);
        assert_eq!((after(0.0, 9), after(0.33, 9), after(0.66, 9)), (0, 3, 6));
        assert_eq!((after(0.5, 1), after(0.999, 3), after(0.5, 3)), (0, 2, 2));
    }

    #[test]
    fn a_course_continues_to_its_new_end() {
        let half = |pace: Pace| (pace.done(50) / pace.units, pace.done(75) / pace.units, pace.step_at(1.0));
        let pace = Pace::new(&(0..100));
        assert_eq!(half(pace.moved(50, &(0..75))), (0.5, 1.0, 74));
        assert_eq!(half(pace.moved(50, &(0..100)).moved(50, &(0..150))), (0.5, 0.625, 149));
        // There and back, and a course that has not begun.
        assert_eq!(half(pace.moved(50, &(0..75)).moved(50, &(0..100))), (0.5, 0.75, 99));
        assert_eq!(Pace::new(&(60..70)).moved(50, &(55..90)), Pace::new(&(55..90)));
        // It may be over.
        assert_eq!(pace.moved(50, &(0..50)).done(50), 1.0);
        assert_eq!(pace.moved(50, &(0..50)).step_at(0.7), 50);
    }
}
