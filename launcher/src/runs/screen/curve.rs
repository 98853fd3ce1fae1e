//! A curve of bounded size, however many values it gets.

/// The most points: more than a terminal has columns of dots.
const MOST: usize = 2048;

/// Points in the order of steps. Each is the mean of as many values as all others, but for the last.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    points: Vec<Point>,
    /// Values of a full point.
    values: u32,
    last: Option<f64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    first: u64,
    last: u64,
    sum: f64,
    count: u32,
}

impl Default for Curve {
    fn default() -> Self {
        Self { points: Vec::new(), values: 1, last: None }
    }
}

impl Curve {
    /// Adds the value of a step. A step that is repeated replaces the later ones. Values that are not finite are left out.
    pub(super) fn push(&mut self, step: u64, value: f64) {
        while self.points.last().is_some_and(|point| point.last >= step) {
            self.points.pop();
        }
        // The loss of a diverged training is not the last one that was a number.
        self.last = value.is_finite().then_some(value);
        if !value.is_finite() {
            return;
        }
        match self.points.last_mut() {
            Some(point) if point.count < self.values => {
                point.last = step;
                point.sum += value;
                point.count += 1;
            }
            _ => self.points.push(Point { first: step, last: step, sum: value, count: 1 }),
        }
        if self.points.len() > MOST {
            self.halve();
        }
    }

    fn halve(&mut self) {
        let joined = |pair: &[Point]| match *pair {
            [a, b] => Point { first: a.first, last: b.last, sum: a.sum + b.sum, count: a.count + b.count },
            _ => pair[0],
        };
        self.points = self.points.chunks(2).map(joined).collect();
        self.values *= 2;
    }

    /// Returns at most `most` points: their mean steps and mean values.
    pub(super) fn points(&self, most: usize) -> Vec<(f64, f64)> {
        let mean = |part: &[Point]| {
            let count: f64 = part.iter().map(|point| f64::from(point.count)).sum();
            let step = (part[0].first as f64 + part[part.len() - 1].last as f64) / 2.0;
            (step, part.iter().map(|point| point.sum).sum::<f64>() / count)
        };
        self.points.chunks(self.points.len().div_ceil(most.max(1)).max(1)).map(mean).collect()
    }

    /// Returns the first and the last step.
    pub(super) fn steps(&self) -> Option<(u64, u64)> {
        Some((self.points.first()?.first, self.points.last()?.last))
    }

    /// Returns the latest value, if it is finite.
    pub(super) fn last(&self) -> Option<f64> {
        self.last
    }

    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_its_form_and_few_points() {
        let mut curve = Curve::default();
        for step in 1..=100_000 {
            curve.push(step, step as f64 * 2.0);
        }
        let points = curve.points(usize::MAX);
        assert!((MOST / 2..=MOST).contains(&points.len()), "{}", points.len());
        assert!(points.iter().all(|(step, value)| (value - 2.0 * step).abs() < 1e-6));
        assert_eq!(curve.points(100).len(), points.len().div_ceil(points.len().div_ceil(100)));
        assert!(points[0].0 < 100.0 && points[points.len() - 1].0 > 99_900.0);
    }

    #[test]
    fn a_repeated_step_replaces_the_later_ones() {
        let mut curve = Curve::default();
        for (step, value) in [(1, 1.0), (2, 2.0), (3, 3.0), (2, 5.0), (4, f64::NAN), (5, 6.0)] {
            curve.push(step, value);
        }
        assert_eq!((curve.steps(), curve.last()), (Some((1, 5)), Some(6.0)));
        assert_eq!(curve.points(usize::MAX), [(1.0, 1.0), (2.0, 5.0), (5.0, 6.0)]);
        curve.push(6, f64::NAN);
        assert_eq!((curve.steps(), curve.last()), (Some((1, 5)), None));
    }
}
