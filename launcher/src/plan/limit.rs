//! The time limit of a run: the user's, or the batch system's.

use crate::cli::{Limit, LimitArgs};
use anyhow::bail;
use dtrain_agent::clock::StartTime;
use dtrain_agent::io::process::output;
use dtrain_agent::local::TimeLimit;
use dtrain_agent::signals;
use dtrain_common::time::format_time;
use dtrain_job::{Allocation, Surroundings};
use std::process::Command;
use std::time::Duration;

/// A time limit, and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LimitWithNote {
    pub(super) limit: TimeLimit,
    pub(super) note: String,
}

/// Returns when to ask workers to stop, and when to kill them. A Slurm job limits a training too.
pub(super) fn limit(
    args: &LimitArgs,
    training: bool,
    start_time: StartTime,
    inherited: impl Fn(&str) -> Option<String>,
) -> anyhow::Result<Option<LimitWithNote>> {
    let (own, heeds_job) = match args.time_limit {
        Some(Limit::Time(time)) => (Some(time), training),
        Some(Limit::None) => (None, false),
        None => (None, training),
    };
    let job = heeds_job.then(|| left(start_time, inherited)).flatten();
    let (end, whose) = match (own, job) {
        (Some(own), Some(job)) if job < own => (job, "limit of the Slurm job"),
        (Some(own), _) => (own, "--time-limit"),
        (None, Some(job)) => (job, "limit of the Slurm job; --time-limit none ignores it"),
        (None, None) => {
            if args.time_margin.is_some() {
                bail!("--time-margin has no effect without a time limit: give --time-limit, or leave it out");
            }
            return Ok(None);
        }
    };
    let margin = match args.time_margin {
        Some(margin) if margin >= end => bail!(
            "--time-margin {} is not shorter than the time limit of {}; give a shorter one, or leave it out",
            format_time(margin),
            format_time(whole_seconds(end))
        ),
        Some(margin) => margin,
        None => Allocation::margin(end),
    };
    let ask = end - margin;
    Ok(Some(LimitWithNote {
        limit: TimeLimit { ask, end, signal: if training { signals::USR1 } else { signals::TERM } },
        note: format!(
            "time limit: the workers are asked to stop after {}, and killed after {} ({whose})",
            format_time(whole_seconds(ask)),
            format_time(whole_seconds(end))
        ),
    }))
}

/// Drops fractions of seconds, except from very short times.
fn whole_seconds(time: Duration) -> Duration {
    match time.as_secs() {
        0..10 => Duration::from_millis(time.as_millis() as u64),
        seconds => Duration::from_secs(seconds),
    }
}

/// For squeue, whose controller may not answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Returns the rest of the job's time; `None` without a job or an end.
fn left(start_time: StartTime, inherited: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let squeue = |words: &[&str]| {
        let (program, args) = words.split_first()?;
        output(Command::new(program).args(args), PATIENCE)
    };
    let from = Surroundings { variable: &inherited, file: &|_| None, command: &squeue };
    Allocation::slurm(from)?.time_left(from, start_time.wall)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_common::env::job::{SLURM_JOB_END_TIME, SLURM_JOB_ID};
    use std::time::{Instant, UNIX_EPOCH};

    fn start_time() -> StartTime {
        StartTime { at: Instant::now(), wall: UNIX_EPOCH + Duration::from_secs(1_000_000) }
    }

    fn args(limit: Option<&str>, margin: Option<u64>) -> LimitArgs {
        LimitArgs {
            time_limit: limit.map(|limit| limit.parse().unwrap()),
            time_margin: margin.map(Duration::from_secs),
            collective_timeout: None,
        }
    }

    fn found(args: &LimitArgs, training: bool, slurm: Option<&str>) -> Option<(u64, u64, i32)> {
        let get = |name: &str| match name {
            SLURM_JOB_ID => slurm.map(|_| "7".to_owned()),
            SLURM_JOB_END_TIME => slurm.map(str::to_owned),
            _ => None,
        };
        let limited = limit(args, training, start_time(), get).unwrap()?;
        let TimeLimit { ask, end, signal } = limited.limit;
        Some((ask.as_secs(), end.as_secs(), signal))
    }

    #[test]
    fn the_earlier_of_the_users_and_the_jobs_end_counts() {
        let (usr1, term) = (signals::USR1, signals::TERM);
        let none = args(None, None);
        let hour = args(Some("1 h"), None);
        assert_eq!(found(&none, true, None), None);
        assert_eq!(found(&hour, true, None), Some((3480, 3600, usr1)));
        assert_eq!(found(&args(Some("100"), None), true, None), Some((90, 100, usr1)));
        assert_eq!(found(&args(Some("100"), Some(40)), true, None), Some((60, 100, usr1)));
        assert_eq!(found(&none, true, Some("1000300")), Some((270, 300, usr1)));
        assert_eq!(found(&hour, true, Some("1000300")), Some((270, 300, usr1)));
        assert_eq!(found(&hour, true, Some("1009999")), Some((3480, 3600, usr1)));
        // An end in the past does not count, and neither does invalid text.
        assert_eq!(found(&none, true, Some("1000000")), None);
        assert_eq!(found(&none, true, Some("soon")), None);
        assert_eq!(found(&args(Some("none"), None), true, Some("1000300")), None);
        // A program does not get the Slurm job's limit.
        assert_eq!(found(&none, false, Some("1000300")), None);
        assert_eq!(found(&hour, false, None), Some((3480, 3600, term)));
    }

    #[test]
    fn a_margin_without_effect_is_refused() {
        let refused = |args: &LimitArgs| limit(args, true, start_time(), |_| None).unwrap_err().to_string();
        assert!(refused(&args(None, Some(5))).contains("no effect without a time limit"));
        let text = refused(&args(Some("60"), Some(60)));
        assert!(text.contains("60 s") || text.contains("1 min"), "{text}");
    }
}
