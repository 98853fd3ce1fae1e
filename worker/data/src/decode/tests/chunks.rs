//! Rectangles of tiled and striped TIFF files, against the whole.

use dtrain_resize::Rectangle;

use super::*;

/// A file in tiles or strips.
#[derive(Debug, Clone)]
struct Case {
    size: (u32, u32),
    bands: u32,
    /// The bits of a value, and 1 for unsigned numbers or 3 for floating-point numbers.
    kind: (u16, u16),
    /// The size of a tile, or the rows of a strip.
    chunk: (u32, u32),
    is_tiled: bool,
    is_planar: bool,
}

fn cases() -> impl Strategy<Value = Case> {
    let kinds = prop::sample::select(vec![(8, 1), (16, 1), (16, 3), (32, 3), (64, 3)]);
    let chunks = (prop::sample::select(vec![16u32, 32]), prop::sample::select(vec![16u32, 48]), 1u32..9);
    (
        (1u32..70, 1u32..70),
        prop::sample::select(vec![1u32, 3, 4, 5]),
        kinds,
        chunks,
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(size, bands, kind, (width, height, rows), is_tiled, is_planar)| Case {
            size,
            bands,
            kind,
            chunk: if is_tiled { (width, height) } else { (size.0, rows) },
            is_tiled,
            // One band has no planes.
            is_planar: is_planar && bands > 1,
        })
}

impl Case {
    fn value(&self, x: u32, y: u32, band: u32) -> Vec<u8> {
        let value = x * 7 + y * 31 + band * 101;
        match self.kind {
            (8, _) => vec![value as u8],
            (16, 1) => (value as u16 * 3).to_le_bytes().to_vec(),
            // Halves from 1 to 2.
            (16, _) => (0x3c00 | (value as u16 % 1024)).to_le_bytes().to_vec(),
            (32, _) => (value as f32 / 3.0).to_le_bytes().to_vec(),
            _ => (f64::from(value) / 7.0).to_le_bytes().to_vec(),
        }
    }

    fn file(&self) -> Vec<u8> {
        let (width, height) = self.size;
        let (across, down) = (width.div_ceil(self.chunk.0), height.div_ceil(self.chunk.1));
        let (mut out, mut offsets, mut lengths) = (b"II\x2a\0\0\0\0\0".to_vec(), Vec::new(), Vec::new());
        let planes: Vec<Vec<u32>> = match self.is_planar {
            true => (0..self.bands).map(|band| vec![band]).collect(),
            false => vec![(0..self.bands).collect()],
        };
        for bands in &planes {
            for number in 0..across * down {
                let (left, top) = (number % across * self.chunk.0, number / across * self.chunk.1);
                // The last strip is shorter; tiles are filled up.
                let bottom =
                    if self.is_tiled { top + self.chunk.1 } else { (top + self.chunk.1).min(height) };
                let start = out.len();
                for (y, x) in (top..bottom).flat_map(|y| (left..left + self.chunk.0).map(move |x| (y, x))) {
                    bands.iter().for_each(|&band| out.extend(self.value(x, y, band)));
                }
                offsets.push(start as u32);
                lengths.push((out.len() - start) as u32);
            }
        }
        let each = |value: u16| vec![u32::from(value); self.bands as usize];
        let (at, sizes) = if self.is_tiled { (324, 325) } else { (273, 279) };
        let mut entries = vec![
            (256, vec![width]),
            (257, vec![height]),
            (258, each(self.kind.0)),
            (259, vec![1]),
            (262, vec![1]),
            (at, offsets),
            (277, vec![self.bands]),
            (sizes, lengths),
            (284, vec![if self.is_planar { 2 } else { 1 }]),
            (339, each(self.kind.1)),
        ];
        match self.is_tiled {
            true => entries.extend([(322, vec![self.chunk.0]), (323, vec![self.chunk.1])]),
            false => entries.push((278, vec![self.chunk.1])),
        }
        if self.bands > 1 {
            entries.push((338, vec![0; self.bands as usize - 1]));
        }
        entries.sort();
        let mut fields = Vec::new();
        for (tag, values) in &entries {
            // The entry itself has short lists of short numbers.
            let is_long = values.len() > 1 || matches!(tag, 273 | 279 | 324 | 325);
            let field = match (is_long, values.len()) {
                (false, _) => values[0],
                (true, 1) => values[0],
                _ => {
                    let start = out.len() as u32;
                    values.iter().for_each(|value| out.extend(value.to_le_bytes()));
                    start
                }
            };
            fields.push((*tag as u16, values.len() as u32, field));
        }
        let directory = (out.len() as u32).to_le_bytes();
        out[4..8].copy_from_slice(&directory);
        out.extend((fields.len() as u16).to_le_bytes());
        for (tag, count, field) in fields {
            out.extend(tag.to_le_bytes());
            out.extend(4u16.to_le_bytes());
            out.extend(count.to_le_bytes());
            out.extend(field.to_le_bytes());
        }
        out.extend([0; 4]);
        out
    }
}

