//! Names of images and of their masks that differ: what both have in common, as a pattern of `data.pair`.

use std::collections::{BTreeMap, BTreeSet};

use super::tree::stem;

/// What stands around the common part of names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Around {
    before: String,
    after: String,
}

impl Around {
    /// Returns what all of at least two names have at their beginning and end, without digits that belong to numbers.
    fn of(stems: &[&str]) -> Option<Self> {
        let [first, rest @ ..] = stems else { return None };
        if rest.is_empty() {
            return None;
        }
        let common =
            |count: fn(&str, &str) -> usize| rest.iter().map(|name| count(first, name)).min().unwrap_or(0);
        let before = common(|a, b| {
            a.chars().zip(b.chars()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
        });
        let after = common(|a, b| {
            a.chars().rev().zip(b.chars().rev()).take_while(|(a, b)| a == b).map(|(a, _)| a.len_utf8()).sum()
        });
        let shortest = stems.iter().map(|name| name.len()).min().unwrap_or(0);
        let before = first[..before].trim_end_matches(|c: char| c.is_ascii_digit());
        let after = first[first.len() - after..].trim_start_matches(|c: char| c.is_ascii_digit());
        (before.len() + after.len() < shortest)
            .then(|| Self { before: before.to_owned(), after: after.to_owned() })
    }

    fn id<'a>(&self, name: &'a str) -> Option<&'a str> {
        name.strip_prefix(self.before.as_str())?.strip_suffix(self.after.as_str())
    }

    fn pattern(&self) -> String {
        format!("{}{{id}}{}", self.before, self.after)
    }

    /// Returns what fits this and other names: `*` stands for where they differ.
    fn and(&self, other: &Self) -> Option<Self> {
        if self == other {
            return Some(self.clone());
        }
        (self.before == other.before).then(|| {
            let same = self.after.chars().zip(other.after.chars()).take_while(|(a, b)| a == b);
            let same: String = same.map(|(letter, _)| letter).collect();
            let same = same.trim_end_matches(char::is_alphanumeric);
            Self { before: self.before.clone(), after: format!("{same}*") }
        })
    }
}

/// Returns whether images and masks have equal names, and the pattern of each set if they have not; None if the names do not belong together.
pub(crate) fn between(images: &[String], masks: &[String]) -> Option<Named> {
    let [image_stems, mask_stems] =
        [images, masks].map(|names| names.iter().map(|name| stem(name)).collect::<Vec<_>>());
    let set = |stems: &[&str]| stems.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
    if set(&image_stems) == set(&mask_stems) {
        return Some(Named::Equally);
    }
    let around = [Around::of(&image_stems)?, Around::of(&mask_stems)?];
    let ids = |stems: &[&str], around: &Around| {
        stems.iter().map(|name| around.id(name).map(str::to_owned)).collect::<Option<BTreeSet<_>>>()
    };
    let is_pair = ids(&image_stems, &around[0])? == ids(&mask_stems, &around[1])?;
    is_pair.then_some(Named::By(Pattern { around }))
}

/// How the names of images and masks belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Named {
    Equally,
    By(Pattern),
}

/// The names of images and of masks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern {
    around: [Around; 2],
}

impl Pattern {
    /// Returns `data.pair` for all sets; None if no pattern fits all.
    pub(crate) fn of_all(patterns: &[&Self]) -> Option<String> {
        let [first, rest @ ..] = patterns else { return None };
        let joined = [0, 1].map(|side| {
            rest.iter().try_fold(first.around[side].clone(), |all, one| all.and(&one.around[side]))
        });
        let [Some(images), Some(masks)] = joined else { return None };
        Some(format!("{} -> {}", images.pattern(), masks.pattern()))
    }
}

