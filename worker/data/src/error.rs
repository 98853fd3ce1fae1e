//! What can go wrong with data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::ignored::EXTENSIONS;

/// How many names or files a message lists before it only counts.
const LISTED: usize = 5;

/// Files that cannot be read and are named one by one before they are only counted.
pub const MOST_NAMED: usize = 20;

/// An error that ends the run. Each message says where it is and what to do; the first path is that place.
#[allow(missing_docs, reason = "the messages say what the fields are")]
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A split's folder, or the data root above it, does not exist; what to do.
    #[error("there is no folder {}; {}", .0.display(), .1)]
    MissingFolder(PathBuf, String),
    /// A file stands where a folder is needed.
    #[error("{} is not a folder; images are read from folders, one for each class", .0.display())]
    NotAFolder(PathBuf),
    /// A folder that cannot be listed.
    #[error("the folder {} cannot be listed ({}); give the user who runs dtrain read and execute permission", .0.display(), .1)]
    UnreadableFolder(PathBuf, #[source] io::Error),
    /// A split without class folders; the images that lie directly in it.
    #[error(
        "{} has no class folders{}; expected one folder for each class with images in it, as in {}/cat/001.png",
        .0.display(), loose_note(*.1), .0.display()
    )]
    NoClasses(PathBuf, usize),
    /// Class folders in which no image was found.
    #[error(
        "{} in {} no images: {}; add images ({}) or remove the {}",
        plural(.1.len(), "class folder", "class folders"), .0.display(), listed(.1),
        EXTENSIONS.join(", "), if .1.len() == 1 { "folder" } else { "folders" }
    )]
    EmptyClasses(PathBuf, Vec<String>),
    /// The test split has classes that the training split lacks.
    #[error(
        "{} has {} that the training split lacks: {}; a model cannot be tested on what it was never shown, \
         so add training images or remove the folders",
        .0.display(), plural(.1.len(), "class", "classes"), listed(.1)
    )]
    UnknownClasses(PathBuf, Vec<String>),
    /// A folder of images without any.
    #[error(
        "there are no images in {}; add images ({}) or set data.root and the names of its folders to where they are",
        .0.display(), EXTENSIONS.join(", ")
    )]
    NoImages(PathBuf),
    /// Images of the first folder without masks, or masks of the second without images.
    #[error(
        "images and masks do not pair up by name: {} in {} without a mask in {}{}; {} without an image{}; give both the \
         same names (endings may differ) or remove what has no partner",
        plural(.1.len(), "image", "images"), .0[0].display(), .0[1].display(), names(.1),
        plural(.2.len(), "mask", "masks"), names(.2)
    )]
    Unpaired([PathBuf; 2], Vec<String>, Vec<String>),
    /// Two files whose names differ in their ending alone, so that neither can be paired.
    #[error(
        "{} has two files `{}` and `{}` of one name but for the ending; rename or remove one, since images and \
         masks are paired by name",
        .0.display(), .1, .2
    )]
    SameName(PathBuf, String, String),
    /// Images that are not to be resized and differ in size: one of them, and what gave the other size.
    #[error(
        "{} is {}x{} pixels where {} is {}x{}; data.resize = \"none\" uses images as they are, so set data.resize = \
         \"crop\" or \"stretch\", or make all images of one size",
        .0.0, .0.1.0, .0.1.1, .1.0, .1.1.0, .1.1.1
    )]
    MixedSizes((String, (u32, u32)), (String, (u32, u32))),
    /// A name that is not valid UTF-8.
    #[error("the name of {} is not valid UTF-8; rename it", .0.display())]
    NotUnicode(PathBuf),
    /// More than 1% of so many images are bad.
    #[error(
        "{} of {} images cannot be used, and more than 1% is taken for damage to the data set; \
         replace or remove them: {}", .0.len(), .1, lines(.0)
    )]
    TooManyBad(Vec<BadSample>, usize),
    /// All images of a class are bad.
    #[error("no image of class `{}` can be used; replace them or remove the class: {}", .0, lines(.1))]
    ClassLost(String, Vec<BadSample>),
    /// Classes of one name only.
    #[error(
        "{} holds images of one class only, `{}`, and a classifier needs two or more; add a folder of images for each other \
         class, or set data.root and data.train to the folder that holds the class folders",
        .0.display(), .1
    )]
    OneClass(PathBuf, String),
    /// Masks that tell nothing apart: what they hold, and what to do.
    #[error("the training masks in {} {}, and a model needs two classes or more to learn; {}", .0.display(), .1, .2)]
    OneMaskClass(PathBuf, String, &'static str),
    /// Test masks of pixels that all have the value that is left out.
    #[error(
        "every pixel of the test masks in {} has the value {}, which data.ignore = {} leaves out, so nothing is left to \
         test with; set data.ignore to the value that means no class",
        .0.display(), .1, .1
    )]
    NothingToTest(PathBuf, i64),
    /// A text, or a folder of texts, that cannot be read.
    #[error("the text {} cannot be read ({}); set data.root to a text file or to a folder of .txt files", .0.display(), .1)]
    UnreadableText(PathBuf, #[source] io::Error),
    /// A folder without texts.
    #[error("there are no .txt files in {}; set data.root to a text file or to a folder of .txt files", .0.display())]
    NoTexts(PathBuf),
    /// A text of no characters.
    #[error("the text {} is empty; set data.root to one that is not", .0.display())]
    EmptyText(PathBuf),
    /// A text in another encoding from this byte on.
    #[error("the text {} is not UTF-8 from byte {} on; convert it to UTF-8, for example with iconv", .0.display(), .1)]
    NotUtf8(PathBuf, usize),
    /// A part of a text ("training" or "test") without enough tokens for a window.
    #[error(
        "the {part} part of the text has {tokens} tokens, and one window of model.context = {context} needs {}; use a longer \
         text, lower model.context or change data.test_fraction",
        context + 1
    )]
    ShortText { part: &'static str, tokens: usize, context: usize },
    /// A character, with its place in the text, that the vocabulary of so many lacks.
    #[error(
        "the text has the character {0:?} (character {1}), which the vocabulary of {2} characters lacks; train on \
         the text that the vocabulary was made of, or start a new run"
    )]
    UnknownCharacter(char, usize, usize),
    /// Ranks that read different texts; the first file.
    #[error(
        "the text below {} is not the one that rank 0 read; give all machines the same files and leave them unchanged while a run \
         starts", .0.display()
    )]
    TextDiffers(PathBuf),
    /// A loader thread could not be started.
    #[error("a loader thread cannot be started ({0}); lower data.workers or raise the process limit")]
    ThreadStart(#[source] io::Error),
    /// The code that loads samples or plans batches panicked: where, and its message.
    #[error(
        "loading stopped at {0}: {1}; this is a bug in dtrain or in the data set's code, please report it"
    )]
    Panicked(String, String),
}

