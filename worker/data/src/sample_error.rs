//! Errors that cost one sample.

use std::io;

use dtrain_common::content::Content;
use rustix::io::Errno;

use super::color::Hex;
use super::names::listed;
use super::stored::Stored;

/// Result for a sample, or the reason why it cannot be used.
pub type Result<T, E = SampleError> = std::result::Result<T, E>;

/// Reason why one sample cannot be used. It has no path: [`super::BadSample`] does.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("the file cannot be read: {}{}", .0, remedy_of_file(.0))]
    Read(#[from] io::Error),
    #[error("the file is empty")]
    Empty,
    #[error("not an image: {0}")]
    NotAnImage(String),
    #[error(
        "{0} is not supported; convert a picture to 8-bit RGB, and data or a mask to grey with the same values, for example as PNG"
    )]
    Unsupported(String),
    #[error(
        "it has {} band(s) of data, not an RGB picture; {}", .0, match .0 {
            3 => "its colours are of another kind, such as YCbCr or CIELab: convert the image to RGB, for example as PNG".to_owned(),
            bands => format!("set data.channels = {bands} to train on the values, or convert the image to 8-bit RGB"),
        }
    )]
    NotRgb(usize),
    #[error("it has {found} channels, expected {expected}; set data.channels = {found} or convert the image")]
    Channels { found: usize, expected: usize },
    #[error(
        "samples of type {0} with {1} bits are not supported; convert the image to 8- or 16-bit unsigned or to 32-bit \
         floating-point samples"
    )]
    SampleType(String, u8),
    #[error(
        "the data has {count} values that are not finite (the first is {value}, at column {column}, row {row} of channel \
         {channel}); replace them in the file, for example by 0"
    )]
    NotFinite { value: f32, channel: usize, row: usize, column: usize, count: usize },
    #[error(
        "the data has {count} values without data ({value}; the first is at column {column}, row {row} of channel {channel}); \
         set data.fill to a number in their place, or leave the file out"
    )]
    NoData { value: f32, channel: usize, row: usize, column: usize, count: usize },
    #[error("its values are whole numbers from 0 to 255; set data.fill, which is {0}, to one of them")]
    Fill(f64),
    #[error(
        "it has {}x{} pixels, expected {}x{}; set data.resize = \"crop\" or \"stretch\"{}",
        .0.0, .0.1, .1.0, .1.1, turned(*.0, *.1)
    )]
    Size((u32, u32), (u32, u32)),
    #[error(
        "images of {0}x{1} pixels cannot be turned by 90 degrees; remove \"rot90\" from data.changes, or set data.resize = \"crop\" \
         or \"stretch\""
    )]
    NotSquare(u32, u32),
    #[error(
        "a {0} file cannot be a mask, since its compression changes the values; export the masks again as PNG, from \
         their source: converting this file keeps the changed values. Else set {1}"
    )]
    LossyMask(&'static str, &'static str),
    #[error(
        "{pixels} pixel{} of the mask {} that data.mask_colors lacks, {} {color} (nearest: {nearest}); add the colour, or set \
         data.mask_tolerance to the levels by which colours may differ",
        if *pixels == 1 { "" } else { "s" },
        match colors { 1 => "have a colour", _ => "have colours" },
        match colors { 1 => "namely", _ => "such as" }
    )]
    MaskColor { pixels: u64, colors: usize, color: Hex, nearest: String },
    #[error(
        "a mask has one whole number for each pixel, but this image of {0} channel(s) holds colours or fractions; save \
         it as a grey or palette PNG whose values are the classes"
    )]
    ColorMask(usize),
    #[error(
        "a map is a grey image with one number for each pixel, but this image has {0} channels; save it as a grey PNG of \
         8 or 16 bits, or as TIFF of one band"
    )]
    ColorMap(usize),
    #[error(
        "the mask has the value {value} at column {column}, row {row}, but classes go from 0 to {} and {ignore} means no class; \
         set data.classes to the number of classes, or data.ignore to the value that means no class",
        classes.saturating_sub(1)
    )]
    MaskValue { value: u16, column: usize, row: usize, classes: usize, ignore: i64 },
    #[error(
        "its {} {} has {}x{} pixels, but the image {}x{}; make both the same size{}", .0, .1, .2.0, .2.1, .3.0, .3.1,
        turned(*.2, *.3)
    )]
    PixelSize(&'static str, String, (u32, u32), (u32, u32)),
    #[error(
        "an array of the shape {0} is no image; save it with the shape height x width, or with the channels first or last"
    )]
    ArrayShape(String),
    #[error("{what} is no array of the type {found}; save it as {taken}")]
    ArrayType { what: &'static str, found: String, taken: &'static str },
    #[error(
        "a mask has one class for each pixel, from 0 to 65535, but this array has the value {0}; save the numbers of classes"
    )]
    ArrayClass(String),
    #[error(
        "the archive has the arrays {}, and none is named `{role}`; save one array in a file, or give it this name",
        listed(names)
    )]
    Arrays { role: String, names: Vec<String> },
    /// A file of the sample, by its kind and path, besides its first image.
    #[error("its {0} {1}: {2}")]
    Of(&'static str, String, #[source] Box<SampleError>),
    #[error(
        "the token {token} at place {place} is outside of the vocabulary of {vocabulary} tokens: the file has changed since the \
         start; restore it, or start again"
    )]
    Token { token: u32, place: u64, vocabulary: usize },
    #[error("damaged: {0}; copy or download it again, or remove it")]
    Damaged(String),
    #[error(
        "{}x{} pixels are more than the limit of {} MiB once decoded; make the image smaller",
        .0.0, .0.1, .1 >> 20
    )]
    TooLarge((u32, u32), u64),
}