/// Returns the patterns for a folder that holds images and their masks: for each ending of masks, such as `_mask`, the pattern.
pub(crate) fn within(names: &[String]) -> Vec<(String, String)> {
    let by_stem: BTreeMap<&str, &String> = names.iter().map(|name| (stem(name), name)).collect();
    let mut endings: BTreeMap<&str, Vec<(&String, &String)>> = BTreeMap::new();
    for (&of_mask, &mask) in &by_stem {
        // The longest beginning that is the name of an image.
        let cuts = of_mask.char_indices().filter(|(_, letter)| !letter.is_alphanumeric()).map(|(at, _)| at);
        let image = cuts.rev().find_map(|at| Some((at, by_stem.get(&of_mask[..at])?)));
        if let Some((at, &image)) = image {
            endings.entry(&of_mask[at..]).or_default().push((image, mask));
        }
    }
    let masks: usize = endings.values().map(Vec::len).sum();
    let images = by_stem.len() - masks;
    let several = endings.len() > 1;
    let of = |(ending, pairs): (&&str, &Vec<(&String, &String)>)| {
        if pairs.len() != images || images == 0 {
            return None;
        }
        let endings = |of: for<'a> fn(&(&'a String, &'a String)) -> &'a str| {
            pairs.iter().map(of).collect::<BTreeSet<_>>()
        };
        let image_endings = endings(|(image, _)| image.rsplit('.').next().unwrap_or_default());
        let mask_endings = endings(|(_, mask)| mask.rsplit('.').next().unwrap_or_default());
        let pattern = match (image_endings.first(), mask_endings.first()) {
            // Masks of another grader are no images.
            (Some(image), Some(mask))
                if several && image_endings.len() == 1 && mask_endings.len() == 1 && image != mask =>
            {
                format!("{{id}}.{image} -> {{id}}{ending}.{mask}")
            }
            _ if several => return None,
            _ => format!("{{id}} -> {{id}}{ending}"),
        };
        Some(((*ending).to_owned(), pattern))
    };
    endings.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(all: &[&str]) -> Vec<String> {
        all.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn equal_names_need_no_pattern() {
        assert_eq!(between(&names(&["a.jpg", "b.jpg"]), &names(&["a.png", "b.png"])), Some(Named::Equally));
        assert_eq!(between(&names(&["a.jpg", "b.jpg"]), &names(&["c.png", "d.png"])), None);
        assert_eq!(between(&names(&["a.jpg"]), &names(&["b.png"])), None);
    }

    #[test]
    fn the_names_of_drive_have_one_pattern_for_both_sets() {
        let of = |images: &[&str], masks: &[&str]| match between(&names(images), &names(masks)).unwrap() {
            Named::By(pattern) => pattern,
            Named::Equally => panic!("other names"),
        };
        let train = of(&["21_training.tif", "22_training.tif"], &["21_manual1.gif", "22_manual1.gif"]);
        let test = of(&["01_test.tif", "02_test.tif"], &["01_manual1.gif", "02_manual1.gif"]);
        assert_eq!(Pattern::of_all(&[&train]).unwrap(), "{id}_training -> {id}_manual1");
        assert_eq!(Pattern::of_all(&[&train, &test]).unwrap(), "{id}_* -> {id}_manual1");
        let numbered = of(&["image_001.png", "image_002.png"], &["mask_001.png", "mask_002.png"]);
        assert_eq!(Pattern::of_all(&[&numbered]).unwrap(), "image_{id} -> mask_{id}");
    }

    #[test]
    fn images_and_masks_of_one_folder_are_told_apart() {
        let one = names(&["a.png", "a_mask.png", "b.png", "b_mask.png"]);
        assert_eq!(within(&one), [("_mask".to_owned(), "{id} -> {id}_mask".to_owned())]);
        let two = names(&[
            "I_1L.jpg",
            "I_1L_1stHO.png",
            "I_1L_2ndHO.png",
            "I_2L.jpg",
            "I_2L_1stHO.png",
            "I_2L_2ndHO.png",
        ]);
        let patterns: Vec<_> = within(&two).into_iter().map(|(_, pattern)| pattern).collect();
        assert_eq!(patterns, ["{id}.jpg -> {id}_1stHO.png", "{id}.jpg -> {id}_2ndHO.png"]);
        assert!(within(&names(&["a.png", "b.png", "c.png"])).is_empty());
        assert!(within(&names(&["a.png", "a_mask.png", "b.png"])).is_empty(), "an image without a mask");
    }
}
