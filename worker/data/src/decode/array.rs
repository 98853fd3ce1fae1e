//! Arrays of NumPy as images, masks and maps: `.npy`, and `.npz` with one array or one of the role's name.
//!
//! A shape is `H x W`, `H x W x C` or `C x H x W`, of which the known number of channels decides; if both fit, the channels are last.

use std::borrow::Cow;
use std::io::{Cursor, Read};

use dtrain_common::content::Content;
use zip::ZipArchive;

use super::super::error::{Result, SampleError};
use super::super::raster::{Labels, Raster};
use super::convert::{separate, unit16};
use super::limits::{check_size, truncated};

/// The name of an image's array in an archive with several.
pub(super) const IMAGE: &str = "image";

const MARK: &[u8] = b"\x93NUMPY";
/// The longest header that is read: it has a type and a shape.
const LONGEST_HEADER: usize = 64 << 10;

/// The type of the values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bool,
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    U64,
    I64,
    F16,
    F32,
    F64,
}

/// An array whose header is read.
#[derive(Debug)]
pub(super) struct Array<'a> {
    file: &'a [u8],
    /// Its name in an archive.
    member: Option<String>,
    /// Where the values begin.
    start: usize,
    kind: Kind,
    is_big_endian: bool,
    /// Whether the first index changes fastest.
    is_fortran: bool,
    pub(super) size: (u32, u32),
    channels: usize,
    /// Whether the channels are the first index.
    is_planar: bool,
}

/// Returns whether a file is an array, or an archive of arrays.
pub(super) fn is_array(bytes: &[u8]) -> bool {
    /// The parts of an archive in which a name of an array is looked for.
    const PART: usize = 4 << 10;
    let is_archive = || {
        let (start, end) = (&bytes[..bytes.len().min(PART)], &bytes[bytes.len().saturating_sub(PART)..]);
        Content::of(start, end) == Some(Content::Npz)
    };
    bytes.starts_with(MARK) || bytes.starts_with(b"PK\x03\x04") && is_archive()
}

/// Returns [`Array::white`] of an image, of any number of channels.
pub(super) fn white_of_image(bytes: &[u8]) -> Result<f32> {
    Ok(descr(&header_of(bytes, IMAGE)?)?.white())
}

/// Returns the number of channels of an image, which is the shorter of the first and the last length, the bits of a value, and whether
/// values are floating-point numbers.
pub(super) fn bands_of(bytes: &[u8], role: &str) -> Result<(u16, u8, bool)> {
    let header = header_of(bytes, role)?;
    let kind = descr(&header)?;
    let bands = match *shape(&header)?.as_slice() {
        [first, _, last] => u16::try_from(first.min(last)).unwrap_or(u16::MAX),
        _ => 1,
    };
    Ok((bands, 8 * kind.bytes() as u8, matches!(kind, Kind::F16 | Kind::F32 | Kind::F64)))
}

fn header_of(file: &[u8], role: &str) -> Result<String> {
    Ok(header(&begin(file, member(file, role)?.as_deref())?)?.0)
}

impl<'a> Array<'a> {
    /// Opens an array of `channels` channels; of several in an archive the one named `role`. `bytes` of an array alone may end after the header.
    pub(super) fn open(bytes: &'a [u8], channels: usize, role: &str) -> Result<Self> {
        let member = member(bytes, role)?;
        let (header, start) = header(&begin(bytes, member.as_deref())?)?;
        let (shape, kind, is_big_endian) = (shape(&header)?, descr(&header)?, header.contains("'>"));
        let is_fortran = value(&header, "fortran_order")?.starts_with("True");
        let (height, width, found, is_planar) = match *shape.as_slice() {
            [height, width] => (height, width, 1, false),
            [height, width, last] if last == channels => (height, width, last, false),
            [first, height, width] if first == channels => (height, width, first, true),
            [_, _, last] => return Err(SampleError::Channels { found: last, expected: channels }),
            _ => return Err(SampleError::ArrayShape(format!("{shape:?}"))),
        };
        if found != channels {
            return Err(SampleError::Channels { found, expected: channels });
        }
        let size = |length: usize| u32::try_from(length).unwrap_or(u32::MAX);
        let size = (size(width), size(height));
        let values = (u64::from(size.0) * u64::from(size.1)).saturating_mul(channels as u64);
        check_size(size.0, size.1, values.saturating_mul(kind.bytes().max(4) as u64))?;
        Ok(Self { file: bytes, member, start, kind, is_big_endian, is_fortran, size, channels, is_planar })
    }

