//! `checkpoint.best`: which checkpoint of a run is the best.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

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
        let figure = |name: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "_-.@/".contains(c);
            (name.chars().all(known)).then(|| name.to_owned())
        };
        let words: Vec<&str> = text.split_whitespace().collect();
        let read = match words[..] {
            ["max", name] => figure(name).map(|figure| (Goal::Max, figure)),
            ["min", name] => figure(name).map(|figure| (Goal::Min, figure)),
            _ => None,
        };
        let (goal, figure) = read.ok_or_else(|| {
            format!(
                "expected max or min and the name of a figure, such as \"max accuracy\" or \"min loss\", got {text:?}"
            )
        })?;
        Ok(Self { goal, figure })
    }
}

impl fmt::Display for Best {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.goal, self.figure)
    }
}

impl Serialize for Best {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Best {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}
