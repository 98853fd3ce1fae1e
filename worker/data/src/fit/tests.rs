#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;
use crate::tests::images::{bytes_of, gradient, reference};

/// Returns the square's pixels, gathered from the view.
fn square(fitter: &mut Fitter, rgb: &[u8], size: (u32, u32), side: u32) -> Vec<u8> {
    let image = picture(rgb, size);
    let frame = Frame::new(Resize::Crop, 1.0, size, (side, side)).unwrap();
    bytes(fitter.fit(&image, frame).unwrap())
}

fn picture(rgb: &[u8], (width, height): (u32, u32)) -> Raster {
    Raster { width, height, channels: 3, values: Values::U8(rgb.to_vec()) }
}

fn bytes(view: View<'_>) -> Vec<u8> {
    bytes_of(view.to_raster())
}

#[test]
fn an_image_of_the_right_size_is_not_resampled() {
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
    assert_eq!(fitter.values.len(), 0, "nothing was resampled");
}

#[test]
fn cuts_agree_with_torchvision() {
    // int(round((scaled - size) / 2)) in Python, for differences 0 to 8.
    let expected = [0, 0, 1, 2, 2, 2, 3, 4, 4];
    assert_eq!(std::array::from_fn(|n| half_to_even(n as u32)), expected);
    let plan = Crop::new(Resize::Crop, 1.0, (999, 960), (224, 224));
    assert_eq!((plan.scaled, plan.left, plan.top), ((233, 224), 4, 0));
    let plan = Crop::new(Resize::Crop, 1.0, (100, 333), (32, 32));
    assert_eq!((plan.scaled, plan.left, plan.top), ((32, 106), 0, 37));
    // Resize(256) and CenterCrop(224).
    let plan = Crop::new(Resize::Crop, 0.875, (500, 375), (224, 224));
    assert_eq!((plan.scaled, plan.left, plan.top), ((341, 256), 58, 16));
    // Resize((96, 96)) and CenterCrop(84).
    let plan = Crop::new(Resize::Stretch, 0.875, (500, 375), (84, 84));
    assert_eq!((plan.scaled, plan.left, plan.top), ((96, 96), 6, 6));
}

#[test]
fn cropping_and_resizing_commute() {
    // The box in the original must give the same as resizing everything and then cropping, as torchvision's Resize and RandomCrop.
    let (image, source) = (gradient(97, 40), (97, 40));
    let pixels: &[u8] = &image;
    let mut fitter = Fitter::default();
    for (resize_by, fraction, scaled) in [
        (Resize::Crop, 1.0, (38, 16)),
        (Resize::Crop, 0.8, (48, 20)),
        (Resize::Stretch, 0.8, (20, 20)),
        (Resize::Stretch, 1.0, (16, 16)),
    ] {
        let mut whole = vec![0; 3 * (scaled.0 * scaled.1) as usize];
        let all = Frame::rectangle((0, 0), source, scaled);
        let (from, to) = ((pixels, source), (&mut whole[..], scaled));
        resize(&mut Resizer::new(), Pixel::Rgb, from, to, (all.part, all.filter)).unwrap();
        let most = (scaled.0 - 16, scaled.1 - 16);
        for (place, left, top) in [
            (None, half_to_even(most.0), half_to_even(most.1)),
            (Some([0.0, 0.0]), 0, 0),
            (Some([0.999, 0.0]), most.0, 0),
            (Some([0.5, 0.999]), most.0.div_ceil(2), most.1),
        ] {
            let frame = Frame::placed(resize_by, fraction, source, (16, 16), place).unwrap();
            let got = bytes(fitter.fit(&picture(&image, source), frame).unwrap());
            for (at, pixel) in got.chunks(3).enumerate() {
                let (x, y) = (at as u32 % 16 + left, at as u32 / 16 + top);
                let wanted = &whole[3 * (y * scaled.0 + x) as usize..][..3];
                let is_near = pixel.iter().zip(wanted).all(|(one, other)| one.abs_diff(*other) <= 1);
                assert!(is_near, "{resize_by:?} {fraction} {place:?} {at}: {pixel:?} {wanted:?}");
            }
        }
    }
}

#[test]
fn downscaling_averages_and_does_not_skip() {
    // Lines of one pixel, black and white: without antialiasing some squares would be all black.
    let lines: Vec<u8> = (0..64 * 64).flat_map(|at| [if at % 2 == 0 { 0 } else { 255 }; 3]).collect();
    let got = square(&mut Fitter::default(), &lines, (64, 64), 16);
    assert!(got.iter().all(|&value| value.abs_diff(128) < 24), "{:?}", &got[..12]);
}