    /// Decodes the array as an image: 8-bit values stay, 16-bit values are from 0 to 1, floats stay.
    pub(super) fn decode(self, out: &mut Raster) -> Result<()> {
        (out.width, out.height, out.channels) = (self.size.0, self.size.1, self.channels);
        let bytes = self.ordered()?;
        let each = if self.is_planar { 1 } else { self.channels };
        match self.kind {
            // A picture has its colours side by side.
            Kind::U8 if self.channels == 3 => {
                let values = out.values.u8();
                values.clear();
                match self.is_planar {
                    false => values.extend_from_slice(&bytes),
                    true => {
                        let plane = bytes.len() / 3;
                        values.extend((0..bytes.len()).map(|at| bytes[at % 3 * plane + at / 3]));
                    }
                }
            }
            Kind::U8 => separate(&bytes, each, out.values.u8(), |value| value),
            Kind::U16 => separate(&self.numbers(&bytes, u16::from_le_bytes), each, out.values.f32(), unit16),
            Kind::F32 => {
                separate(&self.numbers(&bytes, f32::from_le_bytes), each, out.values.f32(), |value| value)
            }
            Kind::F64 => {
                separate(&self.numbers(&bytes, f64::from_le_bytes), each, out.values.f32(), |value| {
                    value as f32
                });
            }
            other => return Err(other.unsupported("an image", "uint8, uint16, float32 or float64")),
        }
        Ok(())
    }

    /// Returns the largest value of an integer type, or 1 for floats.
    pub(super) fn white(&self) -> f32 {
        self.kind.white()
    }

    /// Decodes the array as a mask; values that are no class number are an error.
    pub(super) fn mask(self, out: &mut Labels) -> Result<()> {
        (out.width, out.height) = self.size;
        let bytes = self.ordered()?;
        let whole = |value: i64| u16::try_from(value).map_err(|_| SampleError::ArrayClass(value.to_string()));
        let of_float = |value: f64| match f64::from(value as u16) == value {
            true => Ok(value as u16),
            false => Err(SampleError::ArrayClass(value.to_string())),
        };
        let values = &mut out.values;
        match self.kind {
            Kind::Bool | Kind::U8 => values.extend(bytes.iter().map(|&value| u16::from(value))),
            Kind::U16 => *values = self.numbers(&bytes, u16::from_le_bytes),
            Kind::I8 => collect(bytes.iter().map(|&value| whole(i64::from(value.cast_signed()))), values)?,
            Kind::I16 => collect(
                self.numbers(&bytes, i16::from_le_bytes).into_iter().map(|it| whole(it.into())),
                values,
            )?,
            Kind::I32 => collect(
                self.numbers(&bytes, i32::from_le_bytes).into_iter().map(|it| whole(it.into())),
                values,
            )?,
            Kind::U32 => collect(
                self.numbers(&bytes, u32::from_le_bytes).into_iter().map(|it| whole(it.into())),
                values,
            )?,
            Kind::I64 => collect(self.numbers(&bytes, i64::from_le_bytes).into_iter().map(whole), values)?,
            // No larger value is a class.
            Kind::U64 => {
                let clamped = self
                    .numbers(&bytes, u64::from_le_bytes)
                    .into_iter()
                    .map(|it| it.min(i64::MAX as u64) as i64);
                collect(clamped.map(whole), values)?;
            }
            Kind::F32 => {
                collect(
                    self.numbers(&bytes, f32::from_le_bytes).into_iter().map(|it| of_float(it.into())),
                    values,
                )?;
            }
            Kind::F64 => collect(self.numbers(&bytes, f64::from_le_bytes).into_iter().map(of_float), values)?,
            other => return Err(other.unsupported("a mask", "integers")),
        }
        Ok(())
    }

