#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use std::sync::Arc;

use super::super::pixels::Pixels;
use super::super::raster::{Labels, Raster, Values};
use super::*;

const FLIP: Placement = Placement { left: 0, top: 0, flip: true };

/// Returns an image as a model takes it.
fn written(normalize: &Normalize, image: &Raster, placement: Placement) -> Vec<f32> {
    let plane = (image.width * image.height) as usize;
    let mut pixels = Pixels::new(Arc::new(normalize.clone()), plane, plane * image.channels);
    pixels.write(image.view(), placement);
    pixels.to_f32().into_owned()
}

fn raster(width: u32, height: u32, channels: usize, values: Values) -> Raster {
    Raster { width, height, channels, values }
}

#[test]
fn normalised_planes_are_red_green_blue_and_flip_mirrors_rows() {
    let normalize = Normalize::new(&[0.5, 0.25, 0.0], &[0.5, 0.25, 1.0]);
    let pixels = vec![255, 0, 51, 0, 255, 102, 0, 0, 0, 255, 255, 255];
    let image = raster(2, 2, 3, Values::U8(pixels));
    let out = written(&normalize, &image, Placement::default());
    assert_eq!(out, [1.0, -1.0, -1.0, 1.0, -1.0, 3.0, -1.0, 3.0, 0.2, 0.4, 0.0, 1.0]);
    let out = written(&normalize, &image, FLIP);
    assert_eq!(out, [-1.0, 1.0, 1.0, -1.0, 3.0, -1.0, 3.0, -1.0, 0.4, 0.2, 1.0, 0.0]);
    assert_eq!(normalize.value(1, 1.0), 3.0);
}

#[test]
fn data_in_planes_is_normalised_by_channel() {
    let normalize = Normalize::new(&[0.0, 1.0], &[1.0, 2.0]);
    let floats = raster(2, 1, 2, Values::F32(vec![5.0, -1.0, 3.0, 7.0]));
    let out = written(&normalize, &floats, Placement::default());
    assert_eq!(out, [5.0, -1.0, 1.0, 3.0]);
    let out = written(&normalize, &floats, FLIP);
    assert_eq!(out, [-1.0, 5.0, 3.0, 1.0]);
    let bytes = raster(2, 1, 2, Values::U8(vec![255, 0, 255, 0]));
    let out = written(&normalize, &bytes, FLIP);
    assert_eq!(out, [0.0, 1.0, -0.5, 0.0]);
}

#[test]
fn a_shift_brings_in_black() {
    let normalize = Normalize::new(&[0.5; 3], &[0.5; 3]);
    let image = raster(2, 2, 3, Values::U8(vec![255; 12]));
    let right_and_down = Placement { left: 1, top: 1, flip: false };
    let out = written(&normalize, &image, right_and_down);
    assert_eq!(out[..4], [1.0, -1.0, -1.0, -1.0]);
    let left_and_mirrored = Placement { left: -1, top: 0, flip: true };
    let out = written(&normalize, &image, left_and_mirrored);
    assert_eq!(out[..4], [1.0, -1.0, 1.0, -1.0]);
    let out_of_sight = Placement { left: 7, top: -7, flip: true };
    let out = written(&normalize, &image, out_of_sight);
    assert_eq!(out, [-1.0; 12]);
}

proptest! {
    /// Every value of the result is as defined, in all three layouts, and the mask moves along.
    #[test]
    fn a_placement_is_what_it_says(width in 1u32..9, height in 1u32..9, left in -10i32..11, top in -10i32..11, flip: bool, rgb: bool) {
        let placement = Placement { left, top, flip };
        let (w, h) = (width as usize, height as usize);
        let at = |x: usize, y: usize, c: usize| (1 + x + 9 * y + 81 * c) as u8;
        let interleaved: Vec<u8> = (0..h).flat_map(|y| (0..w).flat_map(move |x| (0..3).map(move |c| at(x, y, c)))).collect();
        let planar: Vec<f32> = (0..3).flat_map(|c| (0..h).flat_map(move |y| (0..w).map(move |x| f32::from(at(x, y, c)) / 255.0))).collect();
        let values = if rgb { Values::U8(interleaved) } else { Values::F32(planar) };
        let out = written(&Normalize::new(&[0.0; 3], &[1.0; 3]), &raster(width, height, 3, values), placement);
        let values: Vec<u16> = (0..h).flat_map(|y| (0..w).map(move |x| u16::from(at(x, y, 0)))).collect();
        let mut labels = vec![-9; w * h];
        Labels { width, height, values }.write(placement, 255, &mut labels);
        for y in 0..h {
            for x in 0..w {
                let source = (if flip { w - 1 - x } else { x } as i32 + left, y as i32 + top);
                let inside = (0..w as i32).contains(&source.0) && (0..h as i32).contains(&source.1);
                for c in 0..3 {
                    let expected = if inside { f32::from(at(source.0 as usize, source.1 as usize, c)) } else { 0.0 };
                    prop_assert!((out[(c * h + y) * w + x] * 255.0 - expected).abs() < 1e-3);
                }
                let expected = if inside { i64::from(at(source.0 as usize, source.1 as usize, 0)) } else { 255 };
                prop_assert_eq!(labels[y * w + x], expected);
            }
        }
    }
}
