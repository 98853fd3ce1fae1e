//! `log.trace`: the steps of a timeline.

use std::fmt;
use std::str::FromStr;

crate::as_text!(TracedSteps);

/// More steps would fill the memory with their events.
const MOST: u64 = 100;

/// Steps in a row, counted from 1: `10-12`, or `10` alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracedSteps {
    first: u64,
    last: u64,
}

impl TracedSteps {
    pub fn first(self) -> u64 {
        self.first
    }

    pub fn last(self) -> u64 {
        self.last
    }

    pub fn contains(self, step: u64) -> bool {
        (self.first..=self.last).contains(&step)
    }
}

impl FromStr for TracedSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = |text: &str| text.trim().parse::<u64>().ok();
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (Some(first), Some(last)) = (number(first), number(last)) else {
            return Err(format!("expected steps such as \"10-12\" or \"10\", got the text {text:?}"));
        };
        match (first, last) {
            (0, _) => Err(format!("{text:?} begins at step 0: steps count from 1")),
            _ if last < first => {
                Err(format!("{text:?} ends before it begins; write \"{last}-{first}\" for these steps"))
            }
            _ if last - first >= MOST => Err(format!(
                "{text:?} has more than {MOST} steps, whose events would fill the memory; a few steps show the same"
            )),
            _ => Ok(Self { first, last }),
        }
    }
}

impl fmt::Display for TracedSteps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ranges_are_read_as_written_and_wrong_ones_name_the_remedy() {
        for (text, first, last) in [("10-12", 10, 12), ("10", 10, 10), ("1-100", 1, 100)] {
            let steps: TracedSteps = text.parse().unwrap();
            assert_eq!((steps.first(), steps.last(), steps.to_string()), (first, last, text.to_owned()));
            assert!(steps.contains(first) && steps.contains(last) && !steps.contains(last + 1));
        }
        for (text, remedy) in [
            ("12-10", "write \"10-12\""),
            ("0-3", "count from 1"),
            ("1-101", "more than 100 steps"),
            ("ten", "such as \"10-12\""),
            ("-3", "such as \"10-12\""),
            ("", "such as \"10-12\""),
            ("3-", "such as \"10-12\""),
        ] {
            let error = text.parse::<TracedSteps>().unwrap_err();
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }
}