    /// Returns the bytes of all values, row by row, with the low byte first.
    fn ordered(&self) -> Result<Cow<'_, [u8]>> {
        let each = self.kind.bytes();
        let (width, height) = (self.size.0 as usize, self.size.1 as usize);
        let length = width * height * self.channels * each;
        let end = self.start + length;
        let whole = match &self.member {
            None => Cow::Borrowed(self.file),
            // One byte more than there may be: at the end of the member its checksum is compared.
            Some(name) => Cow::Owned(unpack(self.file, name, end as u64 + 1)?),
        };
        if self.member.is_some() && whole.len() > end {
            return Err(SampleError::Damaged("the array is longer than its header states".to_owned()));
        }
        let bytes = whole.get(self.start..end).ok_or_else(truncated)?;
        if !(self.is_fortran || self.is_big_endian && each > 1) {
            return Ok(match whole {
                Cow::Borrowed(whole) => Cow::Borrowed(&whole[self.start..end]),
                Cow::Owned(mut whole) => Cow::Owned(whole.split_off(self.start)),
            });
        }
        let lengths = match self.is_planar {
            true => [self.channels, height, width],
            false => [height, width, self.channels],
        };
        let mut out = Vec::with_capacity(length);
        for at in 0..length / each {
            let (first, second, third) =
                (at / (lengths[1] * lengths[2]), at / lengths[2] % lengths[1], at % lengths[2]);
            let from = if self.is_fortran { first + lengths[0] * (second + lengths[1] * third) } else { at };
            let value = &bytes[from * each..(from + 1) * each];
            match self.is_big_endian {
                true => out.extend(value.iter().rev()),
                false => out.extend_from_slice(value),
            }
        }
        Ok(Cow::Owned(out))
    }

    fn numbers<const N: usize, T>(&self, bytes: &[u8], number: fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|bytes| number(*bytes)).collect()
    }
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::U16 | Self::I16 | Self::F16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    fn white(self) -> f32 {
        match self {
            Self::U8 => 255.0,
            Self::U16 => 65535.0,
            _ => 1.0,
        }
    }

    fn unsupported(self, what: &'static str, taken: &'static str) -> SampleError {
        SampleError::ArrayType { what, found: format!("{self:?}").to_lowercase(), taken }
    }
}

fn collect(found: impl Iterator<Item = Result<u16>>, values: &mut Vec<u16>) -> Result<()> {
    *values = found.collect::<Result<_>>()?;
    Ok(())
}

/// Returns the text of an array's header, and where its values begin.
fn header(bytes: &[u8]) -> Result<(String, usize)> {
    let number = |range: std::ops::Range<usize>| {
        let bytes = bytes.get(range).ok_or_else(truncated)?;
        Ok::<_, SampleError>(bytes.iter().rev().fold(0usize, |number, byte| number << 8 | usize::from(*byte)))
    };
    let (length, begin) = match bytes.get(6).ok_or_else(truncated)? {
        1 => (number(8..10)?, 10),
        2 | 3 => (number(8..12)?, 12),
        version => return Err(SampleError::Unsupported(format!("version {version} of the format of NumPy"))),
    };
    if length > LONGEST_HEADER {
        return Err(SampleError::Damaged("the header of the array is too long".to_owned()));
    }
    let text = bytes.get(begin..begin + length).ok_or_else(truncated)?;
    Ok((String::from_utf8_lossy(text).into_owned(), begin + length))
}

