#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

fn annotation(segmentation: &str) -> Result<Annotation, serde_json::Error> {
    serde_json::from_str(&format!(
        r#"{{"id": 3, "image_id": 1, "category_id": 2, "segmentation": {segmentation}, "bbox": [1]}}"#
    ))
}

#[test]
fn shapes_of_both_forms_are_read() {
    let polygon = annotation("[[0.5, 0, 2, 0, 2, 2.04]]").unwrap();
    let fifths = [3, 0, 10, 0, 10, 10].map(Fifths).to_vec();
    assert_eq!(polygon.segmentation, Segmentation::Polygons(vec![fifths]));
    assert_eq!(polygon.area(), (7.0 * 10.0) / 2.0 / 25.0);
    for runs in
        [r#"{"size": [2, 3], "counts": [1, 3, 2]}"#, r#"{"counts": "132", "size": [2, 3], "other": [[]]}"#]
    {
        let read = annotation(runs).unwrap();
        assert_eq!(read.segmentation, Segmentation::Runs { size: (2, 3), runs: vec![1, 3, 2] });
        assert_eq!((read.area(), read.parts((3, 2)).unwrap()), (3.0, vec![Part::Runs(vec![1, 3, 2])]));
    }
    for none in ["[]", "null"] {
        assert_eq!(annotation(none).unwrap().segmentation, Segmentation::None);
    }
}

#[test]
fn shapes_that_cannot_be_drawn_have_a_reason() {
    for (segmentation, reason) in [
        ("[]", Unusable::BoxAlone),
        ("[[0, 0, 1, 1]]", Unusable::Points),
        ("[[0, 0, 1, 0, 1, 1, 0]]", Unusable::Points),
        ("[[0, 0, 1, 0, 1, 1], []]", Unusable::Points),
        ("[[0, 0, 1, 0, 1, 21]]", Unusable::Outside),
        ("[[0, 0, 1, 0, 1e99, 1]]", Unusable::Outside),
        ("[[-11, 0, 1, 0, 1, 1]]", Unusable::Outside),
        (r#"{"size": [11, 10], "counts": [110]}"#, Unusable::Size),
        (r#"{"size": [10, 10], "counts": [99]}"#, Unusable::Runs),
    ] {
        assert_eq!(annotation(segmentation).unwrap().parts((10, 10)), Err(reason), "{segmentation}");
    }
    for broken in [
        "\"a\"",
        "7",
        "{}",
        r#"{"size": [1, 1], "counts": "~~"}"#,
        r#"{"size": [1], "counts": [1]}"#,
        "[[\"x\"]]",
    ] {
        assert!(annotation(broken).is_err(), "{broken}");
    }
}

proptest! {
    #[test]
    fn any_text_of_runs_is_read_or_refused(text in prop::collection::vec(40u8..125, 0..40)) {
        let _ = decompress(&text);
    }

    /// Whatever is cut or changed, a file is read or refused, and what is read is drawn or refused.
    #[test]
    fn any_file_is_read_or_refused(at: prop::sample::Index, value: char, cut: prop::sample::Index) {
        let whole = r#"{"id": 3, "image_id": 1, "category_id": 2, "segmentation": [[0.5, 0, 2, 0, 2, 2.04]], "area": 3}"#;
        let mut letters: Vec<char> = whole.chars().collect();
        let place = at.index(letters.len());
        letters[place] = value;
        letters.truncate(cut.index(letters.len()) + 1);
        for text in [letters.iter().collect::<String>(), format!("{}]]}}", letters.iter().collect::<String>())] {
            if let Ok(read) = serde_json::from_str::<Annotation>(&text) {
                let _ = (read.area(), read.parts((4, 4)));
            }
        }
    }
}
