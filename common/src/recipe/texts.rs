//! Settings with their own text form: `checkpoint.best` and `checkpoint.every`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::{Goal, Span};
use crate::time::{format_time, parse_time};

crate::as_text!(Best, Every);

/// The figure of an evaluation by which checkpoints are compared, as in `"max accuracy"` or `"min loss"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Best {
    pub goal: Goal,
    /// The figure's name as in metrics.jsonl; checked when the task is known.
    pub figure: String,
}

impl Best {
    /// Returns `"min loss"`.
    pub fn least_loss() -> Self {
        Self { goal: Goal::Min, figure: "loss".to_owned() }
    }

    /// Returns whether `value` is better than the best before it. An equal or not finite value is not better.
    pub fn is_better(&self, value: f64, before: Option<f64>) -> bool {
        self.is_better_by(value, before, 0.0)
    }

    /// As [`Best::is_better`], by more than `delta`.
    pub fn is_better_by(&self, value: f64, before: Option<f64>, delta: f64) -> bool {
        value.is_finite()
            && before.is_none_or(|before| match self.goal {
                Goal::Max => value > before + delta,
                Goal::Min => value < before - delta,
            })
    }
}

impl FromStr for Best {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let known = |c: char| c.is_ascii_alphanumeric() || "_-.@/".contains(c);
        match words[..] {
            [goal @ ("max" | "min"), name] if name.chars().all(known) => {
                let goal = if goal == "max" { Goal::Max } else { Goal::Min };
                Ok(Self { goal, figure: name.to_owned() })
            }
            _ => Err(format!(
                "expected max or min and the name of a figure, such as \"max accuracy\" or \"min loss\", got {text:?}"
            )),
        }
    }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.goal, self.figure)
    }
}

/// How often something is done; never zero if it was read from text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// After this much training.
    Span(Span),
    /// After this much time.
    Time(Duration),
}

impl Every {
    /// Returns the length of training, if it is one.
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Span(span) => Some(span),
            Self::Time(_) => None,
        }
    }

    /// Returns the length of time, if it is one.
    pub fn time(self) -> Option<Duration> {
        match self {
            Self::Span(_) => None,
            Self::Time(time) => Some(time),
        }
    }
}

impl FromStr for Every {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(time) = parse_time(text) {
            return Ok(Self::Time(time));
        }
        match text.parse::<Span>() {
            Err(error) => Err(format!("{error}; or a length of time, such as \"10 min\"")),
            Ok(span) if span.is_zero() => Err(format!("{text:?} is zero; give at least 1 step")),
            Ok(span) => Ok(Self::Span(span)),
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(span) => span.fmt(f),
            Self::Time(time) => f.write_str(&format_time(*time)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn lengths_of_training_and_time_read() {
        for (text, every, shown) in [
            ("1 epoch", Every::Span(Span::Epochs(1.0)), "1 epoch"),
            ("500 steps", Every::Span(Span::Steps(500)), "500 steps"),
            ("10 min", Every::Time(Duration::from_secs(600)), "10 min"),
            (" 90minutes", Every::Time(Duration::from_secs(5400)), "90 min"),
            ("1.5 h", Every::Time(Duration::from_secs(5400)), "90 min"),
            ("2 hours", Every::Time(Duration::from_secs(7200)), "2 h"),
            ("0.25 s", Every::Time(Duration::from_millis(250)), "0.25 s"),
        ] {
            assert_eq!(text.parse::<Every>().unwrap(), every, "{text}");
            assert_eq!(every.to_string(), shown);
        }
        for text in ["", "10", "min", "0 s", "-1 h", "nan h", "inf s", "1e300 h", "0 steps", "3 fortnights"] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }
}
