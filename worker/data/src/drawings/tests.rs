#![allow(clippy::unwrap_used)]

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::annotations::Annotations;
use crate::tests::images::reference;

/// Every shape of the reference is drawn as pycocotools draws it, alone and after another sample.
#[test]
fn shapes_are_those_of_pycocotools() {
    let bytes = std::fs::read(reference("masks/annotations.json")).unwrap();
    let all: Annotations = serde_json::from_slice(&bytes).unwrap();
    let drawn: Value = serde_json::from_slice(&bytes).unwrap();
    let size = (all.images[0].width, all.images[0].height);
    let shape = |parts| Drawing { size, shapes: vec![Shape { class: 1, parts }] };
    let drawings: Vec<Drawing> =
        all.annotations.iter().map(|annotation| shape(annotation.parts(size).unwrap())).collect();
    assert!(drawings.len() >= 70, "{}", drawings.len());
    let drawings = Drawings::write("a.json", &drawings).unwrap();
    let mut labels = Labels::default();
    for at in 0..drawings.len() {
        drawings.draw(at, &mut labels);
        assert_eq!((labels.width, labels.height), size);
        let wanted: Vec<u16> =
            drawn["drawn"][at].as_str().unwrap().bytes().map(|digit| u16::from(digit - b'0')).collect();
        assert_eq!(labels.values, wanted, "annotation {at}");
    }
}

fn rectangle(x: i32, y: i32, width: i32, height: i32) -> Part {
    let (x, y, right, bottom) = (5 * x, 5 * y, 5 * (x + width), 5 * (y + height));
    Part::Polygon(vec![x, y, right, y, right, bottom, x, bottom])
}

fn drawn(drawings: &Drawings, sample: usize) -> Vec<u16> {
    let mut labels = Labels { values: vec![7; 3], ..Labels::default() };
    drawings.draw(sample, &mut labels);
    labels.values
}

#[test]
fn later_shapes_are_over_earlier_ones_and_lists_can_be_cut_and_joined() {
    let shapes = vec![
        Shape { class: 2, parts: vec![rectangle(0, 0, 2, 2), rectangle(3, 0, 1, 2)] },
        Shape { class: 1, parts: vec![Part::Runs(vec![1, 3])] },
    ];
    let all = [Drawing { size: (4, 2), shapes }, Drawing { size: (1, 1), shapes: Vec::new() }];
    let drawings = Drawings::write("a.json", &all).unwrap();
    assert_eq!(drawn(&drawings, 0), [2, 1, 0, 2, 1, 1, 0, 2]);
    assert_eq!(drawn(&drawings, 1), [0]);
    let kept = drawings.kept(|at| at == 1).unwrap();
    assert_eq!((kept.len(), kept.size(0), drawn(&kept, 0)), (1, (1, 1), vec![0]));
    let joined = Drawings::join(&[&kept, &drawings]).unwrap();
    assert_eq!((joined.len(), joined.size(1)), (3, (4, 2)));
    assert_eq!(drawn(&joined, 1), drawn(&drawings, 0));
    let sent = serde_json::to_vec(&joined).unwrap();
    assert_eq!(serde_json::from_slice::<Drawings>(&sent).unwrap(), joined);
}

proptest! {
    /// Whatever another process wrote, drawing ends.
    #[test]
    fn any_words_are_drawn(words in prop::collection::vec(0u32..40, 0..60), points in prop::collection::vec(-60i32..90, 0..20)) {
        let mut all = vec![6, 5, 1, 1, points.len() as u32];
        all.extend(points.iter().map(|&point| point as u32));
        all.extend(&words);
        let ends = Packed::write([all.len() as u64]).unwrap();
        let drawings = Drawings { file: String::new(), ends, words: Packed::write(all).unwrap() };
        prop_assert_eq!(drawn(&drawings, 0).len(), 30);
    }

    /// A shape that covers the whole image covers each pixel.
    #[test]
    fn a_rectangle_covers_its_pixels(x in 0i32..9, y in 0i32..9, width in 1i32..9, height in 1i32..9) {
        let shapes = vec![Shape { class: 3, parts: vec![rectangle(x, y, width, height)] }];
        let drawings = Drawings::write("", &[Drawing { size: (12, 12), shapes }]).unwrap();
        for (at, value) in drawn(&drawings, 0).into_iter().enumerate() {
            let (column, row) = (at as i32 % 12, at as i32 / 12);
            let is_inside = (x..x + width).contains(&column) && (y..y + height).contains(&row);
            prop_assert_eq!(value, if is_inside { 3 } else { 0 });
        }
    }
}
