//! A range of learning rates to test: `MIN:MAX[:STEPS]`.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The usual number of steps of a test.
pub const STEPS: u64 = 100;

/// Fewer steps show no course of the loss.
pub const LEAST_STEPS: u64 = 20;

/// Learning rates that rise from step to step by one factor.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LrRange {
    /// The rate of the first step, above 0.
    pub from: f64,
    /// The rate of the last step, above `from`.
    pub to: f64,
    /// At least [`LEAST_STEPS`].
    pub steps: u64,
}

/// A text that is no range.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LrRangeError {
    /// The text has other parts.
    #[error("expected MIN:MAX or MIN:MAX:STEPS, such as 1e-6:1 or 1e-6:1:200")]
    Form,
    /// A rate is no number above 0.
    #[error("{0} is no learning rate; give a finite number above 0")]
    Rate(String),
    /// The range is empty.
    #[error("the range does not rise: {from} is not below {to}; give the smaller rate first")]
    Order {
        /// The first rate.
        from: String,
        /// The last rate.
        to: String,
    },
    /// The number of steps is no number, or too small.
    #[error("{0} is no number of steps; give at least {LEAST_STEPS}, so that the loss shows a course")]
    Steps(String),
}

impl LrRange {
    /// Returns the factor of the rate from each step to the next.
    pub fn factor(&self) -> f64 {
        (self.to / self.from).powf(1.0 / (self.steps - 1) as f64)
    }
}

impl FromStr for LrRange {
    type Err = LrRangeError;

    fn from_str(text: &str) -> Result<Self, LrRangeError> {
        let parts: Vec<&str> = text.split(':').collect();
        let (from, to, steps) = match parts[..] {
            [from, to] => (from, to, None),
            [from, to, steps] => (from, to, Some(steps)),
            _ => return Err(LrRangeError::Form),
        };
        let rate = |text: &str| {
            let number = text.trim().parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
            number.ok_or_else(|| LrRangeError::Rate(format!("{text:?}")))
        };
        let [first, last] = [rate(from)?, rate(to)?];
        let count = |text: &str| {
            let number = text.trim().parse::<u64>().ok().filter(|steps| *steps >= LEAST_STEPS);
            number.ok_or_else(|| LrRangeError::Steps(format!("{text:?}")))
        };
        let steps = steps.map_or(Ok(STEPS), count)?;
        if first >= last {
            return Err(LrRangeError::Order { from: from.to_owned(), to: to.to_owned() });
        }
        Ok(Self { from: first, to: last, steps })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn ranges_are_read_and_refused() {
        let range: LrRange = "1e-6:1".parse().unwrap();
        assert_eq!((range.from, range.to, range.steps), (1e-6, 1.0, 100));
        let short: LrRange = "0.1:0.2:20".parse().unwrap();
        assert!((short.from * short.factor().powi(19) - short.to).abs() < 1e-12);
        for (text, part) in [
            ("1e-6", "expected MIN:MAX"),
            ("1:2:30:4", "expected MIN:MAX"),
            ("0:1", "\"0\" is no learning rate"),
            ("-1:1", "\"-1\" is no learning rate"),
            ("1e-6:inf", "\"inf\" is no learning rate"),
            ("nan:1", "\"nan\" is no learning rate"),
            ("1:x", "\"x\" is no learning rate"),
            ("1:1", "does not rise"),
            ("1:1e-3", "does not rise: 1 is not below 1e-3"),
            ("1e-6:1:19", "\"19\" is no number of steps"),
            ("1e-6:1:", "\"\" is no number of steps"),
            ("1e-6:1:1e3", "at least 20"),
        ] {
            let error = text.parse::<LrRange>().unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