proptest! {
    #[test]
    fn any_size_fits_any_square(width in 1u32..300, height in 1u32..300, side in 1u32..80) {
        let mut fitter = Fitter::default();
        let flat = vec![77u8; (3 * width * height) as usize];
        prop_assert!(square(&mut fitter, &flat, (width, height), side).iter().all(|&value| value == 77));
        let plan = Crop::new(Resize::Crop, 1.0, (width, height), (side, side));
        prop_assert_eq!(plan.scaled.0.min(plan.scaled.1), side);
        prop_assert!(plan.left + side <= plan.scaled.0 && plan.top + side <= plan.scaled.1);
    }

    #[test]
    fn very_long_images_fit(long in 20_000u32..65_535, side in 1u32..40, upright: bool) {
        let size = if upright { (1, long) } else { (long, 1) };
        let flat = vec![5u8; 3 * long as usize];
        prop_assert!(square(&mut Fitter::default(), &flat, size, side).iter().all(|&value| value == 5));
    }
}

#[test]
fn stretch_shows_all_and_none_requires_the_size() {
    let image = picture(&gradient(64, 16), (64, 16));
    let frame = Frame::new(Resize::Stretch, 1.0, (64, 16), (8, 8)).unwrap();
    let got = bytes(Fitter::default().fit(&image, frame).unwrap());
    // Red grows from left to right over the whole width, green from top to bottom over the whole height.
    assert!(got[0] < 20 && got[3 * 7] > 225, "{} {}", got[0], got[3 * 7]);
    assert!(got[1] < 20 && got[3 * 56 + 1] > 220, "{} {}", got[1], got[3 * 56 + 1]);
    let frame = Frame::new(Resize::None, 1.0, (64, 16), (64, 16)).unwrap();
    assert_eq!(bytes(Fitter::default().fit(&image, frame).unwrap()), *gradient(64, 16));
    let text = Frame::new(Resize::None, 1.0, (64, 16), (64, 17)).unwrap_err().to_string();
    assert_eq!(text, "it has 64x16 pixels, expected 64x17; set data.resize = \"crop\" or \"stretch\"");
}

#[test]
fn a_cut_may_be_of_any_shape() {
    // 100x50 covers 20x30 when scaled by 0.6: 60x30; the frame shows the middle third.
    let crop = Crop::new(Resize::Crop, 1.0, (100, 50), (20, 30));
    assert_eq!((crop.scaled, crop.left, crop.top), ((60, 30), 20, 0));
    let frame = crop.frame((100, 50));
    let part = frame.part;
    assert!((part.left - 100.0 / 3.0).abs() < 1e-9 && (part.width - 100.0 / 3.0).abs() < 1e-9);
    assert_eq!((part.top, part.height), (0.0, 50.0));
}

#[test]
fn planes_are_resized_as_pictures_are() {
    // The three planes of a picture as data must become the same as the picture, up to rounding.
    let image = gradient(50, 41);
    let frame = Frame::new(Resize::Crop, 1.0, (50, 41), (16, 16)).unwrap();
    let expected = bytes(Fitter::default().fit(&picture(&image, (50, 41)), frame).unwrap());
    let plane = |c: usize| image.iter().skip(c).step_by(3).copied();
    let planes: Vec<u8> = [0, 1, 2, 0].into_iter().flat_map(plane).collect();
    let of = |values: Values| Raster { width: 50, height: 41, channels: 4, values };
    let mut fitter = Fitter::default();
    let small = of(Values::U8(planes.clone()));
    let view = fitter.fit(&small, frame).unwrap();
    assert_eq!((view.width, view.height, view.channels), (16, 16, 4));
    let got = bytes(view);
    let floats = of(Values::F32(planes.iter().map(|&value| f32::from(value)).collect()));
    let Values::F32(exact) = fitter.fit(&floats, frame).unwrap().to_raster().values else {
        panic!("floating-point values stay what they are");
    };
    for (at, pixel) in expected.chunks(3).enumerate() {
        for (place, c) in [0, 1, 2, 0].into_iter().enumerate() {
            let at = place * 256 + at;
            assert!(got[at].abs_diff(pixel[c]) <= 1 && (exact[at] - f32::from(pixel[c])).abs() <= 1.0);
        }
    }
    // A cut of planes is not resampled.
    let frame = Frame::rectangle((3, 5), (7, 9), (7, 9));
    let cut = bytes(fitter.fit(&small, frame).unwrap());
    assert_eq!(cut[0], planes[5 * 50 + 3]);
    assert_eq!(cut[7 * 9], planes[50 * 41 + 5 * 50 + 3]);
}

