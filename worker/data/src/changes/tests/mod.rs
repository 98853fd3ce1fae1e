#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::super::plane::Plane;
use super::super::raster::Values;
use super::super::rng::{Domain, keyed};
use super::*;
use dtrain_recipe::Augment;
use dtrain_recipe::changes::{Brightness, Crop, Flip};

mod colours;
mod moves;
mod parity;

fn bytes_of(image: &Raster) -> &[u8] {
    match &image.values {
        Values::U8(values) => values,
        Values::F32(values) => panic!("bytes were expected, not {values:?}"),
    }
}

fn rng(sample: u64) -> SampleRng {
    keyed(Domain::Augment, 1, 0, sample)
}

fn draws(augment: Augment, source: (u32, u32), target: (u32, u32), count: u64) -> Vec<Drawn> {
    let changes = Changes::new(&augment.changes());
    (0..count).map(|sample| changes.draw(&mut rng(sample), source, target)).collect()
}

#[test]
fn nothing_and_flip_move_nothing() {
    assert!(
        draws(Augment::None, (9, 9), (9, 9), 50)
            .iter()
            .all(|drawn| drawn.frame.is_none() && drawn.placement == Placement::default())
    );
    let flips = draws(Augment::Flip, (9, 9), (9, 9), 1000);
    let flipped = flips.iter().filter(|choice| choice.placement.flip).count();
    assert!((450..550).contains(&flipped), "{flipped}");
    assert!(
        flips
            .iter()
            .all(|choice| choice.frame.is_none() && choice.placement.left == 0 && choice.placement.top == 0)
    );
}

