//! Parts and smaller sizes of JPEG files, against the general decoder.

use dtrain_resize::Rectangle;
use libjpeg_turbo_rs::{Decoder, Encoder, PixelFormat, ScalingFactor, Subsampling};

use super::*;
use crate::decode::jpeg::sequential;
use crate::rng::{Domain, below, keyed};

/// A file of noise over a slope, with its settings by number.
#[derive(Debug, Clone)]
struct Case {
    size: (usize, usize),
    colours: usize,
    quality: u8,
    restart: u16,
    is_progressive: bool,
    has_own_codes: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let sizes = (1usize..60, 1usize..50);
    (sizes, 0usize..5, 1u8..=100, 0u16..4, prop::bool::weighted(0.15), any::<bool>()).prop_map(
        |(size, colours, quality, restart, is_progressive, has_own_codes)| Case {
            size,
            colours,
            quality,
            restart,
            is_progressive,
            has_own_codes,
        },
    )
}

const COLOURS: [Subsampling; 5] =
    [Subsampling::S444, Subsampling::S422, Subsampling::S420, Subsampling::S440, Subsampling::S411];

impl Case {
    fn file(&self) -> Vec<u8> {
        let mut rng = keyed(Domain::User, 1, self.size.0 as u64, self.size.1 as u64);
        let noise = 1 + u32::from(self.quality);
        let pixels: Vec<u8> = (0..3 * self.size.0 * self.size.1)
            .map(|at| (at as u32 / 7 + below(&mut rng, noise)) as u8)
            .collect();
        Encoder::new(&pixels, self.size.0, self.size.1, PixelFormat::Rgb)
            .quality(self.quality)
            .subsampling(COLOURS[self.colours])
            .restart_blocks(self.restart)
            .progressive(self.is_progressive)
            .optimize_huffman(self.has_own_codes)
            .encode()
            .unwrap()
    }

    /// Returns whether the fast decoder reads it at this part of its size.
    fn is_common(&self, denominator: u32) -> bool {
        let is_large = self.size.0 >= 16 && self.size.1 >= 16;
        !self.is_progressive && is_large && matches!((self.colours, denominator), (0 | 2, _) | (1, 1))
    }
}

/// Returns the pixels of the general decoder, and the size.
fn general(bytes: &[u8], denominator: u32) -> Option<(Vec<u8>, (u32, u32))> {
    let mut decoder = Decoder::new(bytes).ok()?;
    decoder.set_output_format(PixelFormat::Rgb);
    decoder.set_scale(ScalingFactor::new(1, denominator));
    let image = decoder.decode_image().ok()?;
    Some((image.data, (image.width as u32, image.height as u32)))
}

/// Cuts a rectangle, in parts of 1000, out of RGB pixels.
fn cut(pixels: &[u8], size: (u32, u32), part: Rectangle) -> Vec<u8> {
    let rows = part.top..part.top + part.height;
    let row = |y: u32| {
        let start = 3 * (y * size.0 + part.left) as usize;
        pixels[start..start + 3 * part.width as usize].to_vec()
    };
    rows.flat_map(row).collect()
}

pub(super) fn rectangle(size: (u32, u32), corners: [prop::sample::Index; 4]) -> Rectangle {
    let [left, top] = [corners[0].index(size.0 as usize) as u32, corners[1].index(size.1 as usize) as u32];
    let side = |corner: prop::sample::Index, left: u32| corner.index(left as usize) as u32 + 1;
    Rectangle { left, top, width: side(corners[2], size.0 - left), height: side(corners[3], size.1 - top) }
}

