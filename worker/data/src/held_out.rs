//! Validation samples that are a part of the training or test samples.

use super::dataset::LABEL;
use super::error::DataError;
use super::ignored::Ignored;
use super::origin::SourcePart;
use super::samples::{ListValues, Samples};

impl Samples {
    /// Divides training samples into those that remain and the validation samples: about `part` of them, above 0 and below 1.
    ///
    /// The path of a sample's first image below the folder of its source's set decides, and nothing else. So a sample stays where
    /// it is when others are added, also by another source, and in every run. Lines of a table with the same image stay together.
    ///
    /// # Errors
    /// Samples without images, a class that one of the two would lack, and a source without training samples.
    pub fn hold_out(&self, part: f64) -> Result<[Self; 2], DataError> {
        let held_out = self.source_paths()?.map(|(_, name)| number_of(&name) < part).collect::<Vec<_>>();
        let divided = self.divided(part, "training", &held_out)?;
        self.check_sources(part, &divided[0])?;
        Ok(divided)
    }

    /// Divides training samples into those that remain and the test samples: about `part` of them, at least one; above 0 and below 1.
    ///
    /// As [`Samples::hold_out`], by the other end of the numbers: both parts can be held out of the same samples. At least one sample of
    /// each class stays.
    ///
    /// # Errors
    /// Samples without images, and fewer than two samples.
    pub fn hold_out_test(&self, part: f64) -> Result<[Self; 2], DataError> {
        let numbers = self.source_paths()?.map(|(_, name)| number_of(&name)).collect::<Vec<_>>();
        let largest = numbers.iter().copied().fold(0.0, f64::max);
        let from = (1.0 - part).min(largest);
        let mut held_out: Vec<bool> = numbers.iter().map(|number| *number >= from).collect();
        if let Some(ListValues::Classes { names, numbers: classes }) = self.label_values() {
            // The sample of each class with the smallest number stays.
            let mut first = vec![None::<usize>; names.len()];
            for (at, class) in classes.iter().enumerate() {
                let first = &mut first[*class as usize];
                if first.is_none_or(|first| numbers[at] < numbers[first]) {
                    *first = Some(at);
                }
            }
            first.into_iter().flatten().for_each(|at| held_out[at] = false);
        }
        let remaining = self.kept(&|at| !held_out[at])?;
        let (set, ignored) = (format!("{} (data.test)", self.set), Ignored::default());
        let test = Self { set, ignored, ..self.kept(&|at| held_out[at])? };
        if test.count() == 0 || remaining.count() == 0 {
            return Err(DataError::NoTestPart { place: self.place(&self.set), part, samples: self.count() });
        }
        Ok([remaining, test])
    }

    /// Divides test samples into those that remain and the validation samples: of each source the first `part` in the order of their
    /// names, rounded down; above 0 and below 1.
    ///
    /// The name is the path of a sample's first image below the folder of its source's set. Lines of a table with the same image stay
    /// together.
    ///
    /// # Errors
    /// Samples without images, and a class that one of the two would lack.
    pub fn hold_out_first(&self, part: f64) -> Result<[Self; 2], DataError> {
        let mut of_source = vec![Vec::new(); self.sources.len().max(1)];
        self.source_paths()?.for_each(|(source, name)| of_source[source].push(name));
        let last = |mut names: Vec<String>| {
            names.sort_unstable();
            // 0.29 x 100 is below 29.
            let count = (names.len() as f64 * part + 1e-9) as usize;
            count.checked_sub(1).map(|last| names.swap_remove(last))
        };
        let last: Vec<Option<String>> = of_source.into_iter().map(last).collect();
        let is_first =
            |(source, name): (usize, String)| last[source].as_ref().is_some_and(|last| name <= *last);
        let held_out = self.source_paths()?.map(is_first).collect::<Vec<_>>();
        self.divided(part, "test", &held_out)
    }

