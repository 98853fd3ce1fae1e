//! `--redirects` and `--tee`: which streams of which workers.

use super::ranks::rank;
use dtrain_agent::io::output::Stream;
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Which streams of which workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The same of all.
    All(Pick),
    /// By local rank; nothing of those that are not named.
    Ranks(BTreeMap<usize, Pick>),
}

/// Some of a worker's two streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pick {
    stdout: bool,
    stderr: bool,
}

impl Choice {
    /// Whether this stream is chosen.
    pub(crate) fn takes(&self, local_rank: usize, stream: Stream) -> bool {
        let pick = match self {
            Self::All(pick) => Some(pick),
            Self::Ranks(picks) => picks.get(&local_rank),
        };
        pick.is_some_and(|pick| match stream {
            Stream::Stdout => pick.stdout,
            Stream::Stderr => pick.stderr,
        })
    }

    /// The local ranks that are named.
    pub(crate) fn named(&self) -> impl Iterator<Item = usize> {
        match self {
            Self::All(_) => None,
            Self::Ranks(picks) => Some(picks.keys().copied()),
        }
        .into_iter()
        .flatten()
    }
}

impl Pick {
    /// torchrun's numbers: the sum of 1 for standard output and 2 for standard error.
    fn parse(word: &str) -> Option<Self> {
        let (stdout, stderr) = match word {
            "0" => (false, false),
            "1" => (true, false),
            "2" => (false, true),
            "3" => (true, true),
            _ => return None,
        };
        Some(Self { stdout, stderr })
    }
}

impl fmt::Display for Pick {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u8::from(self.stdout) + 2 * u8::from(self.stderr))
    }
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(pick) = Pick::parse(text) {
            return Ok(Self::All(pick));
        }
        let mut picks = BTreeMap::new();
        for word in text.split(',') {
            let (local_rank, pick) = word
                .split_once(':')
                .and_then(|(local_rank, pick)| Some((rank(local_rank)?, Pick::parse(pick.trim())?)))
                .ok_or(
                    "give 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or one of them for each local \
                     rank, such as 0:3,1:2",
                )?;
            if picks.insert(local_rank, pick).is_some() {
                return Err(format!("local rank {local_rank} is named twice"));
            }
        }
        Ok(Self::Ranks(picks))
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(pick) => pick.fmt(f),
            Self::Ranks(picks) => {
                let words: Vec<_> = picks
                    .iter()
                    .map(|(rank, pick)| format!("{rank}:{pick}"))
                    .collect();
                f.write_str(&words.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_number_is_for_all() {
        for (text, stdout, stderr) in [
            ("0", false, false),
            ("1", true, false),
            ("2", false, true),
            ("3", true, true),
        ] {
            let choice: Choice = text.parse().unwrap();
            assert_eq!(
                (choice.takes(0, Stream::Stdout), choice.takes(7, Stream::Stderr)),
                (stdout, stderr)
            );
            assert_eq!(choice.named().count(), 0);
        }
    }

    #[test]
    fn ranks_that_are_not_named_have_nothing() {
        let choice: Choice = "0:1,12:2".parse().unwrap();
        assert!(choice.takes(0, Stream::Stdout) && !choice.takes(0, Stream::Stderr));
        assert!(choice.takes(12, Stream::Stderr) && !choice.takes(12, Stream::Stdout));
        assert!(!choice.takes(1, Stream::Stdout));
        assert_eq!(choice.named().collect::<Vec<_>>(), [0, 12]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for wrong in [
            "", "4", "-1", "03", "all", "0:", ":1", "0:4", "0:1,", "0:1;1:1", "0:1:1", "x:1", "1,2",
        ] {
            assert!(wrong.parse::<Choice>().is_err(), "{wrong:?}");
        }
        let twice = "0:1,0:2".parse::<Choice>().unwrap_err();
        assert_eq!(twice, "local rank 0 is named twice");
    }

    fn picks() -> impl Strategy<Value = Pick> {
        (any::<bool>(), any::<bool>()).prop_map(|(stdout, stderr)| Pick { stdout, stderr })
    }

    proptest! {
        #[test]
        fn choices_come_back_from_their_text(
            all in picks(),
            ranks in prop::collection::btree_map(0_usize..2000, picks(), 1..9),
        ) {
            for choice in [Choice::All(all), Choice::Ranks(ranks)] {
                prop_assert_eq!(choice.to_string().parse(), Ok(choice));
            }
        }

        #[test]
        fn no_text_breaks_the_parser(text in "[0-4:, x-]{0,12}") {
            if let Ok(Choice::Ranks(picks)) = text.parse::<Choice>() {
                prop_assert!(!picks.is_empty());
            }
        }
    }
}
