//! Limits of a run's time and of its workers' waiting time.

use clap::Args;
use dtrain_common::time::parse_time;
use std::str::FromStr;
use std::time::Duration;

/// Limits in time.
#[derive(Debug, Clone, Args)]
pub(crate) struct LimitArgs {
    /// Limit the run's time: `90 min`, `2h30min`, `1-12:00:00` or `none`.
    ///
    /// Counted from the start. A recipe also stops before the end of its Slurm job, except with `none`.
    #[arg(long, value_name = "TIME|none")]
    pub(crate) time_limit: Option<Limit>,

    /// Stop workers this long before the limit [default: 10%, at most 2 min].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) time_margin: Option<Duration>,

    /// Longest wait of a rank in one collective operation [default: 10 min].
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) collective_timeout: Option<Duration>,
}

/// The value of `--time-limit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// No limit, also not the batch system's.
    None,
    Time(Duration),
}

impl FromStr for Limit {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, &'static str> {
        match text {
            "none" => Ok(Self::None),
            text => time(text).map(Self::Time),
        }
    }
}

/// Parses a time. A number without a unit is in seconds, as in the launcher's other flags.
fn time(text: &str) -> Result<Duration, &'static str> {
    let found = parse_time(text).or_else(|| parse_time(&format!("{text} s")));
    found.ok_or("write a time such as `90 min`, `2h30min` or `1-12:00:00`, or a number of seconds")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn limits_read() {
        for (text, limit) in [
            ("none", Limit::None),
            ("90", Limit::Time(Duration::from_secs(90))),
            ("1.5", Limit::Time(Duration::from_millis(1500))),
            ("90 min", Limit::Time(Duration::from_secs(5400))),
            ("8m", Limit::Time(Duration::from_secs(480))),
            ("00:10:00", Limit::Time(Duration::from_secs(600))),
        ] {
            assert_eq!(text.parse::<Limit>().unwrap(), limit, "{text}");
        }
        for text in ["", "0", "-1", "soon", "1 epoch", "10:00"] {
            assert!(text.parse::<Limit>().is_err(), "{text}");
        }
    }
}
