#![allow(clippy::unwrap_used)]

use crate::changes::Changes;
use dtrain_recipe::Augment;

use super::super::dataset::{Dataset, load_one};
use super::super::normalize::Normalize;
use super::super::rng::keyed;
use super::*;

fn load(set: &GeneratedMasks, index: usize, random: Option<u64>) -> (Vec<f32>, Vec<i64>) {
    let mut rng = random.map(|epoch| keyed(Domain::Augment, 1, epoch, index as u64));
    let columns = load_one(set, index, rng.as_mut()).unwrap();
    (columns[0].as_f32().unwrap().to_vec(), columns[1].as_i64().unwrap().to_vec())
}

#[test]
fn images_depend_only_on_seed_split_and_number() {
    let set = GeneratedMasks::new(4, 50, 16, 1, Split::Train);
    let first = load(&set, 7, None);
    assert_eq!(first, load(&GeneratedMasks::new(4, 10, 16, 1, Split::Train), 7, None));
    assert_ne!(first, load(&GeneratedMasks::new(4, 50, 16, 2, Split::Train), 7, None));
    assert_ne!(first, load(&GeneratedMasks::new(4, 50, 16, 1, Split::Test), 7, None));
    assert_ne!(first, load(&set, 8, None));
    assert_eq!(first, load(&set, 7, Some(3)), "nothing is random unless asked for");
    assert_eq!(set.describe(7), "generated training image 7");
}

#[test]
fn ground_and_blobs_share_the_pixels() {
    let set = GeneratedMasks::new(5, 200, 24, 1, Split::Train);
    let mut counts = [0usize; 5];
    for index in 0..set.len() {
        for class in load(&set, index, None).1 {
            counts[usize::try_from(class).unwrap()] += 1;
        }
    }
    let total: usize = counts.iter().sum();
    assert!((0.4..0.9).contains(&(counts[0] as f64 / total as f64)), "{counts:?}");
    assert!(counts[1..].iter().all(|&count| count * 40 > total), "{counts:?}");
}

#[test]
fn colours_predict_the_classes_well() {
    // The nearest mean colour of a class, across splits: far above chance, so that there is something to
    // learn, but not perfect.
    let plain =
        |split| GeneratedMasks::new(4, 60, 24, 1, split).with_normalize(Normalize::new(&[0.0; 3], &[1.0; 3]));
    let pixel = |image: &[f32], at: usize| [image[at], image[576 + at], image[1152 + at]];
    let (mut sums, mut counts) = ([[0.0; 3]; 4], [0.0; 4]);
    let train = plain(Split::Train);
    for index in 0..60 {
        let (image, mask) = load(&train, index, None);
        for (at, &class) in mask.iter().enumerate() {
            let class = class as usize;
            counts[class] += 1.0;
            sums[class].iter_mut().zip(pixel(&image, at)).for_each(|(sum, value)| *sum += value);
        }
    }
    let test = plain(Split::Test);
    let mut right = 0;
    for index in 0..60 {
        let (image, mask) = load(&test, index, None);
        for (at, &class) in mask.iter().enumerate() {
            let color = pixel(&image, at);
            let distance = |other: usize| -> f32 {
                (0..3).map(|c| (sums[other][c] / counts[other] - color[c]).powi(2)).sum()
            };
            let best = (0..4).min_by(|&a, &b| distance(a).total_cmp(&distance(b))).unwrap();
            right += usize::from(best as i64 == class);
        }
    }
    let share = right as f64 / (60.0 * 576.0);
    println!("{share}");
    assert!((0.6..0.995).contains(&share), "{share}");
}

#[test]
fn the_mask_goes_where_the_image_goes() {
    for augment in [Augment::Flip, Augment::CropFlip, Augment::ResizedCropFlip] {
        let black = |index: usize| {
            let set = GeneratedMasks::new(3, 20, 32, 1, Split::Train)
                .with_normalize(Normalize::new(&[0.0; 3], &[1.0; 3]))
                .with_changes(Changes::new(&augment.changes()))
                .with_ignore(-1);
            load(&set, index, Some(5))
        };
        let mut outside = 0;
        for index in 0..20 {
            let (image, mask) = black(index);
            for (at, &class) in mask.iter().enumerate() {
                assert!((-1..3).contains(&class));
                outside += usize::from(class == -1);
                assert!(class != -1 || image[at] == 0.0);
            }
        }
        assert_eq!(outside > 0, augment == Augment::CropFlip);
    }
}