#[test]
fn shifts_are_up_to_an_eighth_and_evenly_drawn() {
    let choices = draws(Augment::CropFlip, (500, 300), (32, 32), 9000);
    for side in [|choice: &Drawn| choice.placement.left, |choice: &Drawn| choice.placement.top] {
        let mut counts = [0; 9];
        for choice in &choices {
            counts[usize::try_from(side(choice) + 4).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
    let flipped = choices.iter().filter(|choice| choice.placement.flip).count();
    assert!((4300..4700).contains(&flipped), "{flipped}");
    assert_eq!([1, 32, 224].map(|side| crop::padding(side, 0.125)), [0, 4, 28]);
}

#[test]
fn rectangles_follow_torchvision_s_distribution() {
    // 20,000 of torchvision's rectangles in this square have a mean area of 0.477; half are wider than high.
    let whole = 400.0 * 400.0;
    let (mut area, mut wide) = (0.0, 0);
    for choice in draws(Augment::ResizedCropFlip, (400, 400), (32, 32), 4000) {
        let frame = format!("{:?}", choice.frame.unwrap());
        let number = |name: &str| -> f64 {
            let rest = &frame[frame.find(name).unwrap() + name.len()..];
            rest[..rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap()].parse().unwrap()
        };
        let (width, height) = (number("width: "), number("height: "));
        assert!(number("left: ") + width <= 400.0 && number("top: ") + height <= 400.0);
        assert!((0.74..1.35).contains(&(width / height)), "{frame}");
        area += width * height / whole / 4000.0;
        wide += usize::from(width > height);
    }
    assert!((0.46..0.495).contains(&area), "{area}");
    assert!((1850..2150).contains(&wide), "{wide}");
}

#[test]
fn very_long_images_are_cut_in_the_middle() {
    // No allowed rectangle fits into such a strip: 10 tries fail, and the largest central one is used.
    let expected = Frame::rectangle((498, 0), (4, 3), (8, 8));
    let strips = draws(Augment::ResizedCropFlip, (1000, 3), (8, 8), 20);
    assert!(strips.iter().all(|choice| choice.frame == Some(expected)));
    let expected = Frame::rectangle((0, 498), (3, 4), (8, 8));
    assert!(
        draws(Augment::ResizedCropFlip, (3, 1000), (8, 8), 20)
            .iter()
            .all(|choice| choice.frame == Some(expected))
    );
}

/// The draws of a word must never change: recipes of earlier versions mean the same.
#[test]
fn the_draws_of_words_never_change() {
    let found = |augment| -> Vec<_> {
        let drawn = draws(augment, (50, 40), (32, 32), 3).into_iter();
        drawn.map(|drawn| (drawn.frame, drawn.placement)).collect()
    };
    // Found by the version of dtrain that had these words alone.
    let placed = |left, top, flip| (None::<Frame>, Placement { left, top, flip });
    assert_eq!(found(Augment::CropFlip), [placed(0, 3, true), placed(0, 4, true), placed(-2, 2, true)]);
    let part = |corner, size, flip| {
        (Some(Frame::rectangle(corner, size, (32, 32))), Placement { flip, ..Placement::default() })
    };
    let expected =
        [part((8, 6), (38, 31), true), part((8, 3), (39, 30), false), part((16, 2), (28, 24), true)];
    assert_eq!(found(Augment::ResizedCropFlip), expected);
}

#[test]
fn a_shift_after_a_mirror_image_moves_the_mirror_image() {
    let (flip, crop) = (Settings::Flip(Flip { share: 0.999 }), Settings::Crop(Crop::default()));
    let column = |changes: &[Settings]| {
        let drawn = Changes::new(changes).draw(&mut rng(3), (8, 8), (8, 8));
        let mut out = [0u8; 64];
        let values: Vec<u8> = (1..=64).collect();
        let plane = Plane { values: &values, width: 8, height: 8, row: 8, step: 1 };
        plane.write(drawn.placement, 0, &mut out, |value: u8| value);
        (drawn.placement, out)
    };
    let (placement, moved) = column(&[flip, crop]);
    assert!(placement.flip && placement.left != 0, "{placement:?}");
    // Moved right by `left` after the mirror image: the mirrored row, shifted.
    let mirrored: Vec<u8> = (0..8).map(|x| 8 - x).collect();
    let shift = -placement.left;
    let expected =
        (0..8).map(|x| usize::try_from(x + shift).ok().and_then(|at| mirrored.get(at)).copied().unwrap_or(0));
    let row = (-placement.top).clamp(0, 7) as usize;
    let own = (row as i32 + placement.top) as u8 * 8;
    let expected: Vec<u8> = expected.map(|value| if value == 0 { 0 } else { value + own }).collect();
    assert_eq!(moved[row * 8..row * 8 + 8], expected);
}

#[test]
fn brightness_changes_the_image_alone_and_draws_after_what_is_before_it() {
    let brightness = Settings::Brightness(Brightness { strength: 0.5 });
    let flip = Settings::Flip(Flip::default());
    let drawn = Changes::new(&[flip.clone(), brightness]).draw(&mut rng(1), (2, 1), (2, 1));
    let alone = Changes::new(&[flip]).draw(&mut rng(1), (2, 1), (2, 1));
    assert_eq!(drawn.placement, alone.placement);
    let image = |values| Raster { width: 2, height: 1, channels: 1, values };
    let mut memory = Room::default();
    let mut changed = |values| drawn.changed(image(values).view(), &mut memory).to_raster().values;
    let Values::F32(found) = changed(Values::F32(vec![0.5, 1.0])) else { panic!("floating-point values") };
    let factor = found[1];
    assert!((0.5..1.5).contains(&factor) && factor != 1.0 && found[0] == 0.5 * factor, "{found:?}");
    let bytes = Values::U8(vec![(100.0 * factor) as u8, (200.0 * factor) as u8]);
    assert_eq!(changed(Values::U8(vec![100, 200])), bytes);
    assert!(alone.steps.is_empty());
}

proptest! {
    #[test]
    fn a_choice_depends_on_the_generator_alone(sample: u64, width in 1u32..500, height in 1u32..500, side in 1u32..99) {
        for augment in [Augment::None, Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip] {
            let changes = Changes::new(&augment.changes());
            let again = || format!("{:?}", changes.draw(&mut rng(sample), (width, height), (side, side)));
            prop_assert_eq!(again(), again());
        }
    }
}
