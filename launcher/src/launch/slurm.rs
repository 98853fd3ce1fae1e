//! When the Slurm job ends in which this process runs.

use dtrain_agent::clock::Begun;
use dtrain_agent::io::process::output;
use dtrain_common::env::{SLURM_JOB_END_TIME, SLURM_JOB_ID};
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

/// A controller that does not answer is not waited for any longer.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is left of the job; none outside of one, in one without an end, and where nobody says.
pub(super) fn left(begun: Begun, inherited: impl Fn(&str) -> Option<String>) -> Option<Duration> {
    let job = inherited(SLURM_JOB_ID)?;
    match inherited(SLURM_JOB_END_TIME) {
        Some(end) => until(&end, begun),
        // Older versions do not say it in the environment.
        None => parse_left(&ask(&job)?),
    }
}

/// The time until a moment in seconds since 1970.
fn until(end: &str, begun: Begun) -> Option<Duration> {
    let end = UNIX_EPOCH.checked_add(Duration::from_secs(end.trim().parse().ok()?))?;
    end.duration_since(begun.wall).ok().filter(|left| !left.is_zero())
}

/// squeue's answer to how much is left.
fn ask(job: &str) -> Option<String> {
    let mut squeue = Command::new("squeue");
    squeue.args(["--noheader", "--jobs", job, "--format=%L"]);
    output(&mut squeue, PATIENCE)
}

/// `[days-][[hours:]minutes:]seconds`; none for words such as UNLIMITED, and for nothing.
fn parse_left(text: &str) -> Option<Duration> {
    let text = text.trim();
    let (days, clock) = text.split_once('-').unwrap_or(("0", text));
    let mut seconds = 0;
    let fields: Vec<&str> = clock.split(':').collect();
    if fields.len() > 3 {
        return None;
    }
    for field in fields {
        seconds = seconds * 60 + u64::from(field.parse::<u32>().ok()?);
    }
    seconds += u64::from(days.parse::<u32>().ok()?) * 86400;
    (seconds > 0).then(|| Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn squeues_words_for_what_is_left_are_understood() {
        for (text, seconds) in [
            ("0:37\n", Some(37)),
            ("59", Some(59)),
            ("10:00", Some(600)),
            ("2:03:04", Some(7384)),
            ("1-02:03:04", Some(93_784)),
            ("UNLIMITED", None),
            ("NOT_SET", None),
            ("INVALID", None),
            ("0:00", None),
            ("1:2:3:4", None),
            ("", None),
        ] {
            assert_eq!(parse_left(text), seconds.map(Duration::from_secs), "{text}");
        }
    }
}
