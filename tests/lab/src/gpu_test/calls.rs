//! Divides the suite into calls. On a machine that is lent for minutes at a time, each call is one command.

use std::time::Duration;

use clap::ValueEnum;

use super::checks::Part;

/// The limit of a call.
pub(super) const LONGEST: Duration = Duration::from_secs(8 * 60);

/// Fills a call up to this estimate in seconds, below the limit.
const FULL: u32 = 7 * 60;

/// Checks of one part, by number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) checks: std::ops::Range<usize>,
    /// Estimated duration in seconds.
    pub(super) seconds: u32,
}

/// Returns all calls: together they are the whole suite, in order.
pub(super) fn calls(rounds: usize) -> Vec<Call> {
    Part::value_variants()
        .iter()
        .flat_map(|&part| {
            let seconds: Vec<u32> = part.checks(rounds).iter().map(|check| check.seconds).collect();
            let ranges = pieces(&seconds);
            let several = ranges.len() > 1;
            ranges.into_iter().zip(1..).map(move |(checks, number)| Call {
                name: match several {
                    true => format!("{}-{number}", part.name()),
                    false => part.name(),
                },
                part,
                seconds: seconds[checks.clone()].iter().sum(),
                checks,
            })
        })
        .collect()
}

/// Divides checks into consecutive groups of at most `FULL` seconds; a longer check is a group alone.
fn pieces(seconds: &[u32]) -> Vec<std::ops::Range<usize>> {
    let mut pieces: Vec<std::ops::Range<usize>> = Vec::new();
    let mut taken = 0;
    for (at, &seconds) in seconds.iter().enumerate() {
        match pieces.last_mut() {
            Some(last) if taken + seconds <= FULL => {
                last.end = at + 1;
                taken += seconds;
            }
            _ => {
                pieces.push(at..at + 1);
                taken = seconds;
            }
        }
    }
    pieces
}

/// Returns a table of the calls for people.
pub(super) fn table(calls: &[Call], rounds: usize) -> String {
    let mut text = "| Call | Checks | Estimated time |\n|---|---|---|\n".to_owned();
    for call in calls {
        let names: Vec<String> =
            call.part.checks(rounds)[call.checks.clone()].iter().map(|check| check.name.clone()).collect();
        text += &format!(
            "| `--call {}` | {} | {:.0} min |\n",
            call.name,
            names.join("; "),
            (f64::from(call.seconds) / 60.0).ceil()
        );
    }
    let all: u32 = calls.iter().map(|call| call.seconds).sum();
    text += &format!(
        "\n{} calls, about {} min together. Times are estimates; a call ends after {} min",
        calls.len(),
        all.div_ceil(60),
        LONGEST.as_secs() / 60
    );
    text
}
