#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;

use crate::changes::Changes;
use dtrain_recipe::Augment;
use proptest::prelude::*;

use super::super::dataset::{Column, Dataset, load_one};
use super::super::normalize::Normalize;
use super::*;

fn load(set: &Generated, index: usize) -> Vec<f32> {
    load_with(set, index, None)
}

fn load_with(set: &Generated, index: usize, random: Option<&mut SampleRng>) -> Vec<f32> {
    let columns = load_one(set, index, random).unwrap();
    assert_eq!(columns[1], Column::I64(vec![i64::from(set.label(index))]));
    columns[0].as_f32().unwrap().to_vec()
}

fn set(classes: usize, samples: usize, size: usize, seed: u64, split: Split) -> Generated {
    Generated::new(classes, samples, size, seed, split).with_normalize(Normalize::new(&[0.0; 3], &[1.0; 3]))
}

#[test]
fn images_depend_only_on_seed_split_and_number() {
    let image = load(&set(10, 2000, 16, 1, Split::Train), 13);
    assert_eq!(image, load(&set(10, 100, 16, 1, Split::Train), 13), "nor on how many there are");
    assert_ne!(image, load(&set(10, 2000, 16, 2, Split::Train), 13));
    assert_ne!(image, load(&set(10, 2000, 16, 1, Split::Test), 13));
    assert_ne!(image, load(&set(10, 2000, 16, 1, Split::Train), 23), "of the same class");
    let set = set(10, 2000, 16, 1, Split::Train);
    load(&set, 77);
    assert_eq!(image, load(&set, 13), "nor on what was loaded before");
    assert_eq!(set.describe(13), "generated training image 13 (class 3)");
}

#[test]
fn the_augmentation_mirrors_the_same_image() {
    let set = set(3, 10, 8, 1, Split::Train).with_changes(Changes::new(&Augment::Flip.changes()));
    let upright = load(&set, 4);
    let mirrored: Vec<f32> = upright.chunks(8).flat_map(|row| row.iter().rev().copied()).collect();
    let mut seen = BTreeSet::new();
    for epoch in 0..20 {
        let out = load_with(&set, 4, Some(&mut keyed(Domain::Augment, 1, epoch, 4)));
        assert!(out == upright || out == mirrored);
        seen.insert(out == upright);
    }
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_thousand_classes_are_distinct() {
    let set = Generated::new(1000, 1000, 4, 1, Split::Train);
    let circle = |a: f32, b: f32| ((a - b + 0.5).rem_euclid(1.0) - 0.5).abs();
    let nearest = |a: &Class| {
        let others = set.painter.classes.iter().filter(|b| b.kind == a.kind && *b != a);
        others
            .map(|b| {
                let angle = circle(a.angle / PI, b.angle / PI);
                let waves = (a.waves / b.waves).ln().abs();
                angle.max(waves).max(circle(a.hue, b.hue)).max(circle(a.ground_hue, b.ground_hue))
            })
            .fold(f32::MAX, f32::min)
    };
    let closest = set.painter.classes.iter().map(nearest).fold(f32::MAX, f32::min);
    assert!(closest > 0.05, "{closest}");
}

#[test]
fn colours_are_what_they_are_called() {
    assert_eq!(rgb(0.0, 0.0, 0.5), [0.5; 3]);
    let near = |a: [f32; 3], b: [f32; 3]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5);
    assert!(near(rgb(0.0, 1.0, 1.0), [1.0, 0.0, 0.0]));
    assert!(near(rgb(1.0 / 6.0, 1.0, 1.0), [1.0, 1.0, 0.0]));
    assert!(near(rgb(5.0 / 3.0, 1.0, 0.8), [0.0, 0.0, 0.8]));
}

/// Classifies by the nearest class mean of some features, trained on one split and tested on the other.
fn accuracy(features: impl Fn(&[f32]) -> Vec<f32>) -> f32 {
    let (train, test) = (set(10, 600, 32, 1, Split::Train), set(10, 300, 32, 1, Split::Test));
    let mut means: Vec<Vec<f32>> = vec![Vec::new(); 10];
    for index in 0..600 {
        let found = features(&load(&train, index));
        let mean = &mut means[train.label(index) as usize];
        mean.resize(found.len(), 0.0);
        mean.iter_mut().zip(found).for_each(|(mean, value)| *mean += value / 60.0);
    }
    let right = (0..300).filter(|&index| {
        let found = features(&load(&test, index));
        let distance = |mean: &Vec<f32>| mean.iter().zip(&found).map(|(a, b)| (a - b) * (a - b)).sum::<f32>();
        let best = (0..10).min_by(|&a, &b| distance(&means[a]).total_cmp(&distance(&means[b])));
        best == Some(test.label(index) as usize)
    });
    right.count() as f32 / 300.0
}

#[test]
fn classes_are_separable_but_not_by_single_pixels() {
    let pixels = accuracy(<[f32]>::to_vec);
    // Histogram of the directions of slopes in brightness: like a simple first layer of a network.
    let slopes = accuracy(|image| {
        let grey: Vec<f32> = (0..1024).map(|at| image[at] + image[1024 + at] + image[2048 + at]).collect();
        let mut bins = [0.0; 8];
        for at in (0..30 * 32).filter(|at| at % 32 < 30) {
            let smooth = |at: usize| grey[at] + grey[at + 1] + grey[at + 32] + grey[at + 33];
            let (dx, dy) = (smooth(at + 1) - smooth(at), smooth(at + 32) - smooth(at));
            bins[((dy.atan2(dx) / PI).rem_euclid(1.0) * 8.0) as usize % 8] += dx.hypot(dy);
        }
        let total: f32 = bins.iter().sum();
        bins.iter().map(|bin| bin / total).collect()
    });
    println!("pixels {pixels}, slopes {slopes}");
    // Chance is 0.1, give or take 0.02. A ResNet-18 reaches 0.9 in four epochs of 2000 images.
    assert!((0.18..0.5).contains(&pixels), "by colours and places: {pixels}");
    assert!((0.18..0.5).contains(&slopes), "by directions: {slopes}");
}

proptest! {
    #[test]
    fn any_number_of_classes_and_any_size(classes in 1usize..1001, size in 1usize..40, seed: u64, index in 0usize..5000) {
        let set = set(classes, 5000, size, seed, Split::Test);
        prop_assert!(load(&set, index).iter().all(|value| (0.0..=1.0).contains(value)));
    }

    #[test]
    fn samples_are_balanced(classes in 1usize..50, samples in 0usize..500) {
        let set = Generated::new(classes, samples, 1, 1, Split::Train);
        let mut counts = vec![0usize; classes];
        for index in 0..set.len() {
            counts[set.label(index) as usize] += 1;
        }
        let most = counts.iter().max().copied().unwrap_or(0);
        prop_assert!(counts.iter().all(|&count| count + 1 >= most));
    }
}