/// Returns what follows a key in the header, which is a dict of Python.
fn value<'a>(header: &'a str, key: &str) -> Result<&'a str> {
    let behind = header.split_once(&format!("'{key}':")).map(|(_, behind)| behind.trim_start());
    behind.ok_or_else(|| SampleError::Damaged(format!("the header of the array has no `{key}`")))
}

fn shape(header: &str) -> Result<Vec<usize>> {
    let damaged = || SampleError::Damaged("the header of the array has no shape".to_owned());
    let inner = value(header, "shape")?
        .strip_prefix('(')
        .and_then(|rest| rest.split_once(')'))
        .ok_or_else(damaged)?
        .0;
    let lengths = inner
        .split(',')
        .map(|length| length.trim().trim_end_matches('L'))
        .filter(|length| !length.is_empty());
    lengths.map(|length| length.parse().map_err(|_| damaged())).collect()
}

fn descr(header: &str) -> Result<Kind> {
    let text = value(header, "descr")?;
    let word = text.strip_prefix('\'').and_then(|rest| rest.split_once('\'')).map_or(text, |(word, _)| word);
    Ok(match word.trim_start_matches(['<', '>', '|', '=']) {
        "b1" => Kind::Bool,
        "u1" => Kind::U8,
        "i1" => Kind::I8,
        "u2" => Kind::U16,
        "i2" => Kind::I16,
        "u4" => Kind::U32,
        "i4" => Kind::I32,
        "u8" => Kind::U64,
        "i8" => Kind::I64,
        "f2" => Kind::F16,
        "f4" => Kind::F32,
        "f8" => Kind::F64,
        _ => return Err(SampleError::Unsupported(format!("an array of the type {word:?}"))),
    })
}

/// Returns the name of the array of an archive: the only one, or the one named `role`; None for an array alone.
fn member(file: &[u8], role: &str) -> Result<Option<String>> {
    if file.starts_with(MARK) {
        return Ok(None);
    }
    let archive = ZipArchive::new(Cursor::new(file)).map_err(damaged_archive)?;
    let names = archive.file_names().filter_map(|name| name.ok().map(|name| name.into_owned()));
    let names: Vec<String> = names.filter(|name| name.ends_with(".npy")).collect();
    let wanted = format!("{role}.npy");
    match names.as_slice() {
        [] => Err(SampleError::NotAnImage("it is a zip archive without arrays of NumPy".to_owned())),
        [only] => Ok(Some(only.clone())),
        several if several.contains(&wanted) => Ok(Some(wanted)),
        several => {
            let names = several.iter().map(|name| name.trim_end_matches(".npy").to_owned()).collect();
            Err(SampleError::Arrays { role: role.to_owned(), names })
        }
    }
}

/// Returns as much of an array as has its header.
fn begin<'a>(file: &'a [u8], member: Option<&str>) -> Result<Cow<'a, [u8]>> {
    let Some(name) = member else { return Ok(Cow::Borrowed(file)) };
    /// The mark, the version and the length of the header.
    const BEFORE_HEADER: usize = 12;
    let bytes = unpack(file, name, (BEFORE_HEADER + LONGEST_HEADER) as u64)?;
    match bytes.starts_with(MARK) {
        true => Ok(Cow::Owned(bytes)),
        false => Err(SampleError::Damaged(format!("`{name}` is no array"))),
    }
}

/// Unpacks the first bytes of a member of an archive, `most` at most.
fn unpack(file: &[u8], name: &str, most: u64) -> Result<Vec<u8>> {
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged_archive)?;
    let member = archive.by_name(name).map_err(damaged_archive)?;
    let mut out = Vec::new();
    member.take(most).read_to_end(&mut out).map_err(|error| SampleError::Damaged(error.to_string()))?;
    Ok(out)
}

fn damaged_archive(error: zip::result::ZipError) -> SampleError {
    SampleError::Damaged(format!("the archive cannot be read: {error}"))
}
