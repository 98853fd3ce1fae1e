//! Why one sample cannot be used. [`super::error::DataError`] is what ends a run.

use std::io;

/// Why one sample cannot be used. It names no path: [`super::error::BadSample`] does.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The file cannot be opened or read.
    #[error("the file cannot be read: {source}")]
    Read {
        /// Why not.
        #[from]
        source: io::Error,
    },
    /// A file of zero bytes.
    #[error("the file is empty")]
    Empty,
    /// Content that is no image format.
    #[error("not an image: the file begins with {start}, and PNG, JPEG, BMP, TIFF and WebP are read")]
    NotAnImage {
        /// The first bytes, readable.
        start: String,
    },
    /// An image of a kind that is not read.
    #[error("{what} is not read; convert the image to 8-bit RGB, for example as PNG")]
    Unsupported {
        /// The kind.
        what: String,
    },
    /// A file of bands that make no picture.
    #[error(
        "it holds data in {channels} band(s), which are no RGB picture; set data.channels = {channels} to train on the values as \
         they are, or convert the image to 8-bit RGB"
    )]
    NotRgb {
        /// How many bands it has.
        channels: usize,
    },
    /// A file with other channels than the data set has.
    #[error(
        "it has {found} channels where {expected} are expected; set data.channels = {found} or convert the image"
    )]
    Channels {
        /// Channels of the file.
        found: usize,
        /// Channels of the data set.
        expected: usize,
    },
    /// Samples of a type that is not read.
    #[error(
        "samples of type {kind} with {bits} bits are not read; convert the image to 8- or 16-bit unsigned or to 32-bit \
         floating-point samples"
    )]
    SampleType {
        /// The type that would hold them.
        kind: String,
        /// The bits that they have.
        bits: u8,
    },
    /// NaN or infinity in a floating-point image.
    #[error(
        "the data has {count} values that are not finite (the first is {value}, at column {column}, row {row} of channel \
         {channel}); replace them in the file, for example by 0"
    )]
    NotFinite {
        /// The first of them.
        value: f32,
        /// Its channel, from 0.
        channel: usize,
        /// Its row, from 0.
        row: usize,
        /// Its column, from 0.
        column: usize,
        /// How many there are.
        count: usize,
    },
    /// An image of another size than the data set's, where images are not resized.
    #[error(
        "it is {width}x{height} pixels where all are to be {}x{}; set data.resize = \"crop\" or \"stretch\"",
        expected.0, expected.1
    )]
    Size {
        /// Its width in pixels.
        width: u32,
        /// Its height in pixels.
        height: u32,
        /// Width and height of the data set's images.
        expected: (u32, u32),
    },
    /// A mask as JPEG.
    #[error("a JPEG file cannot be a mask, since its compression changes the values; save masks as PNG")]
    JpegMask,
    /// A mask whose pixels are colours or fractions.
    #[error(
        "a mask has one whole number for each pixel, but this image of {channels} channel(s) holds colours or fractions; save \
         it as a grey or palette PNG whose values are the classes"
    )]
    ColorMask {
        /// Channels of the image.
        channels: usize,
    },
    /// A mask with a value that is no class.
    #[error(
        "the mask has the value {value} at column {column}, row {row}, but classes go from 0 to {} and {ignore} means none; \
         set data.classes to the number of classes, or data.ignore to the value that means none",
        classes.saturating_sub(1)
    )]
    MaskValue {
        /// The value.
        value: u16,
        /// Its column, from 0.
        column: usize,
        /// Its row, from 0.
        row: usize,
        /// How many classes there are.
        classes: usize,
        /// The value that means no class.
        ignore: i64,
    },
    /// A mask that does not cover its image.
    #[error(
        "its mask {mask} is {}x{} pixels and the image {}x{}; make both of one size",
        mask_size.0, mask_size.1, image_size.0, image_size.1
    )]
    MaskSize {
        /// The mask's path.
        mask: String,
        /// Width and height of the mask.
        mask_size: (u32, u32),
        /// Width and height of the image.
        image_size: (u32, u32),
    },
    /// What is wrong lies with the mask.
    #[error("its mask {path}: {source}")]
    Mask {
        /// The mask's path.
        path: String,
        /// What is wrong with it.
        source: Box<SampleError>,
    },
    /// An image file that is cut short or corrupt.
    #[error("damaged: {reason}")]
    Damaged {
        /// What the decoder found.
        reason: String,
    },
    /// An image that would take too much memory.
    #[error(
        "{width}x{height} pixels are more than the limit of {} MiB once decoded; make the image smaller",
        limit_bytes >> 20
    )]
    TooLarge {
        /// Width that the header states, in pixels.
        width: u32,
        /// Height that the header states, in pixels.
        height: u32,
        /// The limit on the decoded image.
        limit_bytes: u64,
    },
}
