//! Comparison with torchvision: `tests/parity/make_changes.py` makes the references.

use dtrain_recipe::changes::PixelFilter;
use serde::Deserialize;

use super::super::super::decode::rgb8;
use super::super::affine::{self, Parts};
use super::super::operation::{ALL, Operation, Strengths};
use super::super::warp::Warp;
use super::super::*;
use super::super::{
    autoaugment, autocontrast, blur, brightness, contrast, equalize, grayscale, hue, invert, perspective,
    posterize, saturation, sharpness, solarize,
};
use super::bytes_of;
use crate::raster::Values;
use crate::tests::images::reference;

/// Width and height of the pictures.
const SIZE: (u32, u32) = (37, 29);

#[derive(Debug, Deserialize)]
struct Case {
    picture: usize,
    name: String,
    numbers: Vec<f64>,
    filter: Option<String>,
}

/// Returns all pictures: two sources, and one for each case.
pub(super) fn pictures() -> Vec<Raster> {
    let bytes = std::fs::read(reference("changes/pictures.png")).unwrap();
    let mut pixels = Vec::new();
    assert_eq!(rgb8(&bytes, &mut Vec::new(), &mut pixels).unwrap().0, SIZE.0);
    let length = 3 * SIZE.0 as usize * SIZE.1 as usize;
    let picture = |values: &[u8]| Raster {
        width: SIZE.0,
        height: SIZE.1,
        channels: 3,
        values: Values::U8(values.to_vec()),
    };
    pixels.chunks_exact(length).map(picture).collect()
}

fn cases() -> Vec<Case> {
    serde_json::from_slice(&std::fs::read(reference("changes/cases.json")).unwrap()).unwrap()
}

/// Returns what the case draws.
fn drawn(case: &Case) -> Drawn {
    let mut drawn = Drawn::default();
    let filter = match case.filter.as_deref() {
        Some("bilinear") => PixelFilter::Bilinear,
        _ => PixelFilter::Nearest,
    };
    let number = |at: usize| case.numbers[at];
    let factor = case.numbers.first().map_or(0.0, |&factor| factor as f32);
    let warp = |map| Move::Warp(Warp::new(map, filter));
    match case.name.as_str() {
        "brightness" => drawn.colour(brightness::Factor(factor)),
        "contrast" => drawn.colour(contrast::ContrastFactor(factor)),
        "saturation" => drawn.colour(saturation::Saturation(factor)),
        "hue" => drawn.colour(hue::Hue(factor)),
        "sharpness" => drawn.colour(sharpness::Sharpen(factor)),
        "posterize" => drawn.colour(posterize::Bits(factor as u32)),
        "solarize" => drawn.colour(solarize::InvertFrom(factor)),
        "invert" => drawn.colour(invert::Negative),
        "equalize" => drawn.colour(equalize::Equal),
        "autocontrast" => drawn.colour(autocontrast::WholeRange),
        "grayscale" => drawn.colour(grayscale::Grey),
        "blur" => drawn.colour(blur::Gaussian::new(number(0) as usize, number(1) as f32)),
        "rotation" => drawn.shift(warp(affine::rotated(number(0)))),
        "affine" => drawn.shift(warp(
            Parts {
                degrees: number(0),
                translate: [number(1), number(2)],
                scale: number(3),
                shear: [number(4), number(5)],
                ..Parts::default()
            }
            .map(),
        )),
        "perspective" => {
            let corner = |at: usize| [number(2 * at), number(2 * at + 1)];
            drawn.shift(warp(perspective::map(SIZE, std::array::from_fn(corner)).unwrap()));
        }
        name => operation(name).add(factor, SIZE, filter, &mut drawn),
    }
    drawn
}

fn operation(name: &str) -> Operation {
    let all = ALL.into_iter().chain([Operation::Invert]);
    all.into_iter().find(|operation| format!("{operation:?}") == name).unwrap_or_else(|| panic!("no {name}"))
}

#[test]
fn every_function_has_torchvision_s_pixels() {
    let pictures = pictures();
    let cases = cases();
    assert_eq!(pictures.len(), cases.len() + 2);
    let mut wrong = Vec::new();
    for (case, expected) in cases.iter().zip(&pictures[2..]) {
        let mut memory = Room::default();
        let found = drawn(case).changed(pictures[case.picture].view(), &mut memory).to_raster();
        let away: Vec<u8> =
            bytes_of(&found).iter().zip(bytes_of(expected)).map(|(&a, &b)| a.abs_diff(b)).collect();
        let most = away.iter().copied().max().unwrap();
        let different = away.iter().filter(|&&away| away > 0).count() as f64 / away.len() as f64;
        let far = away.iter().filter(|&&away| away > 1).count() as f64 / away.len() as f64;
        let (level, part_different, part_far) = match (case.name.as_str(), case.filter.as_deref()) {
            // Tables are exact.
            ("brightness" | "posterize" | "solarize" | "invert" | "equalize" | "autocontrast", _) => {
                (0, 0.0, 0.0)
            }
            // Many results are whole numbers but for the rounding of floats.
            ("saturation", _) => (1, 0.05, 0.0),
            (_, None) => (1, 0.001, 0.0),
            (_, Some("bilinear")) => (1, 0.03, 0.0),
            // A place in the middle between two pixels may be rounded to either.
            _ => (255, 0.001, 0.001),
        };
        if most > level || different > part_different || far > part_far {
            wrong.push(format!("{case:?}: {most} {different:.4} {far:.4}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[derive(Debug, Deserialize)]
struct Table {
    is_signed: bool,
    values: Option<Vec<f32>>,
}

#[derive(Debug, Deserialize)]
struct Policies {
    magnitudes: std::collections::BTreeMap<String, Table>,
    autoaugment: Vec<[(String, f64, Option<usize>); 2]>,
}

fn policies() -> Policies {
    serde_json::from_slice(&std::fs::read(reference("changes/policies.json")).unwrap()).unwrap()
}

#[test]
fn magnitudes_are_those_of_torchvision() {
    let tables = policies().magnitudes;
    assert_eq!(tables.len(), 14 + 14 + 14);
    for (name, table) in tables {
        let [strengths, count, name] = name.split('/').collect::<Vec<_>>()[..] else { panic!("{name}") };
        let strengths = if strengths == "wide" { Strengths::wide() } else { Strengths::narrow(SIZE) };
        let (operation, count) = (operation(name), count.parse().unwrap());
        let found: Option<Vec<f32>> =
            (0..count).map(|at| strengths.magnitude(operation, at, count)).collect();
        assert_eq!(found, table.values, "{name} of {count}");
        assert_eq!(operation.is_signed(), table.is_signed, "{name}");
    }
}

#[test]
fn the_policy_of_autoaugment_is_that_of_torchvision() {
    let expected = policies().autoaugment;
    let found =
        autoaugment::POLICY.map(|pair| pair.map(|(name, share, at)| (format!("{name:?}"), share, at)));
    let expected: Vec<_> = expected
        .into_iter()
        .map(|pair| pair.map(|(name, share, at)| (name, share, at.unwrap_or_default())))
        .collect();
    assert_eq!(found.to_vec(), expected);
}