impl SampleError {
    /// Returns the kind of the reason in a few words, to count samples by it.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Read(error) if error.kind() == io::ErrorKind::NotFound => "missing",
            Self::Read(_) => "cannot be read",
            Self::Empty => "empty",
            Self::NotAnImage(_) => "not an image",
            Self::Unsupported(_) | Self::SampleType(..) => "of a kind that is not supported",
            Self::NotRgb(_) | Self::Channels { .. } => "of another number of channels",
            Self::NotFinite { .. } => "with values that are not finite",
            Self::NoData { .. } => "with pixels without data",
            Self::Fill(_) => "of values that data.fill cannot replace",
            Self::Size(..) | Self::PixelSize(..) => "of another size",
            Self::NotSquare(..) => "not square",
            Self::LossyMask(..) => "a mask with lossy compression",
            Self::ColorMask(_) | Self::ColorMap(_) => "in colour where numbers are expected",
            Self::MaskValue { .. } => "a mask with a value outside of the classes",
            Self::MaskColor { .. } => "a mask with a colour that no class has",
            Self::Damaged(_) => "damaged",
            Self::TooLarge(..) => "too large",
            Self::Token { .. } => "with tokens outside of the vocabulary",
            Self::ArrayShape(_) | Self::ArrayType { .. } | Self::ArrayClass(_) | Self::Arrays { .. } => {
                "arrays of another form"
            }
            Self::Of(_, _, error) => error.kind(),
        }
    }

    /// Returns the error of another file than the sample's first image; `kind` is the word for it.
    pub(super) fn of(self, kind: &'static str, file: &Stored) -> Self {
        Self::Of(kind, file.to_string(), Box::new(self))
    }

    /// Returns the number of an error of the system that may concern all files, such as a lost file server.
    pub(super) fn outage(&self) -> Option<i32> {
        match self {
            Self::Read(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied => None,
                _ => error.raw_os_error(),
            },
            Self::Of(_, _, error) => error.outage(),
            _ => None,
        }
    }
}

/// Returns the remedy for the cause, or `usual` if the file is wrong or may not be read.
pub(super) fn remedy_of(error: &io::Error, usual: &'static str) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            return "raise the limit of open files (`ulimit -n`), or lower data.workers";
        }
        Some(Errno::NOMEM) => return "free memory, or lower data.workers",
        Some(Errno::LOOP) => return "it is a link to itself: remove it",
        _ => {}
    }
    match error.kind() {
        // Only a folder that was there a moment before is listed.
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory if usual.contains("execute permission") => {
            "it changed while it was listed: run the same command again when no program writes there"
        }
        io::ErrorKind::PermissionDenied if !usual.contains("permission") => {
            "give the user of dtrain read permission"
        }
        io::ErrorKind::NotFound
        | io::ErrorKind::PermissionDenied
        | io::ErrorKind::NotADirectory
        | io::ErrorKind::IsADirectory
        | io::ErrorKind::InvalidInput => usual,
        io::ErrorKind::StaleNetworkFileHandle => "mount the file system again",
        _ => "check the disk or the connection to the file server, and run the same command again",
    }
}

fn remedy_of_file(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => {
            "; it is a link to a missing file, or was removed: restore it, or correct the path in a table that names it"
                .to_owned()
        }
        // The reason names a remedy.
        io::ErrorKind::InvalidInput => String::new(),
        _ => format!("; {}", remedy_of(error, "give the user of dtrain read permission")),
    }
}

/// Says what a file that is no image is, by its first bytes.
pub(super) fn no_image(bytes: &[u8], start: &str) -> SampleError {
    if bytes.starts_with(b"II+\0") || bytes.starts_with(b"MM\0+") {
        return SampleError::Unsupported("BigTIFF, a format for files above 4 GiB,".to_owned());
    }
    const EXPECTED: &str = "expected PNG, JPEG, BMP, TIFF, WebP, GIF, PNM, JPEG 2000 or an array of NumPy";
    SampleError::NotAnImage(match Content::of(bytes, &[]) {
        Some(Content::LfsPointer) => {
            "it is a Git LFS pointer, which stands for a file that was not fetched; run `git lfs pull` in its repository".to_owned()
        }
        Some(content) => format!("it is {content}; {EXPECTED}, so download the image itself or remove the file"),
        None => format!("the file begins with {start}; {EXPECTED}"),
    })
}

/// Names the setting for files that were turned, if the sizes differ like those of a turned image.
pub(super) fn turned(one: (u32, u32), other: (u32, u32)) -> &'static str {
    match one == (other.1, other.0) {
        true => {
            "; if a file has an EXIF orientation, data.orientation = \"exif\" turns it, and \"stored\" leaves it as its \
             pixels are stored"
        }
        false => "",
    }
}
