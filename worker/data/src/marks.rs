//! Files that a check reports although they can be used.

use std::collections::BTreeSet;
use std::fmt;

use super::stored::Stored;

use super::color_table::Strangers;

/// Most files that are named; further ones are only counted.
const NAMED: usize = 5;

/// The files of a set to report, by reason.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    /// Images, masks and maps with an EXIF orientation other than the stored one.
    pub turned: Marked,
    /// Maps whose compression changed their values.
    pub lossy_maps: Marked,
    /// Colours of masks that have no class.
    pub strangers: Strangers,
    /// Maps that state a value without data, which is not set.
    pub with_nodata: Marked,
}

impl Marks {
    pub(super) fn merge(&mut self, other: Self) {
        self.turned.merge(other.turned);
        self.lossy_maps.merge(other.lossy_maps);
        self.strangers.merge(other.strangers);
        self.with_nodata.merge(other.with_nodata);
    }
}

/// Files with something in common: their number, and the first ones by path.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marked {
    pub files: usize,
    named: BTreeSet<String>,
}

impl Marked {
    pub(super) fn add(&mut self, file: &Stored) {
        self.files += 1;
        self.name(file.to_string());
    }

    fn merge(&mut self, other: Self) {
        self.files += other.files;
        other.named.into_iter().for_each(|name| self.name(name));
    }

    fn name(&mut self, name: String) {
        self.named.insert(name);
        if self.named.len() > NAMED {
            self.named.pop_last();
        }
    }
}

/// Writes "a/1.jpg, a/2.jpg and 7 more".
impl fmt::Display for Marked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.named.iter().map(String::as_str).collect();
        f.write_str(&names.join(", "))?;
        match self.files.saturating_sub(names.len()) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_first_files_by_path_are_named_in_any_order_of_threads() {
        let marked = |numbers: &[usize]| {
            let mut marked = Marked::default();
            numbers.iter().for_each(|number| marked.add(&Path::new(&format!("{number}.jpg")).into()));
            marked
        };
        let mut one = marked(&[7, 1, 9]);
        one.merge(marked(&[2, 8, 3, 4]));
        assert_eq!(one, marked(&[1, 2, 3, 4, 7, 8, 9]));
        assert_eq!(one.to_string(), "1.jpg, 2.jpg, 3.jpg, 4.jpg, 7.jpg and 2 more");
        assert_eq!(marked(&[5]).to_string(), "5.jpg");
    }
}
