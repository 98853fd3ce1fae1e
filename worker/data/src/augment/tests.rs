#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::super::rng::{Domain, keyed};
use super::*;

fn rng(sample: u64) -> SampleRng {
    keyed(Domain::Augment, 1, 0, sample)
}

fn draws(augment: Augment, source: (u32, u32), target: (u32, u32), count: u64) -> Vec<Choice> {
    (0..count).map(|sample| draw(augment, &mut rng(sample), source, target)).collect()
}

#[test]
fn nothing_and_flip_move_nothing() {
    assert!(draws(Augment::None, (9, 9), (9, 9), 50).iter().all(|choice| *choice == Choice::default()));
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
    for side in [|choice: &Choice| choice.placement.left, |choice: &Choice| choice.placement.top] {
        let mut counts = [0; 9];
        for choice in &choices {
            counts[usize::try_from(side(choice) + 4).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
    let flipped = choices.iter().filter(|choice| choice.placement.flip).count();
    assert!((4300..4700).contains(&flipped), "{flipped}");
    assert_eq!((padding(1), padding(32), padding(224)), (0, 4, 28));
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

proptest! {
    #[test]
    fn a_choice_depends_on_the_generator_alone(sample: u64, width in 1u32..500, height in 1u32..500, side in 1u32..99) {
        for augment in [Augment::None, Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip] {
            let again = || draw(augment, &mut rng(sample), (width, height), (side, side));
            prop_assert_eq!(again(), again());
        }
    }
}
