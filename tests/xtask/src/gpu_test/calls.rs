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
        let names: Vec<String> = call.part.checks(rounds)[call.checks.clone()]
            .iter()
            .map(|check| check.name.clone())
            .collect();
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn calls_are_the_whole_suite_and_none_takes_longer_than_eight_minutes() {
        for rounds in [1, 3] {
            let calls = calls(rounds);
            let names: BTreeSet<&str> = calls.iter().map(|call| call.name.as_str()).collect();
            assert_eq!(names.len(), calls.len());
            for part in Part::ALL {
                let mut of_part = calls.iter().filter(|call| call.part == part);
                let all = of_part.try_fold(0, |end, call| {
                    (call.checks.start == end && !call.checks.is_empty()).then_some(call.checks.end)
                });
                assert_eq!(all, Some(part.checks(rounds).len()), "{}", part.name());
            }
            for call in &calls {
                assert!(Duration::from_secs(call.seconds.into()) <= LONGEST, "{call:?}");
            }
            let text = table(&calls, rounds);
            assert!(
                text.contains("| `--call machine` | the driver answers; "),
                "{text}"
            );
        }
    }

    #[test]
    fn pieces_are_filled_in_order() {
        assert_eq!(pieces(&[]), []);
        assert_eq!(pieces(&[400, 30, 10]), [0..1, 1..3]);
        assert_eq!(pieces(&[10, 600, 10, 10]), [0..1, 1..2, 2..4]);
    }
}