fn read(bytes: &[u8], channels: usize, extent: Extent) -> Raster {
    let mut found = Raster { values: Values::F32(vec![7.0; 9]), ..Raster::default() };
    super::super::part(bytes, channels, extent, &mut Vec::new(), &mut found).unwrap();
    found
}

proptest! {
    #[test]
    fn rectangles_of_tiles_and_strips_are_those_of_the_whole(case in cases(), corners: [prop::sample::Index; 4]) {
        let (bytes, channels) = (case.file(), case.bands as usize);
        let part = jpegs::rectangle(case.size, corners);
        let extent = Extent { denominator: 1, part: Some(part) };
        // Three bands of data are no picture.
        if channels == 3 {
            prop_assert_eq!(possible(&bytes, channels, extent).unwrap(), Extent::WHOLE);
            return Ok(());
        }
        prop_assert_eq!(possible(&bytes, channels, extent).unwrap(), extent);
        let whole = read(&bytes, channels, Extent::WHOLE);
        prop_assert_eq!((whole.width, whole.height), case.size);
        if let Values::U8(values) = &whole.values {
            let (width, height) = case.size;
            let places = (0..case.bands).flat_map(|band| (0..height).map(move |y| (band, y)));
            let expected = places.flat_map(|(band, y)| (0..width).map(move |x| (x, y, band)));
            let expected: Vec<u8> = expected.flat_map(|(x, y, band)| case.value(x, y, band)).collect();
            prop_assert!(*values == expected, "the whole");
        }
        let cut = whole.view().part(part.left as usize, part.top as usize, part.width as usize, part.height as usize);
        let cut = cut.to_raster();
        prop_assert!(cut == read(&bytes, channels, extent), "{:?}", part);
    }
}

#[test]
fn rectangles_of_pictures_are_those_of_the_whole() {
    let bytes = encoded(gradient(40, 30), ImageFormat::Tiff);
    let part = Rectangle { left: 5, top: 20, width: 31, height: 7 };
    let extent = Extent { denominator: 1, part: Some(part) };
    assert_eq!(possible(&bytes, 3, extent).unwrap(), extent);
    assert_eq!(read(&bytes, 3, extent), read(&bytes, 3, Extent::WHOLE).view().part(5, 20, 31, 7).to_raster());
}

/// Only tiles that a rectangle touches are read: damage in others is not seen.
#[test]
fn other_tiles_are_not_read() {
    let case =
        Case { size: (64, 64), bands: 4, kind: (32, 3), chunk: (16, 16), is_tiled: true, is_planar: false };
    let mut bytes = case.file();
    // The first value of the last tile becomes infinite.
    bytes[8 + 15 * 16 * 16 * 16..][..4].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let read = |part| {
        let extent = Extent { denominator: 1, part };
        super::super::part(&bytes, 4, extent, &mut Vec::new(), &mut Raster::default())
            .map_err(|error| error.to_string())
    };
    let rectangle = |left| Some(Rectangle { left, top: 30, width: 16, height: 30 });
    assert!(read(None).is_err() && read(rectangle(10)).is_ok());
    // The place is that in the file.
    let error = read(rectangle(40)).unwrap_err();
    assert!(error.contains("48") && error == read(None).unwrap_err(), "{error}");
}
