#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use dtrain_data::{CheckReport, Depth, Needs, Samples, check_in_detail, sources::classes};
use dtrain_recipe::{Orientation, Resize};
use image::{Rgb, RgbImage};
use proptest::prelude::*;

use super::*;

/// Writes an image of 48 x 48 pixels, whose file is longer than the beginning that a check compares. Only its last pixel differs.
fn write(path: &Path, content: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let image = RgbImage::from_fn(48, 48, |x, y| Rgb([if (x, y) == (47, 0) { content } else { 9 }; 3]));
    image.save(path).unwrap();
    assert!(fs::metadata(path).unwrap().len() > 6000);
}

fn checked(root: &Path, set: &str) -> (Samples, CheckReport) {
    let samples = classes::scan(root, set, None).unwrap();
    let needs = Needs {
        channels: 3,
        resize: Resize::Crop,
        orientation: Orientation::Stored,
        nodata: None,
        fill: None,
    };
    let report = check_in_detail(&samples, needs, Depth::Header, 2, &mut |_, _| ());
    (samples, report)
}

fn find(sets: &[(Samples, CheckReport)], threads: usize) -> Duplicates {
    let sets: Vec<_> = sets.iter().map(|(samples, report)| (samples, report)).collect();
    Duplicates::find(&sets, threads, &mut |_, _| ())
}

#[test]
fn only_whole_files_are_equal() {
    let root = tempfile::tempdir().unwrap();
    let put = |name: &str, content| write(&root.path().join(name), content);
    put("train/cat/1.bmp", 1);
    put("train/cat/2.bmp", 2);
    put("train/dog/3.bmp", 3);
    put("train/dog/4.bmp", 1);
    put("test/cat/1.bmp", 3);
    put("test/dog/5.bmp", 5);
    let sets = [checked(root.path(), "train"), checked(root.path(), "test")];
    assert_eq!(
        sets[0].1.tally.beginnings.iter().map(|(key, _)| key).collect::<std::collections::HashSet<_>>().len(),
        1
    );
    let found = find(&sets, 3);
    let pair = |copy: &str, original: &str| vec![(copy.to_owned(), original.to_owned())];
    assert_eq!(found.within.len(), 1);
    assert_eq!(found.within[0].first, pair("train/dog/4.bmp", "train/cat/1.bmp"));
    assert_eq!(found.across.len(), 1);
    assert_eq!(found.across[0].first, pair("test/cat/1.bmp", "train/dog/3.bmp"));
    assert_eq!(found.conflicts.samples, 2);
    let [(_, class), (_, other)] = &found.conflicts.first[0];
    assert_eq!((class.as_str(), other.as_str()), ("dog", "cat"));
    fs::remove_file(root.path().join("train/dog/4.bmp")).unwrap();
    assert!(find(&sets, 1).within.is_empty(), "a file that is gone has no content");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    /// As counted by comparing all files.
    #[test]
    fn all_copies_are_found(sets in prop::collection::vec(prop::collection::vec(0u8..6, 1..7), 1..4), threads in 1usize..4) {
        let root = tempfile::tempdir().unwrap();
        for (set, contents) in sets.iter().enumerate() {
            for (number, content) in contents.iter().enumerate() {
                write(&root.path().join(format!("{set}/class/{number}.bmp")), *content);
            }
        }
        let checks: Vec<_> = (0..sets.len()).map(|set| checked(root.path(), &set.to_string())).collect();
        let found = find(&checks, threads);
        let total = |all: &[Repeated]| all.iter().map(|one| one.samples).sum::<usize>();
        let (mut within, mut across) = (0, 0);
        let mut first_of: HashMap<u8, Vec<usize>> = HashMap::new();
        for (set, contents) in sets.iter().enumerate() {
            for content in contents {
                let before = first_of.entry(*content).or_default();
                across += usize::from(before.iter().any(|other| *other != set));
                within += usize::from(before.contains(&set));
                before.push(set);
            }
        }
        prop_assert_eq!((total(&found.within), total(&found.across)), (within, across));
        prop_assert_eq!(found.conflicts.samples, 0);
    }
}
