#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn listing(paths: &[String]) -> Listing {
    let mut listing = Listing::default();
    for path in paths {
        let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
        listing.enter(folder);
        listing.add(name);
    }
    listing
}

fn all(paths: &Paths) -> Vec<String> {
    (0..paths.len()).map(|at| paths.get(at)).collect()
}

#[test]
fn a_path_takes_its_name_and_twelve_bytes() {
    let mut listing = Listing::default();
    for class in 0..10 {
        listing.enter(&format!("class-{class}/with/a/long/name/of/folders"));
        (0..1000).for_each(|image| listing.add(&format!("{image:08}.jpg")));
    }
    listing.sort(0);
    let paths = listing.pack().unwrap();
    let bytes = paths.names.bytes.len() + 8 * paths.names.ends.len() + 4 * paths.folder.len();
    assert_eq!((paths.len(), bytes), (10_000, 10_000 * 24));
    assert_eq!(paths.get(1003), "class-1/with/a/long/name/of/folders/00000003.jpg");
    assert_eq!(
        paths.below(Path::new("/x"), 0),
        Path::new("/x/class-0/with/a/long/name/of/folders/00000000.jpg")
    );
    let none = Listing::default().pack().unwrap();
    assert!(none.is_empty());
}

proptest! {
    #[test]
    fn paths_are_sorted_kept_and_told(
        names in prop::collection::btree_set("([ab.é]{1,2}/){0,2}[ab.-]{1,3}", 0..30),
        kept in prop::collection::vec(any::<bool>(), 30),
        seed: u64,
    ) {
        let mut shuffled: Vec<String> = names.iter().cloned().collect();
        let order = super::super::sampler::shuffled::epoch_order(shuffled.len(), seed, 0);
        shuffled = order.iter().map(|&at| shuffled[at as usize].clone()).collect();
        let mut found = listing(&shuffled);
        found.sort(0);
        prop_assert_eq!(found.len(), names.len());
        let paths = found.pack().unwrap();
        let expected: Vec<String> = names.into_iter().collect();
        prop_assert_eq!(&all(&paths), &expected);
        let told: Paths = serde_json::from_value(serde_json::to_value(&paths).unwrap()).unwrap();
        prop_assert_eq!(&all(&told), &expected);
        let some: Vec<String> = expected.iter().enumerate().filter(|(at, _)| kept[*at]).map(|(_, path)| path.clone()).collect();
        prop_assert_eq!(all(&told.kept(|at| kept[at]).unwrap()), some);
        for (at, path) in expected.iter().enumerate() {
            prop_assert_eq!(told.below(Path::new("r"), at), Path::new("r").join(path));
        }
    }

    #[test]
    fn stems_order_files_whatever_their_endings(names in prop::collection::btree_set("([ab]{1,2}/)?[ab.]{1,3}", 0..20)) {
        let files: Vec<String> = names.iter().flat_map(|name| [format!("{name}.png"), format!("{name}.bmp")]).collect();
        let mut found = listing(&files);
        found.sort_by_stem();
        for at in 0..found.len() / 2 {
            prop_assert_eq!(found.compare_stems(2 * at, &found, 2 * at + 1), Ordering::Equal);
            prop_assert!(found.path(2 * at).ends_with(".bmp"));
        }
        for at in 1..found.len() / 2 {
            prop_assert_eq!(found.compare_stems(2 * at - 1, &found, 2 * at), Ordering::Less);
        }
    }
}