    /// Returns the number of each sample's source, and the path of its first image below the folder of that source's set.
    fn source_paths(&self) -> Result<impl Iterator<Item = (usize, String)>, DataError> {
        let files = self.images().next().ok_or_else(|| DataError::NoPathToDivide(self.place(&self.set)))?;
        let sources = self.sources.iter().enumerate();
        let parts =
            sources.flat_map(|(number, part)| std::iter::repeat_n((number, part.folder()), part.samples));
        let alone = std::iter::repeat_n((0, ""), if self.sources.is_empty() { self.count() } else { 0 });
        Ok(parts.chain(alone).enumerate().map(|(at, (source, folder))| {
            let path = files.paths.get(at);
            // Paths of joined samples begin with the folder of their source's set.
            let below = path.strip_prefix(folder).and_then(|path| path.strip_prefix('/'));
            (source, below.filter(|_| !folder.is_empty()).unwrap_or(&path).to_owned())
        }))
    }

    /// Divides samples into those of `rest`, and those that are held out.
    fn divided(&self, part: f64, rest: &'static str, held_out: &[bool]) -> Result<[Self; 2], DataError> {
        let remaining = self.kept(&|at| !held_out[at])?;
        let (set, ignored) = (format!("{} (data.val)", self.set), Ignored::default());
        let val = Self { set, ignored, ..self.kept(&|at| held_out[at])? };
        self.check_divided(part, "validation", &val)?;
        self.check_divided(part, rest, &remaining)?;
        Ok([remaining, val])
    }

    /// Checks that a part of the samples has all their classes.
    fn check_divided(&self, part: f64, set: &'static str, divided: &Self) -> Result<(), DataError> {
        let (names, all) = self.label_counts();
        let (_, has) = divided.label_counts();
        let lacks = (0..names.len()).filter(|&class| has[class] == 0 && all[class] > 0);
        let missing: Vec<_> = lacks.map(|class| (names[class].clone(), all[class])).collect();
        if missing.is_empty() && divided.count() > 0 {
            return Ok(());
        }
        let (place, samples) = (self.place(&self.set), self.count());
        Err(DataError::Undivided { place, part, set, missing, samples })
    }

    /// Returns the field `label`.
    fn label_values(&self) -> Option<&ListValues> {
        self.lists.iter().find(|list| list.field == LABEL).map(|list| &list.values)
    }

    /// Returns the names of the classes of the field `label`, and how many samples have each.
    fn label_counts(&self) -> (&[String], Vec<usize>) {
        let Some(label) = self.label_values() else { return (&[], Vec::new()) };
        let counts = |names: &[String], found: &mut dyn Iterator<Item = u32>| {
            let mut counts = vec![0; names.len()];
            found.for_each(|class| counts[class as usize] += 1);
            counts
        };
        match label {
            ListValues::Classes { names, numbers } => (names, counts(names, &mut numbers.iter().copied())),
            ListValues::ClassSets { names, sets } => {
                let mut found = (0..self.count()).flat_map(|sample| sets.of(sample).iter().copied());
                (names, counts(names, &mut found))
            }
            _ => (&[], Vec::new()),
        }
    }

    /// Checks that all sources have training samples.
    fn check_sources(&self, part: f64, rest: &Self) -> Result<(), DataError> {
        let emptied = |(all, rest): &(&SourcePart, &SourcePart)| all.samples > 0 && rest.samples == 0;
        match self.sources.iter().zip(&rest.sources).find(emptied) {
            None => Ok(()),
            Some((all, _)) => Err(DataError::Undivided {
                place: all.place(),
                part,
                set: "training",
                missing: Vec::new(),
                samples: all.samples,
            }),
        }
    }
}

