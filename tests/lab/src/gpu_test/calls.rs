//! The suite in calls: on a machine that is lent for minutes at a time, each is one command.

use std::time::Duration;

use super::checks::Part;

/// The most that a call takes.
pub(super) const LONGEST: Duration = Duration::from_secs(8 * 60);

/// What an estimate leaves free of it.
const FULL: u32 = 7 * 60;

/// Some checks of one part, by their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Call {
    pub(super) name: String,
    pub(super) part: Part,
    pub(super) checks: std::ops::Range<usize>,
    /// How long it may take, in seconds. Guessed.
    pub(super) seconds: u32,
}

/// All of them: together they are the whole suite, in its order.
pub(super) fn calls(rounds: usize) -> Vec<Call> {
    Part::ALL
        .into_iter()
        .flat_map(|part| {
            let seconds: Vec<u32> = part.checks(rounds).iter().map(|check| check.seconds).collect();
            let ranges = pieces(&seconds);
            let several = ranges.len() > 1;
            ranges.into_iter().zip(1..).map(move |(checks, number)| Call {
                name: match several {
                    true => format!("{}-{number}", part.name()),
                    false => part.name().to_owned(),
                },
                part,
                seconds: seconds[checks.clone()].iter().sum(),
                checks,
            })
        })
        .collect()
}

/// Cuts checks into as few pieces as their order allows; a check that takes longer than a call has one of its own.
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

/// A table of them for people.
pub(super) fn table(calls: &[Call], rounds: usize) -> String {
    let mut text = "| Call | Checks | Takes about |\n|---|---|---|\n".to_owned();
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
        "\n{} calls, about {} min together. The times are guessed; a call is ended after {} min",
        calls.len(),
        all.div_ceil(60),
        LONGEST.as_secs() / 60
    );
    text
}
