//! Properties of changes of places and of the order of changes.

use dtrain_recipe::changes::{
    Affine, Autoaugment, Autocontrast, Blur, Brightness, Equalize, Erasing, Flip, Grayscale, Invert, Jitter,
    Lighting, Perspective, PixelFilter, Posterize, Randaugment, Rot90, Rotation, Sharpness, Solarize,
    Trivialaugment, VerticalFlip,
};
use proptest::prelude::*;

use super::super::super::pixel_target::PixelTarget;
use super::super::*;
use super::{bytes_of, rng};
use crate::raster::Values;

fn vertical_flip() -> Settings {
    Settings::VerticalFlip(VerticalFlip { share: 1.0 })
}

fn crop() -> Settings {
    Settings::Crop(dtrain_recipe::changes::Crop { padding: 0.3 })
}

fn invert() -> Settings {
    Settings::Invert(Invert { share: 1.0 })
}

/// Every kind of geometry, with the nearest pixels.
fn geometry() -> Vec<Settings> {
    let filter = PixelFilter::Nearest;
    vec![
        Settings::VerticalFlip(VerticalFlip { share: 0.7 }),
        Settings::Rot90(Rot90 { share: 0.7 }),
        Settings::Rotation(Rotation { degrees: 180.0, filter }),
        Settings::Affine(Affine { scale: [0.5, 2.0], shear: 20.0, filter, ..Affine::default() }),
        Settings::Perspective(Perspective { share: 0.9, filter, ..Perspective::default() }),
        Settings::Flip(Flip::default()),
        crop(),
    ]
}

/// Every change of colours.
fn colours() -> Vec<Settings> {
    vec![
        Settings::Jitter(Jitter::default()),
        Settings::Grayscale(Grayscale::default()),
        Settings::Blur(Blur { kernel: 5, ..Blur::default() }),
        Settings::Solarize(Solarize::default()),
        Settings::Posterize(Posterize::default()),
        Settings::Equalize(Equalize::default()),
        Settings::Autocontrast(Autocontrast::default()),
        Settings::Sharpness(Sharpness::default()),
        Settings::Invert(Invert::default()),
        Settings::Lighting(Lighting::default()),
        Settings::Erasing(Erasing::default()),
        Settings::Brightness(Brightness::default()),
    ]
}

fn policies() -> Vec<Settings> {
    vec![
        Settings::Randaugment(Randaugment { operations: 4, ..Randaugment::default() }),
        Settings::Trivialaugment(Trivialaugment::default()),
        Settings::Autoaugment(Autoaugment::default()),
    ]
}

fn draw(changes: &[Settings], sample: u64, size: (u32, u32)) -> Drawn {
    Changes::new(changes).draw(&mut rng(sample), size, size)
}

/// Returns one channel of an image after all changes, with the placement.
fn written(drawn: &Drawn, image: &Raster) -> Vec<u8> {
    let mut memory = Room::default();
    let view = drawn.changed(image.view(), &mut memory);
    let Values::U8(values) = view.values else { panic!("bytes") };
    let mut out = vec![0; view.width * view.height];
    view.channel(values, 0).write(drawn.placement, 0, &mut out, |value| value);
    out
}

fn column(length: usize, numbers: bool) -> Column {
    use crate::dataset::Field;
    let field = if numbers { Field::f32("map", [length]) } else { Field::i64("mask", [length]) };
    Column::of(&field, 1)
}

/// An image whose channels are the classes of its mask, from 1.
fn classes((width, height): (u32, u32), channels: usize) -> (Raster, PixelTarget, PixelTarget) {
    let values: Vec<u8> = (0..width * height).map(|at| 1 + (at * 7 % 251) as u8).collect();
    let all = match channels {
        3 => values.iter().flat_map(|&value| [value; 3]).collect(),
        _ => values.repeat(channels),
    };
    let labels = Labels { width, height, values: values.iter().map(|&value| u16::from(value)).collect() };
    let map = Labels { width, height, values: values.iter().map(|&value| f32::from(value)).collect() };
    let image = Raster { width, height, channels, values: Values::U8(all) };
    (image, PixelTarget::Classes(labels), PixelTarget::Numbers(map))
}