/// Returns a number of at least 0 and below 1 that the path alone decides.
fn number_of(path: &str) -> f64 {
    let mut first = [0; 8];
    first.copy_from_slice(&blake3::hash(path.as_bytes()).as_bytes()[..8]);
    // The upper 53 bits, as many as a number holds.
    (u64::from_le_bytes(first) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashSet;
    use std::fs;
    use std::path::Path;

    use proptest::prelude::*;

    use super::super::paths::Listing;
    use super::super::samples::{Files, List};
    use super::super::sources::classes;
    use super::*;

    fn samples(root: &Path, classes: &[&str], each: usize) -> Samples {
        for class in classes {
            let folder = root.join("train").join(class);
            fs::create_dir_all(&folder).unwrap();
            (0..each).for_each(|at| fs::write(folder.join(format!("{at}.png")), "").unwrap());
        }
        classes::scan(root, "train", None).unwrap()
    }

    fn paths(samples: &Samples) -> HashSet<String> {
        (0..samples.count()).map(|at| samples.describe(at)).collect()
    }

    #[test]
    fn samples_stay_where_they_are_when_others_are_added() {
        let folder = tempfile::tempdir().unwrap();
        let [train, val] = samples(folder.path(), &["a", "b"], 60).hold_out(0.3).unwrap();
        assert_eq!(train.count() + val.count(), 120);
        assert!((20..55).contains(&val.count()), "{}", val.count());
        let [more, more_val] = samples(folder.path(), &["a", "b", "c"], 90).hold_out(0.3).unwrap();
        assert!(paths(&train).is_subset(&paths(&more)) && paths(&val).is_subset(&paths(&more_val)));
        // A larger part has the samples of a smaller one.
        let [_, larger] = samples(folder.path(), &["a", "b", "c"], 90).hold_out(0.5).unwrap();
        assert!(paths(&more_val).is_subset(&paths(&larger)));
    }

    #[test]
    fn test_and_validation_samples_are_held_out_of_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let all = samples(folder.path(), &["a", "b"], 60);
        let [rest, test] = all.hold_out_test(0.3).unwrap();
        assert!((20..55).contains(&test.count()), "{}", test.count());
        let [train, val] = rest.hold_out(0.3).unwrap();
        assert_eq!(train.count() + val.count() + test.count(), 120);
        assert!(val.count() > 20, "{}", val.count());
        let [_, again] = samples(folder.path(), &["a", "b", "c"], 90).hold_out_test(0.3).unwrap();
        assert!(paths(&test).is_subset(&paths(&again)));
    }

    #[test]
    fn a_small_set_has_a_test_sample_and_all_classes_stay() {
        let folder = tempfile::tempdir().unwrap();
        let all = samples(folder.path(), &["a", "b", "c"], 2);
        let [train, test] = all.hold_out_test(1e-9).unwrap();
        assert_eq!((train.count(), test.count()), (5, 1));
        let [train, _] = all.hold_out_test(0.9).unwrap();
        let classes: HashSet<_> =
            paths(&train).iter().map(|path| path.rsplit('/').nth(1).unwrap().to_owned()).collect();
        assert_eq!(classes.len(), 3);
    }

    #[test]
    fn samples_stay_where_they_are_when_a_source_is_added() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let alone = || samples(folders[0].path(), &["a", "b"], 60);
        let [train, val] = alone().hold_out(0.3).unwrap();
        let other = samples(folders[1].path(), &["a"], 20);
        let both = Samples::join(vec![(alone(), None), (other, None)]).unwrap();
        let [more, more_val] = both.hold_out(0.3).unwrap();
        assert_eq!(more.count() + more_val.count(), 140);
        assert!(paths(&train).is_subset(&paths(&more)) && paths(&val).is_subset(&paths(&more_val)));
    }

    #[test]
    fn a_source_that_the_part_empties_is_named() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let small = samples(folders[1].path(), &["a"], 1);
        let part = number_of("a/0.png") + 1e-6;
        let both = vec![(samples(folders[0].path(), &["a", "b"], 60), None), (small, None)];
        let error = Samples::join(both).unwrap().hold_out(part).unwrap_err().to_string();
        assert!(error.contains("of the 1 sample in") && error.contains("lower data.val"), "{error}");
        assert!(error.contains(&folders[1].path().display().to_string()), "{error}");
    }

    #[test]
    fn the_first_test_samples_by_name_are_held_out() {
        let folder = tempfile::tempdir().unwrap();
        let listed = samples(folder.path(), &["a"], 1);
        let images = |names: &[&str]| {
            let mut listing = Listing::default();
            listing.enter("a");
            names.iter().for_each(|name| listing.add(name));
            let files = Files::new("train", listing.pack().unwrap());
            let lists = vec![List::new("image", ListValues::Images(vec![files]))];
            Samples { lists, ..listed.clone() }
        };
        let named = |samples: &Samples| -> Vec<String> {
            let name = |at| samples.image_path(at).file_name().unwrap().to_string_lossy().into_owned();
            (0..samples.count()).map(name).collect()
        };
        let all = images(&["e", "c", "a", "d", "b"]);
        let [test, val] = all.hold_out_first(0.4).unwrap();
        assert_eq!(named(&test), ["e", "c", "d"]);
        assert_eq!(named(&val), ["a", "b"]);
        // Rounded down; lines with the same image stay together.
        assert_eq!(all.hold_out_first(0.39).unwrap()[1].count(), 1);
        assert_eq!(images(&["b", "a", "a", "a", "c"]).hold_out_first(0.3).unwrap()[1].count(), 3);
        let error = all.hold_out_first(0.1).unwrap_err().to_string();
        assert!(error.contains("no validation samples") && error.contains("raise data.val"), "{error}");
        let error = images(&["a", "a"]).hold_out_first(0.9).unwrap_err().to_string();
        assert!(error.contains("no test samples") && error.contains("lower data.val"), "{error}");
        // Of each source the first.
        let both = Samples::join(vec![(all, None), (images(&["z", "y"]), None)]).unwrap();
        assert_eq!(named(&both.hold_out_first(0.5).unwrap()[1]), ["a", "b", "y"]);
    }

    #[test]
    fn class_folders_have_no_first_part() {
        let folder = tempfile::tempdir().unwrap();
        let error = samples(folder.path(), &["a", "b"], 60).hold_out_first(0.2).unwrap_err().to_string();
        assert!(error.contains("no validation samples of the class \"b\" (60 samples)"), "{error}");
        assert!(error.contains("name a folder or set"), "{error}");
    }

    #[test]
    fn a_class_of_one_sample_needs_more_of_them() {
        let folder = tempfile::tempdir().unwrap();
        samples(folder.path(), &["a"], 60);
        let error = samples(folder.path(), &["b"], 1).hold_out(0.3).unwrap_err().to_string();
        assert!(error.contains("\"b\" (1 sample)") && error.contains("add samples of it"), "{error}");
    }

    #[test]
    fn a_class_that_a_part_lacks_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let all = samples(folder.path(), &["a", "b"], 60);
        let error = all.hold_out(1e-9).unwrap_err().to_string();
        assert!(error.contains("\"a\" (60 samples)") && error.contains("raise data.val"), "{error}");
        let error = all.hold_out(1.0 - 1e-9).unwrap_err().to_string();
        assert!(error.contains("no training samples") && error.contains("lower data.val"), "{error}");
    }

    proptest! {
        #[test]
        fn numbers_of_paths_are_spread_evenly(start in 0u32..1_000_000) {
            let below = (start..start + 1000).filter(|at| number_of(&format!("class/{at}.jpg")) < 0.2).count();
            prop_assert!((120..280).contains(&below), "{below}");
        }
    }

    /// Samples of earlier runs stay where they are.
    #[test]
    fn the_number_of_a_path_never_changes() {
        // Python: int.from_bytes(blake3(b"cat/1.jpg").digest()[:8], "little") / 2**64
        assert_eq!(format!("{:.12}", number_of("cat/1.jpg")), "0.830872706200");
    }
}
