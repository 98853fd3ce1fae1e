//! TIFF files for tests.

/// A TIFF file of one strip for each plane, made by hand: the encoder writes neither planes nor many bands.
pub(super) struct Tiff<'a> {
    pub(super) width: u16,
    pub(super) height: u16,
    pub(super) bands: u16,
    pub(super) bits: u16,
    /// 1 unsigned, 2 signed, 3 floating-point.
    pub(super) format: u16,
    /// 1 grey, 2 RGB, 5 CMYK.
    pub(super) photometric: u16,
    pub(super) planar: bool,
    pub(super) big_endian: bool,
    /// The samples in the order of the file.
    pub(super) samples: &'a [u8],
}

impl Tiff<'_> {
    pub(super) fn bytes(&self) -> Vec<u8> {
        let short = |value: u16| {
            if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
        };
        let long = |value: u32| {
            if self.big_endian { value.to_be_bytes() } else { value.to_le_bytes() }
        };
        let strips = if self.planar { u32::from(self.bands) } else { 1 };
        let strip_bytes = self.samples.len() as u32 / strips;
        // Lists of more than one value are behind the pixels.
        let first = 8;
        let lists = first + self.samples.len() as u32;
        let mut tail = Vec::new();
        let mut entries: Vec<(u16, u16, u32, [u8; 4])> = Vec::new();
        let mut add = |tag: u16, values: &[u32], is_long: bool| {
            let one: Vec<u8> = values
                .iter()
                .flat_map(|&value| if is_long { long(value).to_vec() } else { short(value as u16).to_vec() })
                .collect();
            let mut field = [0; 4];
            if one.len() <= 4 {
                field[..one.len()].copy_from_slice(&one);
            } else {
                field = long(lists + tail.len() as u32);
                tail.extend(&one);
            }
            entries.push((tag, if is_long { 4 } else { 3 }, values.len() as u32, field));
        };
        let each = |value: u16| vec![u32::from(value); usize::from(self.bands)];
        let colors = match self.photometric {
            2 => 3,
            5 => 4,
            _ => 1,
        };
        add(256, &[u32::from(self.width)], false);
        add(257, &[u32::from(self.height)], false);
        add(258, &each(self.bits), false);
        add(259, &[1], false);
        add(262, &[u32::from(self.photometric)], false);
        let offsets: Vec<u32> = (0..strips).map(|strip| first + strip * strip_bytes).collect();
        add(273, &offsets, true);
        add(277, &[u32::from(self.bands)], false);
        add(278, &[u32::from(self.height)], false);
        add(279, &vec![strip_bytes; strips as usize], true);
        add(284, &[if self.planar { 2 } else { 1 }], false);
        if self.bands > colors {
            add(338, &vec![0; usize::from(self.bands - colors)], false);
        }
        add(339, &each(self.format), false);
        let mut out = if self.big_endian { b"MM".to_vec() } else { b"II".to_vec() };
        out.extend(short(42));
        out.extend(long(lists + tail.len() as u32));
        out.extend(self.samples);
        out.extend(&tail);
        out.extend(short(entries.len() as u16));
        for (tag, kind, count, field) in entries {
            out.extend(short(tag));
            out.extend(short(kind));
            out.extend(long(count));
            out.extend(field);
        }
        out.extend(long(0));
        out
    }
}

/// Makes a little-endian file of 2x1 pixels.
pub(super) fn tiff<'a>(bands: u16, bits: u16, format: u16, photometric: u16, samples: &'a [u8]) -> Tiff<'a> {
    Tiff { width: 2, height: 1, bands, bits, format, photometric, planar: false, big_endian: false, samples }
}

pub(super) fn le<T: Copy, const N: usize>(values: &[T], bytes: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| bytes(value)).collect()
}
