#![allow(clippy::unwrap_used)]

use super::*;
use crate::sources::Reading;
use crate::tests::READING;
use crate::tests::images::{paths, put};

fn scan(text: &str, reading: Reading<'_>) -> Result<Samples, DataError> {
    let root = tempfile::tempdir().unwrap();
    // The file holds the paths in full.
    let text = text.replace("ROOT", &root.path().to_string_lossy());
    put(root.path().join("base.json"), text.as_bytes());
    let (root, set) = (root.path(), "base.json");
    list(&Request { root, set, targets: "", target: None, fields: &[], list: None, pair: None, reading })
}

#[test]
fn the_images_of_a_list_have_named_classes() {
    let text = "{\"label_names\": [\"wren\", \"auk\", \"jay\"], \"image_names\": [\"ROOT/jay/a.jpg\", \"auk/b.jpg\"], \"image_labels\": [2, 1]}";
    let base = scan(text, READING).unwrap();
    assert_eq!(paths(&base), ["jay/a.jpg", "auk/b.jpg"]);
    assert_eq!(base.classes(), (&["auk".to_owned(), "jay".to_owned()][..], &[1, 0][..]));
    assert!(base.describe(1).ends_with("auk/b.jpg"));
    let novel = text.replace("[2, 1]", "[0, 1]");
    let found = scan(&novel, Reading { train: Some(&base), ..READING }).unwrap_err().to_string();
    assert!(
        found.contains("base.json: image_names[0]: label is \"wren\", a class that no training line has"),
        "{found}"
    );
    assert!(scan(&novel, Reading { train: Some(&base.without("label")), ..READING }).is_ok());
}

#[test]
fn wrong_lists_are_named_with_their_remedy() {
    let of = |names: &str, images: &str, labels: &str| {
        format!("{{\"label_names\": [{names}], \"image_names\": [{images}], \"image_labels\": [{labels}]}}")
    };
    for (text, part) in [
        (String::new(), "base.json:1: the file is no list of images (EOF"),
        ("{\"label_names\": []}".to_owned(), "missing field `image_names`"),
        (of("\"a\"", "\"x.jpg\"", "-1"), "the file is no list of images"),
        (of("\"a\"", "\"x.jpg\", \"y.jpg\"", "0"), "image_names has 2 entries and image_labels 1"),
        (of("\"a\"", "\"x.jpg\"", "1"), "image_names[0]: image_labels is 1, and label_names has 1 names"),
        (
            of("\"a\"", "\"x.jpg\", \"y.jpg\", \"x.jpg\"", "0, 0, 0"),
            "image_names[2]: \"x.jpg\" is also image_names[0]",
        ),
        (of("\"a\", \"a\"", "\"x.jpg\"", "1"), "the name \"a\" occurs twice"),
        (of("\"a\"", "\"/elsewhere/x.jpg\"", "0"), "image_names[0]: /elsewhere/x.jpg is not below data.root"),
        (of("\"a\"", "\"../x.jpg\"", "0"), "image_names[0]: \"../x.jpg\" is not a path below"),
        (of("\"a\"", "", ""), "the list has no images"),
    ] {
        let found = scan(&text, READING).unwrap_err().to_string();
        assert!(found.contains(part), "{text}: {found}");
    }
}

proptest::proptest! {
    #[test]
    fn any_lists_read_or_are_an_error(
        names in proptest::collection::vec("[a-c]", 0..3),
        images in proptest::collection::vec("[./a-c]{0,3}", 0..4),
        labels in proptest::collection::vec(0_usize..3, 0..4),
    ) {
        let lists = Lists { label_names: names, image_names: images, image_labels: labels };
        if let Ok(rows) = rows(&lists, Path::new("/")) {
            proptest::prop_assert_eq!(rows.lines.len(), lists.image_names.len());
        }
    }
}
