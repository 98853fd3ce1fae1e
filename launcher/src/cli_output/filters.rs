//! `--duplicate-stdout-filters` and `--duplicate-stderr-filters`.

use std::fmt;
use std::str::FromStr;

/// Texts of which a line has to contain one: `apple,orange`, with `,,` for a comma within a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FilterList(pub(crate) Vec<String>);

impl FromStr for FilterList {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut filters = vec![String::new()];
        let mut characters = text.chars().peekable();
        while let Some(character) = characters.next() {
            if character == ',' && characters.next_if_eq(&',').is_none() {
                filters.push(String::new());
            } else if let Some(filter) = filters.last_mut() {
                filter.push(character);
            }
        }
        if filters.iter().any(String::is_empty) {
            return Err(
                "a filter is empty and would take every line; write `,,` for a comma within a text".into(),
            );
        }
        if text.contains(['\n', '\r']) {
            return Err("a filter is searched for within a line and cannot contain the end of one".into());
        }
        Ok(Self(filters))
    }
}

impl fmt::Display for FilterList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<_> = self.0.iter().map(|filter| filter.replace(',', ",,")).collect();
        f.write_str(&words.join(","))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_commas_are_one_within_a_text() {
        let parse = |text: &str| text.parse::<FilterList>().unwrap().0;
        assert_eq!(parse("loss"), ["loss"]);
        assert_eq!(parse("apple,an orange"), ["apple", "an orange"]);
        assert_eq!(parse("a,,b,c"), ["a,b", "c"]);
        assert_eq!(parse("a,,,b"), ["a,", "b"]);
        assert_eq!(parse(",,"), [","]);
    }

    #[test]
    fn an_empty_filter_is_refused() {
        for wrong in ["", ",", "a,", ",a", "a, ,,,", "a\nb"] {
            assert!(wrong.parse::<FilterList>().is_err(), "{wrong:?}");
        }
    }

    proptest! {
        // A text that begins with a comma can only stand first: in `a,,,b` the first two are taken for one comma.
        #[test]
        fn filters_come_back_from_their_text(first in "[a,é ]{1,5}", others in prop::collection::vec("[aé ][a,é ]{0,4}", 0..4)) {
            let list = FilterList([vec![first], others].concat());
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }
    }
}
