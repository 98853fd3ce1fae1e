//! Changes of colours: their draws, planes, and values that are no bytes.

use std::collections::BTreeMap;

use dtrain_recipe::changes::{Erasing, Jitter, Lighting};

use super::super::lighting::Light;
use super::super::*;
use super::super::{
    autocontrast, blur, brightness, contrast, equalize, grayscale, hue, invert, posterize, saturation,
    sharpness, solarize,
};
use super::{bytes_of, parity, rng};
use crate::raster::Values;

fn numbers(channels: usize, values: &[f32]) -> Raster {
    let width = (values.len() / channels) as u32;
    Raster { width, height: 1, channels, values: Values::F32(values.to_vec()) }
}

fn changed(colour: &dyn Colour, mut image: Raster) -> Vec<f32> {
    colour.change(&mut image);
    match image.values {
        Values::U8(values) => values.into_iter().map(f32::from).collect(),
        Values::F32(values) => values,
    }
}

fn assert_near(found: &[f32], expected: &[f32]) {
    let is_near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(found.len() == expected.len() && is_near, "{found:?}, not {expected:?}");
}

/// Changes that mix no channels.
fn of_channels() -> Vec<Box<dyn Colour>> {
    vec![
        Box::new(brightness::Factor(1.3)),
        Box::new(sharpness::Sharpen(1.7)),
        Box::new(posterize::Bits(4)),
        Box::new(solarize::InvertFrom(0.5)),
        Box::new(invert::Negative),
        Box::new(equalize::Equal),
        Box::new(autocontrast::WholeRange),
        Box::new(blur::Gaussian::new(7, 1.5)),
    ]
}

/// Returns the bytes of a picture as planes.
fn planes(picture: &Raster) -> Vec<u8> {
    (0..3).flat_map(|c| bytes_of(picture).iter().skip(c).step_by(3).copied()).collect()
}

#[test]
fn values_from_0_to_1_change_as_bytes_do() {
    let mixing: [Box<dyn Colour>; 4] = [
        Box::new(contrast::ContrastFactor(0.6)),
        Box::new(saturation::Saturation(1.4)),
        Box::new(hue::Hue(0.3)),
        Box::new(grayscale::Grey),
    ];
    let pictures = parity::pictures();
    for (colour, picture) in of_channels().iter().chain(&mixing).zip(pictures.iter().cycle()) {
        let floats = planes(picture).iter().map(|&value| f32::from(value) / 255.0).collect();
        let image = Raster { values: Values::F32(floats), ..picture.clone() };
        let found = changed(&**colour, image);
        let mut expected = picture.clone();
        colour.change(&mut expected);
        let away = found.iter().zip(planes(&expected)).map(|(&found, byte)| {
            // Bytes have bounds, and most lose their fractions.
            (255.0 * found.clamp(0.0, 1.0) - f32::from(byte)).abs()
        });
        let most = away.fold(0.0, f32::max);
        assert!(most < 2.6, "{colour:?}: {most}");
    }
}

#[test]
fn planes_change_as_the_channels_of_pictures() {
    let picture = &parity::pictures()[0];
    for colour in of_channels() {
        let plane: Vec<u8> = planes(picture)[..(37 * 29)].to_vec();
        let image = Raster { channels: 2, values: Values::U8(plane.repeat(2)), ..picture.clone() };
        let found = changed(&*colour, image);
        let mut expected = picture.clone();
        colour.change(&mut expected);
        let expected: Vec<f32> =
            planes(&expected)[..(37 * 29)].iter().map(|&value| f32::from(value)).collect();
        assert_eq!(found, expected.repeat(2), "{colour:?}");
    }
}

#[test]
fn other_values_have_no_bounds() {
    let image = || numbers(3, &[-2.0, 0.5, 4.0]);
    assert_near(&changed(&brightness::Factor(2.0), image()), &[-4.0, 1.0, 8.0]);
    let grey = -2.0 * 0.2989 + 0.5 * 0.587 + 4.0 * 0.114;
    let away = |factor: f32| [-2.0, 0.5, 4.0].map(|value| grey + factor * (value - grey));
    // The image has one pixel: its grey is the mean.
    for factor in [0.0, 0.5, 2.0] {
        assert_near(&changed(&contrast::ContrastFactor(factor), image()), &away(factor));
        assert_near(&changed(&saturation::Saturation(factor), image()), &away(factor));
    }
    let two = || numbers(2, &[1.0, 3.0, 10.0, 30.0]);
    assert_near(&changed(&contrast::ContrastFactor(0.5), two()), &[1.5, 2.5, 15.0, 25.0]);
    assert_near(&changed(&autocontrast::WholeRange, two()), &[0.0, 1.0, 0.0, 1.0]);
    assert_near(&changed(&autocontrast::WholeRange, numbers(1, &[7.0, 7.0])), &[7.0, 7.0]);
    // Two channels have no colour.
    assert_near(&changed(&hue::Hue(0.4), two()), &[1.0, 3.0, 10.0, 30.0]);
}