proptest! {
    // Encoders and decoders are not optimised in tests.
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn parts_are_those_of_the_whole_at_every_scale(
        case in cases(), scale in 0u32..4, corners: [prop::sample::Index; 4]
    ) {
        let (bytes, denominator) = (case.file(), 1 << scale);
        let (whole, size) = general(&bytes, denominator).unwrap();
        let part = rectangle(size, corners);
        for (part, expected) in [(None, whole.clone()), (Some(part), cut(&whole, size, part))] {
            let extent = Extent { denominator, part };
            prop_assert_eq!(possible(&bytes, 3, extent).unwrap(), extent);
            let mut found = Raster::default();
            super::super::part(&bytes, 3, extent, &mut Vec::new(), &mut found).unwrap();
            let sides = part.map_or(size, |part| (part.width, part.height));
            prop_assert_eq!((found.width, found.height), sides);
            prop_assert!(found.values == Values::U8(expected), "{:?}", part);
            let mut out = vec![0; 3 * (sides.0 * sides.1) as usize];
            let is_fast = sequential::decode(&bytes, extent, &mut out).is_some();
            prop_assert_eq!(is_fast, case.is_common(denominator));
        }
    }

    /// Damage that the fast decoder does not see has no effect on the pixels.
    #[test]
    fn the_fast_decoder_accepts_what_the_general_one_reads_alike(
        case in cases(), places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut: prop::sample::Index
    ) {
        let mut bytes = case.file();
        for (place, value) in places {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let keep = cut.index(8 * bytes.len()).min(bytes.len());
        bytes.truncate(keep);
        let mut out = vec![0; 3 * 128 * 128];
        let size = super::super::header(&bytes, 3);
        let Some((width, height)) = size.ok().filter(|&(width, height)| width <= 128 && height <= 128) else { return Ok(()) };
        let out = &mut out[..3 * (width * height) as usize];
        if sequential::decode(&bytes, Extent::WHOLE, out).is_some() {
            let (pixels, size) = general(&bytes, 1).unwrap();
            prop_assert_eq!(size, (width, height));
            prop_assert!(*out == pixels[..], "other pixels");
        }
    }
}

/// A damaged file has no smaller size, so its pixels are averaged; its parts are those of the whole.
#[test]
fn damaged_files_have_parts_and_smaller_sizes() {
    let case = Case {
        size: (64, 48),
        colours: 2,
        quality: 90,
        restart: 0,
        is_progressive: false,
        has_own_codes: false,
    };
    let mut bytes = case.file();
    let middle = bytes.len() * 2 / 3;
    // No code is of ones alone; 0 follows each byte of them.
    bytes[middle..middle + 40].chunks_exact_mut(2).for_each(|pair| pair.copy_from_slice(&[0xff, 0]));
    assert!(general(&bytes, 1).is_none());
    let read = |extent| {
        let mut found = Raster::default();
        super::super::part(&bytes, 3, extent, &mut Vec::new(), &mut found).unwrap();
        let Values::U8(values) = found.values else { panic!("bytes") };
        (values, (found.width, found.height))
    };
    let (whole, size) = read(Extent::WHOLE);
    let part = Rectangle { left: 5, top: 30, width: 21, height: 9 };
    assert_eq!(read(Extent { denominator: 1, part: Some(part) }).0, cut(&whole, size, part));
    let (half, of_half) = read(Extent { denominator: 2, part: None });
    assert_eq!(of_half, (32, 24));
    let sum: u32 = [0, 3, 192, 195].into_iter().map(|at| u32::from(whole[at])).sum();
    assert_eq!(u32::from(half[0]), (sum + 2) / 4);
}

#[test]
fn smaller_sizes_equal_those_of_pillow() {
    let mut cases = 0;
    for bytes in std::fs::read_dir(reference("jpeg")).unwrap().map(|entry| entry.unwrap().path()) {
        for denominator in [2, 4, 8] {
            let scaled = bytes.with_extension(format!("{denominator}.png"));
            let Ok(expected) = image::open(&scaled) else { continue };
            let expected = expected.to_rgb8();
            let mut found = Raster::default();
            let file = std::fs::read(bytes.with_extension("jpg")).unwrap();
            let extent = Extent { denominator, part: None };
            super::super::part(&file, 3, extent, &mut Vec::new(), &mut found).unwrap();
            assert_eq!((found.width, found.height), expected.dimensions(), "{}", scaled.display());
            assert!(found.values == Values::U8(expected.into_raw()), "{}", scaled.display());
            cases += 1;
        }
    }
    assert!(cases >= 15, "{cases} cases");
}
