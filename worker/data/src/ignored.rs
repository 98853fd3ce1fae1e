//! Unused files among the images: by their names, or in no class.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

/// File name endings of images, in any case. The content decides the format.
pub const EXTENSIONS: [&str; 18] = [
    "png", "jpg", "jpeg", "jpe", "jfif", "bmp", "tif", "tiff", "webp", "ppm", "pgm", "pbm", "pnm", "jp2",
    "j2k", "jpf", "npy", "npz",
];

/// Returns whether a file of this name is taken for an image.
pub(super) fn is_image(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| EXTENSIONS.iter().any(|known| ending.eq_ignore_ascii_case(known)))
}

/// Returns whether a file of this name is taken for a mask or a map: GIF files are masks, but no pictures.
pub(super) fn is_mask(name: &str) -> bool {
    let ending = Path::new(name).extension().and_then(|ending| ending.to_str());
    is_image(name) || ending.is_some_and(|ending| ending.eq_ignore_ascii_case("gif"))
}

/// Most endings that a message lists; further ones are only counted.
const LISTED: usize = 5;

/// Number of unused files, by the endings of their names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ignored {
    by_ending: BTreeMap<String, usize>,
    /// Further facts about unused files.
    notes: Vec<String>,
}

impl Ignored {
    pub(super) fn count(&mut self, name: &str) {
        let ending = Path::new(name).extension().map(|it| it.to_string_lossy());
        let ending = ending.map_or_else(String::new, |ending| ending.to_ascii_lowercase());
        *self.by_ending.entry(ending).or_default() += 1;
    }

    pub(super) fn add(&mut self, other: &Self) {
        for (ending, files) in &other.by_ending {
            *self.by_ending.entry(ending.clone()).or_default() += files;
        }
        self.notes.extend(other.notes.iter().cloned());
    }

    pub(super) fn note(&mut self, note: String) {
        self.notes.push(note);
    }

    /// Returns what else is to be known of files that are not used, as sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.by_ending.values().sum()
    }
}

/// Writes "9 .gif, 2 .heic, 1 without ending", the most frequent first.
impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut endings: Vec<(&String, &usize)> = self.by_ending.iter().collect();
        endings.sort_by_key(|(_, files)| std::cmp::Reverse(**files));
        let words = |(ending, files): &(&String, &usize)| match ending.as_str() {
            "" => format!("{files} without ending"),
            ending => format!("{files} .{ending}"),
        };
        let shown: Vec<String> = endings.iter().take(LISTED).map(words).collect();
        f.write_str(&shown.join(", "))?;
        match endings.iter().skip(LISTED).map(|(_, files)| **files).sum() {
            0usize => Ok(()),
            rest => write!(f, " and {rest} others"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_are_listed_by_frequency() {
        let mut ignored = Ignored::default();
        for name in ["a.gif", "b.GIF", "c.heic", "d.txt", "README", "f.a", "g.b", "h.c"] {
            ignored.count(name);
        }
        assert_eq!(ignored.files(), 8);
        assert_eq!(ignored.to_string(), "2 .gif, 1 without ending, 1 .a, 1 .b, 1 .c and 2 others");
    }
}
