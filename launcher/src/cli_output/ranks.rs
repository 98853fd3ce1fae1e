//! Local ranks in flags.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

/// Some local ranks, at least one: `0,2`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RankList(pub(crate) BTreeSet<usize>);

impl FromStr for RankList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split(',')
            .map(|word| rank(word).ok_or_else(|| "give local ranks, separated by commas, such as 0,2".into()))
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

impl fmt::Display for RankList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(usize::to_string).collect();
        f.write_str(&words.join(","))
    }
}

/// One local rank: digits and nothing else.
pub(super) fn rank(word: &str) -> Option<usize> {
    let word = word.trim();
    word.bytes()
        .all(|byte| byte.is_ascii_digit())
        .then(|| word.parse().ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_are_a_set() {
        let list: RankList = "2, 0,2".parse().unwrap();
        assert_eq!(list.0, BTreeSet::from([0, 2]));
    }

    #[test]
    fn what_is_no_rank_is_refused() {
        for wrong in [
            "",
            ",",
            "0,",
            "a",
            "-1",
            "+1",
            "0-2",
            "1.0",
            "99999999999999999999",
        ] {
            assert!(wrong.parse::<RankList>().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        #[test]
        fn lists_come_back_from_their_text(ranks in prop::collection::btree_set(0_usize..2000, 1..9)) {
            let list = RankList(ranks);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }

        #[test]
        fn no_text_breaks_the_parser(text in "[0-9, a+-]{0,12}") {
            if let Ok(list) = text.parse::<RankList>() {
                prop_assert!(!list.0.is_empty());
            }
        }
    }
}
