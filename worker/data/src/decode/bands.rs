//! TIFF files with any number of bands, read as numbers: satellite tiles, elevation, depth.

use std::borrow::Cow;
use std::io::Cursor;

use dtrain_resize::Rectangle;
use tiff::decoder::{ChunkType, Decoder, DecodingResult, DecodingSampleType, Limits};
use tiff::tags::{PlanarConfiguration, Tag};
use tiff::{ColorType, TiffError, TiffUnsupportedError};

use super::super::error::{Result, SampleError};
use super::super::raster::Raster;
use super::convert::{separate, unit16};
use super::directory::Directory;
use super::limits::{LIMIT_BYTES, check_size, truncated};

pub(super) struct Bands<'a> {
    pub(super) decoder: Decoder<Cursor<Cow<'a, [u8]>>>,
    pub(super) size: (u32, u32),
    pub(super) count: usize,
    /// The type of the values. 12-bit values do not fill theirs: `bits` has the true width.
    kind: Option<DecodingSampleType>,
    bits: u8,
    pub(super) planar: bool,
    /// Whether the file is a picture of 8 bits, without transparency.
    is_rgb8: bool,
}

impl<'a> Bands<'a> {
    pub(super) fn open(bytes: &'a [u8]) -> Result<Self> {
        let (bands, stated) = Self::read(Cow::Borrowed(bytes))?;
        match (bands.count < stated).then(|| as_grey(bytes)).flatten() {
            Some(patched) => Ok(Self::read(Cow::Owned(patched))?.0),
            None => Ok(bands),
        }
    }

    /// Opens a file of numbers for pixels: it has one band of a supported type. `several` is the error if it has more.
    pub(super) fn open_one(bytes: &'a [u8], several: fn(usize) -> SampleError) -> Result<Self> {
        let bands = Self::open(bytes)?;
        if bands.count != 1 {
            return Err(several(bands.count));
        }
        bands.check(1)?;
        Ok(bands)
    }

    /// Opens a file of one band, as [`Bands::open_one`]; integers may have 1, 2 or 4 bits.
    pub(super) fn open_mask(bytes: &'a [u8]) -> Result<Self> {
        let bands = Self::open(bytes)?;
        match (bands.count, bands.bits) {
            (1, 1 | 2 | 4) if bands.kind == Some(DecodingSampleType::U8) => {
                let (width, height) = bands.size;
                check_size(width, height, 2 * u64::from(width) * u64::from(height))?;
                Ok(bands)
            }
            (1, _) => bands.check(1).map(|()| bands),
            (count, _) => Err(SampleError::ColorMask(count)),
        }
    }

    /// Opens a file of `channels` bands of a supported type.
    pub(super) fn open_checked(bytes: &'a [u8], channels: usize) -> Result<Self> {
        let bands = Self::open(bytes)?;
        bands.check(channels)?;
        Ok(bands)
    }

    /// Opens the file; also returns the stated values of a pixel: the decoder ignores extra bands.
    fn read(bytes: Cow<'a, [u8]>) -> Result<(Self, usize)> {
        let mut limits = Limits::default();
        limits.decoding_buffer_size = LIMIT_BYTES as usize;
        limits.intermediate_buffer_size = LIMIT_BYTES as usize;
        let mut decoder = Decoder::new(Cursor::new(bytes)).map_err(damage)?.with_limits(limits);
        let size = decoder.dimensions().map_err(damage)?;
        let color = decoder.colortype().map_err(damage)?;
        let tag = |decoder: &mut Decoder<_>, tag| decoder.find_tag_unsigned::<u16>(tag).map_err(damage);
        let stated = tag(&mut decoder, Tag::SamplesPerPixel)?.map_or(1, usize::from);
        let planar = tag(&mut decoder, Tag::PlanarConfiguration)?;
        let layout = decoder.image_buffer_layout().map_err(damage)?;
        let planar = planar == Some(PlanarConfiguration::Planar.to_u16());
        let bands = Self {
            decoder,
            size,
            is_rgb8: color == ColorType::RGB(8) && stated == 3 && !planar,
            count: usize::from(color.num_samples()),
            kind: layout.sample_type,
            bits: color.bit_depth(),
            planar,
        };
        Ok((bands, stated))
    }