#[test]
fn a_turn_of_the_hue_by_a_third_exchanges_the_channels() {
    for values in [vec![0.7, 0.2, 0.1], vec![-3.0, 8.0, 1.5], vec![5.0, 5.0, 2.0], vec![0.3; 3]] {
        let [r, g, b] = values[..] else { panic!("three values") };
        assert_near(&changed(&hue::Hue(1.0 / 3.0), numbers(3, &values)), &[b, r, g]);
        assert_near(&changed(&hue::Hue(-1.0 / 3.0), numbers(3, &values)), &[g, b, r]);
        assert_near(&changed(&hue::Hue(0.0), numbers(3, &values)), &values);
    }
}

#[test]
fn jitter_draws_every_order_and_only_what_is_set() {
    let names = |jitter: Jitter, sample| -> Vec<String> {
        let changes = Changes::new(&[Settings::Jitter(jitter)]);
        let drawn = changes.draw(&mut rng(sample), (8, 8), (8, 8));
        let name = |step: &Step| {
            let Step::Colour(colour) = step else { panic!("{step:?}") };
            let text = format!("{colour:?}");
            let (name, factor) = text.trim_end_matches(')').split_once('(').unwrap();
            let factor: f32 = factor.parse().unwrap();
            let range = if name == "Hue" { -0.1..0.1 } else { 0.6..1.4 };
            assert!(range.contains(&factor), "{text}");
            name.to_owned()
        };
        drawn.steps.iter().map(name).collect()
    };
    let mut counts = BTreeMap::new();
    for sample in 0..4800 {
        *counts.entry(names(Jitter::default(), sample)).or_insert(0) += 1;
    }
    assert!(counts.len() == 24 && counts.values().all(|count| (140..260).contains(count)), "{counts:?}");
    let hue = Jitter { brightness: 0.0, contrast: 0.0, saturation: 0.0, ..Jitter::default() };
    assert_eq!(names(hue, 1), ["Hue"]);
    let half = Jitter { share: 0.5, ..Jitter::default() };
    let changed = (0..2000).filter(|&sample| !names(half.clone(), sample).is_empty()).count();
    assert!((900..1100).contains(&changed), "{changed}");
}

#[test]
fn erasing_makes_one_rectangle_black() {
    let changes = Changes::new(&[Settings::Erasing(Erasing::default())]);
    let (mut erased, mut area) = (0, 0.0);
    for sample in 0..2000 {
        let drawn = changes.draw(&mut rng(sample), (40, 30), (40, 30));
        if drawn.steps.is_empty() {
            continue;
        }
        let image = Raster { width: 40, height: 30, channels: 3, values: Values::U8(vec![9; 3600]) };
        let mut memory = Room::default();
        let image = drawn.changed(image.view(), &mut memory).to_raster();
        let black: Vec<usize> = bytes_of(&image)
            .iter()
            .enumerate()
            .filter(|(_, value)| **value == 0)
            .map(|(at, _)| at / 3)
            .collect();
        let side = |of: &dyn Fn(usize) -> usize| {
            let (least, most) = (black.iter().map(|&at| of(at)).min(), black.iter().map(|&at| of(at)).max());
            most.unwrap() - least.unwrap() + 1
        };
        // All three channels of a whole rectangle.
        let (columns, rows) = (side(&|at| at % 40), side(&|at| at / 40));
        assert_eq!(black.len(), 3 * columns * rows);
        assert!(columns < 40 && rows < 30);
        erased += 1;
        area += (columns * rows) as f64 / 1200.0;
    }
    assert!((900..1100).contains(&erased), "{erased}");
    // The largest rectangles that are long do not fit; torchvision's have a mean area of 0.17.
    assert!((0.15..0.19).contains(&(area / f64::from(erased))), "{}", area / f64::from(erased));
}

#[test]
fn light_is_along_the_components_of_imagenet_s_colours() {
    let Light(light) = Light::new([0.1, 0.0, 0.0]);
    assert_near(&light, &[-0.5675, -0.5808, -0.5836].map(|part| part * 0.2175 * 0.1));
    let Light(light) = Light::new([0.0, 1.0, -2.0]);
    assert_near(&light[..1], &[0.7192 * 0.0188 - 2.0 * 0.4009 * 0.0045]);
    assert_near(&changed(&Light([0.5, -0.25, 0.0]), numbers(3, &[1.0, 2.0, 3.0])), &[1.5, 1.75, 3.0]);
    let image = Raster { width: 1, height: 1, channels: 3, values: Values::U8(vec![250, 2, 9]) };
    assert_eq!(changed(&Light([0.1, -0.1, 0.006]), image), [255.0, 0.0, 11.0]);
    let changes = Changes::new(&[Settings::Lighting(Lighting { strength: 0.1 })]);
    let drawn = |sample| -> f64 {
        let drawn = changes.draw(&mut rng(sample), (1, 1), (1, 1));
        let [Step::Colour(light)] = &drawn.steps[..] else { panic!("{drawn:?}") };
        let grey = changed(&**light, numbers(3, &[0.0; 3]));
        f64::from(grey[0])
    };
    let (sum, squares) =
        (0..4000).map(drawn).fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    let expected = 0.1
        * ((0.5675f64 * 0.2175).powi(2) + (0.7192f64 * 0.0188).powi(2) + (0.4009f64 * 0.0045).powi(2)).sqrt();
    let (mean, deviation) = (sum / 4000.0, (squares / 4000.0).sqrt());
    assert!(
        mean.abs() < 0.1 * expected && (deviation / expected - 1.0).abs() < 0.05,
        "{mean} {deviation} {expected}"
    );
}
