//! `checkpoint.best`: which checkpoint of a run is the best.

use std::fmt;
use std::str::FromStr;

use super::Goal;

/// By which figure of an evaluation checkpoints are compared, as in `"max accuracy"` or `"min loss"`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Best {
    /// Which of two values is the better one.
    pub goal: Goal,
    /// The figure's name as in metrics.jsonl; that the task has it is told when there is a task.
    pub figure: String,
}

impl Best {
    /// Whether `value` is better than the best one before it, if there was any. A value that is not finite never is, and neither
    /// is one that is only as good.
    pub fn is_better(&self, value: f64, before: Option<f64>) -> bool {
        value.is_finite()
            && before.is_none_or(|before| match self.goal {
                Goal::Max => value > before,
                Goal::Min => value < before,
            })
    }
}

impl FromStr for Best {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let known = |c: char| c.is_ascii_alphanumeric() || "_-.@/".contains(c);
        let (goal, figure) = match words[..] {
            ["max", name] if name.chars().all(known) => (Goal::Max, name.to_owned()),
            ["min", name] if name.chars().all(known) => (Goal::Min, name.to_owned()),
            _ => {
                return Err(format!(
                    "expected max or min and the name of a figure, such as \"max accuracy\" or \"min loss\", got {text:?}"
                ));
            }
        };
        Ok(Self { goal, figure })
    }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.goal, self.figure)
    }
}

crate::choice::as_text!(Best);
