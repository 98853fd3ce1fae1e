//! `checkpoint.every`: a length of training, or of time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::Span;
use crate::time::{parse_time, show_time};
use crate::units::UnitError;

/// How often something is done; never zero when it was read from text.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Every {
    /// After so much training.
    Span(Span),
    /// After so much time.
    Time(Duration),
}

impl Every {
    /// The length of training, unless it is one of time.
    pub fn span(self) -> Option<Span> {
        match self {
            Self::Span(span) => Some(span),
            Self::Time(_) => None,
        }
    }

    /// The length of time, unless it is one of training.
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
        let span: Span = text
            .parse()
            .map_err(|error: UnitError| format!("{error}; or a length of time, such as \"10 min\""))?;
        match span.is_zero() {
            false => Ok(Self::Span(span)),
            true => Err(format!("{text:?} is no time at all; give at least 1 step")),
        }
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Span(span) => span.fmt(f),
            Self::Time(time) => f.write_str(&show_time(*time)),
        }
    }
}

crate::choice::as_text!(Every);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn training_and_time_read() {
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
        for text in [
            "",
            "10",
            "min",
            "0 s",
            "-1 h",
            "nan h",
            "inf s",
            "1e300 h",
            "0 steps",
            "3 fortnights",
        ] {
            assert!(text.parse::<Every>().is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_reads_or_is_refused(text: String) {
            let _ = text.parse::<Every>();
        }

        #[test]
        fn times_round_trip(millis in 1_u64..1 << 40) {
            let every = Every::Time(Duration::from_millis(millis));
            prop_assert_eq!(every.to_string().parse::<Every>().unwrap(), every);
        }
    }
}