#[test]
fn masks_take_the_nearest_pixel() {
    let mask = Labels { width: 4, height: 2, values: vec![1, 2, 3, 4, 5, 6, 7, 8] };
    let fitted = |frame| fit_labels(&mask, frame).values;
    assert_eq!(fitted(Frame::rectangle((0, 0), (4, 2), (4, 2))), mask.values);
    assert_eq!(fitted(Frame::rectangle((0, 0), (4, 2), (2, 1))), [6, 8]);
    assert_eq!(fitted(Frame::rectangle((1, 0), (2, 1), (4, 2))), [2, 2, 3, 3, 2, 2, 3, 3]);
    let cut = Frame::new(Resize::Crop, 1.0, (4, 2), (2, 2)).unwrap();
    assert_eq!(fitted(cut), [2, 3, 6, 7]);
}

#[test]
fn a_part_is_cut_out_and_then_resized_as_in_torchvision() {
    let folder = reference("pictures");
    let read = |name: &str| image::open(folder.join(name)).unwrap().to_rgb8();
    let cases: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(folder.join("crops.json")).unwrap()).unwrap();
    let source = read("crops.png");
    let size = source.dimensions();
    let image = picture(&source, size);
    let plane = |c: usize| source.iter().skip(c).step_by(3).copied();
    let planes: Vec<u8> = [0, 1, 2, 0].into_iter().flat_map(plane).collect();
    let planes = Raster { width: size.0, height: size.1, channels: 4, values: Values::U8(planes) };
    let mut fitter = Fitter::default();
    for (number, case) in cases.iter().enumerate() {
        let pair = |key: &str| {
            let number = |at: usize| case[key][at].as_u64().unwrap() as u32;
            (number(0), number(1))
        };
        let frame = Frame::rectangle(pair("corner"), pair("size"), pair("target"));
        let bicubic = read(&format!("bicubic-{number}.png"));
        let cubic = bytes(fitter.fit(&image, frame.by(Filter::Bicubic)).unwrap());
        let expected = read(&format!("crop-{number}.png"));
        let got = bytes(fitter.fit(&image, frame).unwrap());
        let off =
            |got: &[u8], expected: &[u8]| std::iter::zip(got, expected).map(|(a, b)| a.abs_diff(*b)).max();
        assert!(off(&got, &expected) <= Some(1), "{case}: off by {:?}", off(&got, &expected));
        assert!(off(&cubic, &bicubic) <= Some(1), "{case}: bicubic off by {:?}", off(&cubic, &bicubic));
        let green: Vec<u8> = expected.iter().skip(1).step_by(3).copied().collect();
        let got = bytes(fitter.fit(&planes, frame).unwrap());
        assert!(off(&got[green.len()..2 * green.len()], &green) <= Some(1), "{case}");
    }
    assert_eq!(cases.len(), 7);
}

proptest! {
    #[test]
    fn labels_return_to_where_they_came_from(
        width in 1u32..20,
        height in 1u32..20,
        more in (0u32..30, 0u32..30),
        fraction in 0.3f64..1.0,
        crops in any::<bool>(),
    ) {
        let (target, source) = ((width, height), (width + more.0, height + more.1));
        let resize = if crops { Resize::Crop } else { Resize::Stretch };
        let frame = Frame::new(resize, fraction, source, target).unwrap();
        let values: Vec<u16> = (0..(width * height) as u16).collect();
        let labels = Labels { width, height, values };
        let back = unfit_labels(&labels, frame, source, u16::MAX);
        prop_assert_eq!((back.width, back.height), source);
        let all = Frame::new(Resize::Stretch, 1.0, source, target).unwrap();
        prop_assert!(!unfit_labels(&labels, all, source, u16::MAX).values.contains(&u16::MAX));
        // At the same size, rounding may take the neighbour.
        let is_larger = |part: f64, pixels: u32| part > 1.01 * f64::from(pixels);
        if is_larger(frame.part.width, width) && is_larger(frame.part.height, height) {
            prop_assert_eq!(fit_labels(&back, frame), labels);
        }
    }
}
