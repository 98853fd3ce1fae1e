//! Names of folders, files and words in tables that tell training, test and validation samples, and images and masks, apart.

use dtrain_common::look::Layout;

/// The part of the training samples that becomes the test samples in data without them.
const TEST_OF_TRAIN: &str = "train:0.2";

/// The purpose of a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Role {
    Train,
    Test,
    Val,
}

/// Returns what a set of this name is for.
pub(crate) fn role(name: &str) -> Option<Role> {
    let name = name.to_ascii_lowercase();
    let begins = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    if begins(&["train"]) {
        Some(Role::Train)
    } else if begins(&["test", "eval"]) {
        Some(Role::Test)
    } else if begins(&["val"]) || name == "dev" {
        Some(Role::Val)
    } else {
        None
    }
}

/// Returns the role that the first known part of the path names.
pub(crate) fn role_of_path(path: &str) -> Option<Role> {
    path.split('/').find_map(role)
}

/// Returns whether a folder of this name holds masks, maps or other targets of pixels.
pub(crate) fn is_of_targets(name: &str) -> bool {
    const WORDS: [&str; 10] =
        ["mask", "label", "annot", "segm", "manual", "truth", "target", "depth", "height", "matte"];
    const PARTS: [&str; 10] = ["gt", "lab", "y", "seg", "map", "maps", "dem", "dsm", "disp", "anno"];
    let name = name.to_ascii_lowercase();
    let is_part = |word: &str| name.split(|c: char| !c.is_ascii_alphanumeric()).any(|part| part == word);
    WORDS.iter().any(|word| name.contains(word)) || PARTS.iter().any(|word| is_part(word))
}

/// The names of sets by what they are for; of several the first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sets {
    pub(crate) train: Option<String>,
    pub(crate) test: Option<String>,
    pub(crate) val: Option<String>,
}

impl Sets {
    pub(crate) fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut found = Self::default();
        for name in names {
            let place = match role(name) {
                Some(Role::Train) => &mut found.train,
                Some(Role::Test) => &mut found.test,
                Some(Role::Val) => &mut found.val,
                None => continue,
            };
            place.get_or_insert_with(|| name.to_owned());
        }
        found
    }

    /// Adds the names of the sets to a layout. Without a test set, the validation set is the test set; without both, a part of the
    /// training samples is.
    pub(crate) fn add(&self, layout: &mut Layout, what: &str) {
        let train = self.train.as_deref().unwrap_or("train");
        layout.add("train", train, what);
        match (self.test.as_deref(), self.val.as_deref()) {
            (Some(test), val) => {
                layout.add("test", test, "");
                if let Some(val) = val {
                    layout.add("val", val, "evaluated during training; the test set only at its end");
                }
            }
            (None, Some(val)) => layout.add("test", val, "there is no other test set"),
            (None, None) => {
                layout.add("test", TEST_OF_TRAIN, "no test set: a fifth of the training samples, by name");
            }
        }
    }

    /// Returns the sets in words, such as "train and test".
    pub(crate) fn words(&self) -> String {
        let names = [&self.train, &self.val, &self.test].into_iter().flatten().map(String::as_str);
        match names.collect::<Vec<_>>().as_slice() {
            [] => String::new(),
            [only] => (*only).to_owned(),
            [all @ .., last] => format!("{} and {last}", all.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_sets_and_targets() {
        for (name, expected) in [
            ("train", Some(Role::Train)),
            ("Training", Some(Role::Train)),
            ("trainannot", Some(Role::Train)),
            ("test2017", Some(Role::Test)),
            ("valid", Some(Role::Val)),
            ("dev", Some(Role::Val)),
            ("images", None),
            ("develop", None),
        ] {
            assert_eq!(role(name), expected, "{name}");
        }
        assert_eq!(role_of_path("images/train/x"), Some(Role::Train));
        for name in ["train_masks", "trainannot", "1st_manual", "gt", "lab", "GT_Object", "SegmentationClass"]
        {
            assert!(is_of_targets(name), "{name}");
        }
        for name in ["images", "img", "train", "JPEGImages", "photos", "demo"] {
            assert!(!is_of_targets(name), "{name}");
        }
    }

    #[test]
    fn a_missing_test_set_is_a_part_of_the_training_samples() {
        let add = |names: &[&str]| {
            let mut layout = Layout::new("a", "b");
            Sets::of(names.iter().copied()).add(&mut layout, "");
            ["train", "test", "val"].map(|key| layout.value(key).unwrap_or_default().to_owned())
        };
        assert_eq!(add(&["test", "train", "val"]), ["\"train\"", "\"test\"", "\"val\""]);
        assert_eq!(add(&["Train", "valid"]), ["\"Train\"", "\"valid\"", ""]);
        assert_eq!(add(&["train"]), ["\"train\"", "\"train:0.2\"", ""]);
    }
}