proptest! {
    /// A mask and a map move with their image, in any order of the changes.
    #[test]
    fn masks_and_maps_move_with_their_image(
        changes in Just(geometry()).prop_shuffle(),
        count in 1usize..=7,
        sample: u64,
        side in 1u32..24,
        three: bool,
    ) {
        let size = (side, side);
        let drawn = draw(&changes[..count], sample, size);
        let (image, mask, map) = classes(size, if three { 3 } else { 1 });
        let pixels = written(&drawn, &image);
        let length = (side * side) as usize;
        let (mut classes, mut numbers) = (column(length, false), column(length, true));
        drawn.write(&mask, -1, &mut classes);
        drawn.write(&map, -1, &mut numbers);
        for ((&pixel, &class), &number) in pixels.iter().zip(classes.i64().iter()).zip(numbers.f32().iter()) {
            prop_assert_eq!(i64::from(pixel), if class == -1 { 0 } else { class });
            prop_assert_eq!(f32::from(pixel), if number.is_nan() { 0.0 } else { number });
        }
    }

    /// No change breaks an image, of any size, number of channels and depth; and the same generator draws the same.
    #[test]
    fn a_drawing_is_a_function_of_the_generator(
        changes in Just([geometry(), colours(), policies()].concat()).prop_shuffle(),
        count in 1usize..=20,
        sample: u64,
        side in 1u32..40,
        channels in 1usize..5,
        bytes: bool,
    ) {
        let size = (side, side);
        let changed = || {
            let drawn = draw(&changes[..count], sample, size);
            let (mut image, ..) = classes(size, channels);
            if let (false, Values::U8(values)) = (bytes, &image.values) {
                image.values = Values::F32(values.iter().map(|&value| f32::from(value) / 255.0).collect());
            }
            let mut memory = Room::default();
            let image = drawn.changed(image.view(), &mut memory).to_raster();
            (image, format!("{drawn:?}"))
        };
        let (image, drawn) = changed();
        prop_assert_eq!((image.width, image.height, image.channels), (side, side, channels));
        if let Values::F32(values) = &image.values {
            prop_assert!(values.iter().all(|value| value.is_finite()), "{}", drawn);
        }
        prop_assert_eq!((image, drawn), changed());
    }

    #[test]
    fn turns_undo_each_other(side in 1u32..9, wide in 1u32..9, three: bool) {
        let channels = if three { 3 } else { 2 };
        let after = |all: &[Move], size| {
            let (mut image, ..) = classes(size, channels);
            let mut room = moves::Room::default();
            all.iter().for_each(|by| by.image(&mut image, &mut room));
            image
        };
        let quarters = |turns| Move::Quarters(turns);
        let (square, any) = ((side, side), (wide, side));
        prop_assert_eq!(after(&[Move::UpsideDown, Move::UpsideDown], any), classes(any, channels).0);
        prop_assert_eq!(after(&[quarters(1), quarters(3)], square), classes(square, channels).0);
        prop_assert_eq!(after(&[quarters(2), quarters(2)], square), classes(square, channels).0);
        prop_assert_eq!(after(&[quarters(1), quarters(1)], square), after(&[quarters(2)], square));
    }

    /// A rotation by whole quarters has no pixel between others.
    #[test]
    fn a_rotation_by_quarters_is_a_turn(side in 1u32..20, turns in 0u32..4, smooth: bool) {
        let filter = if smooth { PixelFilter::Bilinear } else { PixelFilter::Nearest };
        let map = super::super::affine::rotated(90.0 * f64::from(turns));
        let warp = Move::Warp(super::super::warp::Warp::new(map, filter));
        let (mut turned, mut rotated) = (classes((side, side), 3).0, classes((side, side), 3).0);
        let mut room = moves::Room::default();
        Move::Quarters(turns).image(&mut turned, &mut room);
        warp.image(&mut rotated, &mut room);
        prop_assert_eq!(bytes_of(&turned), bytes_of(&rotated));
    }
}

#[test]
fn a_quarter_turn_is_against_the_clock() {
    let image =
        |values: &[u8]| Raster { width: 2, height: 2, channels: 1, values: Values::U8(values.to_vec()) };
    let turned = |by: Move| {
        let mut image = image(&[1, 2, 3, 4]);
        by.image(&mut image, &mut moves::Room::default());
        bytes_of(&image).to_vec()
    };
    assert_eq!(turned(Move::Quarters(1)), [2, 4, 1, 3]);
    assert_eq!(turned(Move::Quarters(2)), [4, 3, 2, 1]);
    assert_eq!(turned(Move::Quarters(3)), [3, 1, 4, 2]);
    assert_eq!(turned(Move::UpsideDown), [3, 4, 1, 2]);
}

#[test]
fn turns_are_as_often_as_stated() {
    let square = (2, 2);
    let rot90 = Settings::Rot90(Rot90 { share: 0.75 });
    let mut counts = [0; 4];
    for sample in 0..4000 {
        match draw(std::slice::from_ref(&rot90), sample, square).steps[..] {
            [] => counts[0] += 1,
            [Step::Move(Move::Quarters(turns))] => counts[turns as usize] += 1,
            ref other => panic!("{other:?}"),
        }
    }
    assert!(counts.iter().all(|count| (900..1100).contains(count)), "{counts:?}");
    let changes = Changes::new(&[rot90]);
    assert!(changes.check(square).is_ok());
    let error = changes.check((3, 2)).unwrap_err().to_string();
    assert!(error.contains("images of 3x2 pixels cannot be turned by 90 degrees"), "{error}");
    assert!(Changes::new(&[vertical_flip()]).check((3, 2)).is_ok());
}

/// A change works on what the changes before it made.
#[test]
fn changes_apply_in_their_order() {
    let (image, ..) = classes((10, 10), 3);
    let with = |changes: &[Settings]| {
        let drawn = (0..50).map(|sample| draw(changes, sample, (10, 10)));
        drawn.map(|drawn| written(&drawn, &image)).collect::<Vec<_>>()
    };
    // The border of a shift is black, and white once inverted.
    let (white, black) = (with(&[crop(), invert()]), with(&[invert(), crop()]));
    let count = |all: &[Vec<u8>], value| all.iter().flatten().filter(|&&pixel| pixel == value).count();
    assert!(count(&white, 255) > 1000 && count(&white, 0) == 0);
    assert!(count(&black, 0) > 1000 && count(&black, 255) == 0);
    // Changes that draw nothing else move nothing of the draws after them.
    let brightness = Settings::Brightness(Brightness { strength: 0.5 });
    let places = |changes: &[Settings]| draw(changes, 5, (10, 10)).placement;
    assert_eq!(places(&[crop(), brightness.clone()]), places(&[crop()]));
    assert_ne!(places(&[brightness, crop()]), places(&[crop()]));
}