/// Why one sample cannot be used. It names no path: [`BadSample`] does.
#[allow(missing_docs, reason = "the messages say what the fields are")]
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    /// The file cannot be opened or read.
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    /// A file of zero bytes.
    #[error("the file is empty")]
    Empty,
    /// Content that is no image format; its beginning, readable.
    #[error("not an image: the file begins with {0}, and PNG, JPEG, BMP, TIFF and WebP are read")]
    NotAnImage(String),
    /// An image of this kind is not read.
    #[error("{0} is not read; convert the image to 8-bit RGB, for example as PNG")]
    Unsupported(String),
    /// A file of so many bands that make no picture.
    #[error(
        "it holds data in {0} band(s), which are no RGB picture; set data.channels = {0} to train on the values as \
         they are, or convert the image to 8-bit RGB"
    )]
    NotRgb(usize),
    /// A file with other channels than the data set has.
    #[error(
        "it has {found} channels where {expected} are expected; set data.channels = {found} or convert the image"
    )]
    Channels { found: usize, expected: usize },
    /// Samples of a type, with its bits, that is not read.
    #[error(
        "samples of type {0} with {1} bits are not read; convert the image to 8- or 16-bit unsigned or to 32-bit \
         floating-point samples"
    )]
    SampleType(String, u8),
    /// NaN or infinity in a floating-point image: the first, its place counted from 0, and how many there are.
    #[error(
        "the data has {count} values that are not finite (the first is {value}, at column {column}, row {row} of channel \
         {channel}); replace them in the file, for example by 0"
    )]
    NotFinite { value: f32, channel: usize, row: usize, column: usize, count: usize },
    /// An image of another size than the data set's, where images are not resized; both as (width, height).
    #[error(
        "it is {}x{} pixels where all are to be {}x{}; set data.resize = \"crop\" or \"stretch\"",
        .0.0, .0.1, .1.0, .1.1
    )]
    Size((u32, u32), (u32, u32)),
    /// A mask as JPEG.
    #[error("a JPEG file cannot be a mask, since its compression changes the values; save masks as PNG")]
    JpegMask,
    /// A mask of so many channels whose pixels are colours or fractions.
    #[error(
        "a mask has one whole number for each pixel, but this image of {0} channel(s) holds colours or fractions; save \
         it as a grey or palette PNG whose values are the classes"
    )]
    ColorMask(usize),
    /// A mask with a value, at a place counted from 0, that is neither a class nor ignored.
    #[error(
        "the mask has the value {value} at column {column}, row {row}, but classes go from 0 to {} and {ignore} means none; \
         set data.classes to the number of classes, or data.ignore to the value that means none",
        classes.saturating_sub(1)
    )]
    MaskValue { value: u16, column: usize, row: usize, classes: usize, ignore: i64 },
    /// A mask, by its path, that does not cover its image; the sizes of both as (width, height).
    #[error("its mask {} is {}x{} pixels and the image {}x{}; make both of one size", .0, .1.0, .1.1, .2.0, .2.1)]
    MaskSize(String, (u32, u32), (u32, u32)),
    /// What is wrong lies with the mask of this path.
    #[error("its mask {0}: {1}")]
    Mask(String, #[source] Box<SampleError>),
    /// An image file that is cut short or corrupt.
    #[error("damaged: {0}")]
    Damaged(String),
    /// An image, (width, height), that would take more than so many bytes.
    #[error(
        "{}x{} pixels are more than the limit of {} MiB once decoded; make the image smaller",
        .0.0, .0.1, .1 >> 20
    )]
    TooLarge((u32, u32), u64),
}

/// One sample that was left out, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSample {
    /// Its number in the data set.
    pub index: usize,
    /// Its path, or another description.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
}

impl fmt::Display for BadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// "`a`, `b`, `c`" or, of many, "`a`, `b`, `c`, `d`, `e` and 7 more".
pub(super) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let quoted = names.iter().map(|name| format!("`{}`", name.as_ref()));
    let shown: Vec<String> = quoted.take(LISTED).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        rest => format!("{} and {rest} more", shown.join(", ")),
    }
}

/// ": `a`, `b`", or nothing for no names.
fn names(all: &[String]) -> String {
    match all {
        [] => String::new(),
        all => format!(": {}", listed(all)),
    }
}

fn lines(bad: &[BadSample]) -> String {
    let mut lines: String = bad.iter().take(LISTED).map(|image| format!("\n  {image}")).collect();
    if bad.len() > LISTED {
        lines += &format!("\n  and {} more", bad.len() - LISTED);
    }
    lines
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn loose_note(images: usize) -> String {
    match images {
        0 => String::new(),
        1 => " (1 image lies directly in it)".to_owned(),
        n => format!(" ({n} images lie directly in it)"),
    }
}