    /// Checks that the file has `channels` bands of a supported type, within the memory limit.
    pub(super) fn check(&self, channels: usize) -> Result<()> {
        if self.count != channels {
            return Err(SampleError::Channels { found: self.count, expected: channels });
        }
        use DecodingSampleType as Kind;
        match (self.kind, self.bits) {
            (Some(Kind::U8), 8) | (Some(Kind::U16 | Kind::F16), 16) => {}
            (Some(Kind::F32), 32) | (Some(Kind::F64), 64) => {}
            (kind, bits) => {
                let kind = kind.map_or_else(|| "unknown".to_owned(), |kind| format!("{kind:?}"));
                return Err(SampleError::SampleType(kind, bits));
            }
        }
        let (width, height) = self.size;
        let each = u64::from(self.bits / 8).max(4) * channels as u64;
        check_size(width, height, u64::from(width) * u64::from(height) * each)
    }

    /// Returns the bits of a value.
    pub(super) fn bits(&self) -> u8 {
        self.bits
    }

    /// Returns the palette: all red values, then all green and all blue ones, of 16 bits.
    pub(super) fn color_map(&mut self) -> Result<Vec<u16>> {
        self.decoder.get_tag_u16_vec(Tag::ColorMap).map_err(damage)
    }

    /// Returns whether [`Bands::decode_part`] gives the same values as decoding all.
    pub(super) fn has_parts(&self, channels: usize) -> bool {
        match channels {
            3 => self.is_rgb8,
            channels => self.count == channels,
        }
    }

    /// Returns whether the values are floating-point numbers.
    pub(super) fn is_floating(&self) -> bool {
        use DecodingSampleType as Kind;
        matches!(self.kind, Some(Kind::F16 | Kind::F32 | Kind::F64))
    }

    /// Returns the largest value of an integer type, or 1 for floating-point values.
    pub(super) fn white(&self) -> f32 {
        match self.kind {
            Some(DecodingSampleType::U8) => 255.0,
            Some(DecodingSampleType::U16) => 65535.0,
            _ => 1.0,
        }
    }

    /// Returns all values in the order of the file. Call [`Bands::check`] before.
    pub(super) fn values(mut self) -> Result<DecodingResult> {
        let mut found = DecodingResult::U8(Vec::new());
        self.decoder.read_image_to_buffer(&mut found).map_err(damage)?;
        Ok(found)
    }

    /// Decodes the bands as planes. Call [`Bands::check`] before.
    pub(super) fn decode(self, out: &mut Raster) -> Result<()> {
        let (width, height) = self.size;
        if self.planar && self.decoder.get_chunk_type() == ChunkType::Tile {
            // The crate cannot read all tiles of planes at once if they reach beyond the edge.
            return self.decode_part(Rectangle { left: 0, top: 0, width, height }, false, out);
        }
        let pixels = width as usize * height as usize;
        let count = self.count;
        // Values that are already in planes count as one band.
        let each = if self.planar { 1 } else { count };
        (out.width, out.height, out.channels) = (self.size.0, self.size.1, count);
        match &self.values()? {
            DecodingResult::U8(values) => separate(values, each, out.values.u8(), |value| value),
            DecodingResult::U16(values) => separate(values, each, out.values.f32(), unit16),
            DecodingResult::F16(values) => separate(values, each, out.values.f32(), |value| value.to_f32()),
            DecodingResult::F32(values) => separate(values, each, out.values.f32(), |value| value),
            DecodingResult::F64(values) => separate(values, each, out.values.f32(), |value| value as f32),
            _ => out.values.u8().clear(),
        }
        if out.values.len() == pixels * count { Ok(()) } else { Err(truncated()) }
    }
}

/// Returns the file with its bands marked as grey: of an RGB file the decoder returns only three bands.
pub(super) fn as_grey(bytes: &[u8]) -> Option<Vec<u8>> {
    let directory = Directory::open(bytes)?;
    let place = directory.place(Tag::PhotometricInterpretation.to_u16())?;
    let mut patched = bytes.to_vec();
    patched.get_mut(place..place + 2)?.copy_from_slice(&directory.short_bytes(1));
    Some(patched)
}

pub(super) fn damage(error: TiffError) -> SampleError {
    match error {
        TiffError::UnsupportedError(TiffUnsupportedError::UnsupportedCompressionMethod(method)) => {
            SampleError::Unsupported(format!("TIFF compression of kind {method:?}"))
        }
        TiffError::UnsupportedError(error) => {
            SampleError::Unsupported(format!("this kind of TIFF file ({error})"))
        }
        TiffError::IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => truncated(),
        other => SampleError::Damaged(other.to_string()),
    }
}
