#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::super::test_images::gradient;
use super::*;

/// The square's pixels, gathered from the window.
fn square(fitter: &mut Fitter, rgb: &[u8], size: (u32, u32), side: usize) -> Vec<u8> {
    let window = fitter.fit(rgb, size, side).unwrap();
    (0..side)
        .flat_map(|y| window.pixels[y * window.row_bytes..][..3 * side].to_vec())
        .collect()
}

#[test]
fn what_fits_is_not_resampled() {
    let mut fitter = Fitter::default();
    let image = gradient(8, 8);
    assert_eq!(square(&mut fitter, &image, (8, 8), 8), image.to_vec());
    // 11 wide: 3 too many, of which torchvision cuts 2 on the left.
    let wide = gradient(11, 8);
    let got = square(&mut fitter, &wide, (11, 8), 8);
    assert_eq!(got.len(), 8 * 8 * 3);
    for (at, pixel) in got.chunks(3).enumerate() {
        assert_eq!(pixel, wide.get_pixel(2 + at as u32 % 8, at as u32 / 8).0);
    }
    assert_eq!(fitter.square.capacity(), 0, "nothing was resampled");
}

#[test]
fn cuts_agree_with_torchvision() {
    // int(round((scaled - size) / 2)) in Python, for differences 0 to 8.
    let expected = [0, 0, 1, 2, 2, 2, 3, 4, 4];
    assert_eq!(std::array::from_fn(|n| half_to_even(n as u32)), expected);
    let plan = Plan::new(999, 960, 224);
    assert_eq!((plan.scaled, plan.left, plan.top), ((233, 224), 4, 0));
    let plan = Plan::new(100, 333, 32);
    assert_eq!((plan.scaled, plan.left, plan.top), ((32, 106), 0, 37));
}

#[test]
fn a_resized_cut_is_the_cut_of_the_resized() {
    // The box in the original must give what resizing everything and cutting then would.
    let image = gradient(97, 40);
    let plan = Plan::new(97, 40, 16);
    let source = ImageRef::new(97, 40, &image, PixelType::U8x3).unwrap();
    let mut whole = Image::new(plan.scaled.0, plan.scaled.1, PixelType::U8x3);
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear));
    Resizer::new().resize(&source, &mut whole, &options).unwrap();
    let got = square(&mut Fitter::default(), &image, (97, 40), 16);
    for y in 0..16usize {
        for x in 0..16usize {
            let at = 3 * ((y + plan.top as usize) * plan.scaled.0 as usize + x + plan.left as usize);
            for c in 0..3 {
                assert!(
                    got[3 * (16 * y + x) + c].abs_diff(whole.buffer()[at + c]) <= 1,
                    "{x},{y}"
                );
            }
        }
    }
}

#[test]
fn downscaling_averages_and_does_not_skip() {
    // Lines of one pixel, black and white: without antialiasing some squares would be all black.
    let lines: Vec<u8> = (0..64 * 64)
        .flat_map(|at| [if at % 2 == 0 { 0 } else { 255 }; 3])
        .collect();
    let got = square(&mut Fitter::default(), &lines, (64, 64), 16);
    assert!(
        got.iter().all(|&value| value.abs_diff(128) < 24),
        "{:?}",
        &got[..12]
    );
}

#[test]
fn normalised_planes_are_red_green_blue_and_flip_mirrors_rows() {
    let normalize = Normalize::new([0.5, 0.25, 0.0], [0.5, 0.25, 1.0]);
    let pixels = [255, 0, 51, 0, 255, 102, 0, 0, 0, 255, 255, 255];
    let window = Window {
        pixels: &pixels,
        row_bytes: 6,
    };
    let mut out = [9.0; 12];
    normalize.write(window, 2, false, &mut out);
    assert_eq!(
        out,
        [1.0, -1.0, -1.0, 1.0, -1.0, 3.0, -1.0, 3.0, 0.2, 0.4, 0.0, 1.0]
    );
    normalize.write(window, 2, true, &mut out);
    assert_eq!(
        out,
        [-1.0, 1.0, 1.0, -1.0, 3.0, -1.0, 3.0, -1.0, 0.4, 0.2, 1.0, 0.0]
    );
    assert_eq!(normalize.value(1, 1.0), 3.0);
}

proptest! {
    #[test]
    fn any_size_fits_any_square(width in 1u32..300, height in 1u32..300, side in 1usize..80) {
        let mut fitter = Fitter::default();
        let flat = vec![77u8; (3 * width * height) as usize];
        prop_assert!(square(&mut fitter, &flat, (width, height), side).iter().all(|&value| value == 77));
        let plan = Plan::new(width, height, side);
        prop_assert_eq!(plan.scaled.0.min(plan.scaled.1), side as u32);
        prop_assert!(plan.left + plan.size <= plan.scaled.0 && plan.top + plan.size <= plan.scaled.1);
    }

    #[test]
    fn very_long_images_fit(long in 20_000u32..65_535, side in 1usize..40, upright: bool) {
        let size = if upright { (1, long) } else { (long, 1) };
        let flat = vec![5u8; 3 * long as usize];
        prop_assert!(square(&mut Fitter::default(), &flat, size, side).iter().all(|&value| value == 5));
    }
}
