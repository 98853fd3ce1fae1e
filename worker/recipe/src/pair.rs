//! `data.pair`: which names of images and masks belong together.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The part of a name that an image and its mask share.
const ID: &str = "{id}";

/// The names of images and those of their masks or maps, such as `{id}_training -> {id}_manual1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pair {
    /// The names of images.
    pub images: NamePattern,
    /// The names of masks or maps.
    pub masks: NamePattern,
}

/// A pattern of names: text, `*` for any characters but `/`, and one `{id}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamePattern {
    text: String,
    /// The place of `{id}`.
    id: usize,
}

impl NamePattern {
    /// Returns the pattern as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the part of a path that stands for `{id}`; None if the path is of another form. A `*` takes as little as
    /// possible. Paths have `/` between names.
    pub fn id<'a>(&self, path: &'a str) -> Option<&'a str> {
        let (before, after) = (&self.text[..self.id], &self.text[self.id + ID.len()..]);
        let starts = (0..path.len()).filter(|&at| path.get(..at).is_some_and(|start| fits(before, start)));
        starts.into_iter().find_map(|start| {
            let mut ends = (start + 1..=path.len()).rev();
            let end = ends.find(|&at| path.get(at..).is_some_and(|end| fits(after, end)))?;
            path.get(start..end)
        })
    }

    /// Returns the pattern with `id` in its place.
    pub fn with_id(&self, id: &str) -> String {
        self.text.replacen(ID, id, 1)
    }
}

/// Returns whether a text is of the form of a pattern without `{id}`.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(first) else { return false };
    let within = text.find('/').unwrap_or(text.len());
    (0..=within).any(|at| text.get(at..).is_some_and(|text| fits(rest, text)))
}

impl FromStr for NamePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let id = match text.matches(ID).count() {
            1 => text.find(ID).unwrap_or_default(),
            0 => {
                return Err(format!(
                    "{text:?} has no {ID}, the part of the name that an image and its mask share"
                ));
            }
            _ => return Err(format!("{text:?} has {ID} several times; write it once")),
        };
        if text.replacen(ID, "", 1).contains(['{', '}', '\0']) {
            return Err(format!("{text:?} has other braces than those of {ID}; remove them"));
        }
        let is_name = |part: &str| !part.is_empty() && part != "." && part != "..";
        match text.split('/').all(is_name) {
            true => Ok(Self { text: text.to_owned(), id }),
            false => Err(format!(
                "{text:?} is no path below the folder of the files; remove a leading `/` and `..`"
            )),
        }
    }
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let sides: Vec<&str> = text.split("->").collect();
        let [images, masks] = sides[..] else {
            return Err(format!(
                "{text:?} is not \"IMAGES -> MASKS\"; write the names of images, `->` and those of masks, such as \
                 \"{ID}_training -> {ID}_manual1\""
            ));
        };
        Ok(Self { images: images.parse()?, masks: masks.parse()? })
    }
}

impl fmt::Display for Pair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} -> {}", self.images.text, self.masks.text)
    }
}

impl TryFrom<String> for Pair {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pair> for String {
    fn from(pair: Pair) -> Self {
        pair.to_string()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
        pattern.parse::<NamePattern>().unwrap().id(path)
    }

    #[test]
    fn a_name_has_an_id_if_it_is_of_the_form() {
        assert_eq!(id("{id}_training", "21_training"), Some("21"));
        assert_eq!(id("{id}_training", "21_test"), None);
        assert_eq!(id("{id}_*", "21_test"), Some("21"));
        assert_eq!(id("{id}_*", "a_b_c"), Some("a_b"), "`*` takes as little as possible");
        assert_eq!(id("*_{id}", "a_b_c"), Some("b_c"));
        assert_eq!(id("im*e-{id}-*", "image-7-left"), Some("7"));
        assert_eq!(id("{id}_leftImg8bit", "aachen/aachen_0_leftImg8bit"), Some("aachen/aachen_0"));
        assert_eq!(id("*/{id}/mask", "a/7/mask"), Some("7"));
        assert_eq!(id("*/{id}/mask", "a/b/7/mask"), Some("b/7"));
        assert_eq!(id("x{id}", "x"), None, "an id is not empty");
        assert_eq!(id("{id}é", "üé"), Some("ü"));
    }

    #[test]
    fn a_pair_is_two_patterns() {
        let pair: Pair = "{id}_training->{id}_manual1".parse().unwrap();
        assert_eq!(pair.to_string(), "{id}_training -> {id}_manual1");
        assert_eq!(pair.masks.with_id("21"), "21_manual1");
        for (text, part) in [
            ("{id}", "is not \"IMAGES -> MASKS\""),
            ("{id} -> a -> {id}", "is not \"IMAGES -> MASKS\""),
            ("a -> {id}", "\"a\" has no {id}"),
            ("{id}{id} -> {id}", "several times"),
            ("{id}{x} -> {id}", "other braces"),
            ("{id} -> ../{id}", "no path below"),
            ("{id} -> /m/{id}", "no path below"),
            ("", "is not"),
        ] {
            let error = text.parse::<Pair>().unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_a_pair_or_an_error(text: String, path: String) {
            let _ = text.parse::<Pair>();
            for pattern in ["*{id}*", "a*{id}", "{id}.*b*"] {
                let pattern: NamePattern = pattern.parse().unwrap();
                if let Some(id) = pattern.id(&path) {
                    prop_assert!(!id.is_empty() && path.contains(id));
                }
            }
        }

        #[test]
        fn an_id_is_found_in_the_name_that_is_made_of_it(id in "[a-z0-9é_/]{1,9}") {
            for text in ["{id}", "x_{id}", "{id}_manual1", "x/{id}.y"] {
                let pattern: NamePattern = text.parse().unwrap();
                let name = pattern.with_id(&id);
                prop_assert_eq!(pattern.id(&name), Some(id.as_str()));
            }
        }
    }
}
