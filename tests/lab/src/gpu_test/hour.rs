//! The first hour on a lent GPU: two commands of eight minutes, with the most important results first.
//!
//! Each section has its time. A section that ends early leaves its rest to the later ones; a slow one loses its own checks
//! only. Results are written as they come.

use std::time::Duration;

use anyhow::Result;

use super::checks::{self, Check};
use super::suite::Suite;
use super::{Args, bench};

/// The commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hour {
    First,
    Second,
}

/// Checks under one heading.
pub(super) struct Section {
    pub(super) title: String,
    /// Time after which its checks are left out or stopped; none if it is unlimited.
    pub(super) time: Option<Duration>,
    /// What begins before its checks.
    pub(super) before: Option<fn(&Suite<'_>) -> Result<()>>,
    pub(super) checks: Vec<Check>,
}

impl Hour {
    /// Returns the command that the user has asked for, if it is one of these.
    pub(super) fn of(args: &Args) -> Option<Self> {
        match (args.first, args.second) {
            (true, _) => Some(Self::First),
            (_, true) => Some(Self::Second),
            _ => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Second => "second",
        }
    }

    /// Returns the sections in their order; together they take at most eight minutes.
    pub(super) fn sections(self) -> Vec<Section> {
        let section = |title: &str, seconds, checks| Section {
            title: title.to_owned(),
            time: Some(Duration::from_secs(seconds)),
            before: None,
            checks,
        };
        match self {
            Self::First => vec![
                section("machine", 30, checks::machine()),
                section("CPU and GPU", 45, checks::devices()),
                Section {
                    // These need no GPU to speak of.
                    before: Some(|suite| {
                        checks::import_in_background(suite)?;
                        bench::compile_in_background(suite)
                    }),
                    ..section("predictions of memory", 100, checks::first_predictions())
                },
                Section {
                    before: Some(bench::await_compilers),
                    ..section("beside PyTorch", 245, bench::first_rounds())
                },
                section("an import beside PyTorch", 60, checks::imports()),
            ],
            Self::Second => vec![
                section("graphs", 180, checks::graphs()),
                section("faults", 200, checks::faults()),
                section("data loaders", 100, bench::loaders()),
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu_test::calls::LONGEST;

    #[test]
    fn a_command_takes_at_most_as_long_as_a_call() {
        for hour in [Hour::First, Hour::Second] {
            let all: Duration = hour.sections().iter().filter_map(|section| section.time).sum();
            assert!(all <= LONGEST, "{}: {all:?}", hour.name());
        }
    }

    #[test]
    fn the_checks_of_a_section_fit_its_time() {
        for section in [Hour::First, Hour::Second].into_iter().flat_map(Hour::sections) {
            // Later rounds of benchmarks take the time that is left.
            let names: std::collections::BTreeSet<&str> =
                section.checks.iter().map(|check| check.name.as_str()).collect();
            let first =
                names.iter().filter_map(|name| section.checks.iter().find(|check| check.name == *name));
            let seconds: u32 = first.map(|check| check.seconds).sum();
            let time = section.time.map_or(0, |time| time.as_secs());
            assert!(u64::from(seconds) <= time, "{}: {seconds} of {time} s", section.title);
        }
    }
}
