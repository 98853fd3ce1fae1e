//! Errors of data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::ignored::EXTENSIONS;

/// Most names or files that a message lists; further ones are only counted.
const LISTED: usize = 5;

/// Most unreadable files that are named; further ones are only counted.
pub const MOST_NAMED: usize = 20;

/// An error that ends the run. Each message has a place and a remedy; the first path is the place.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("there is no folder {}; {}", .0.display(), .1)]
    MissingFolder(PathBuf, String),
    #[error("{} is not a folder; images are read from folders, one for each class", .0.display())]
    NotAFolder(PathBuf),
    #[error("the folder {} cannot be listed ({}); give the user who runs dtrain read and execute permission", .0.display(), .1)]
    UnreadableFolder(PathBuf, #[source] io::Error),
    #[error(
        "{} has no class folders{}; expected one folder for each class with images in it, as in {}/cat/001.png",
        .0.display(), loose_note(*.1), .0.display()
    )]
    NoClasses(PathBuf, usize),
    #[error(
        "{} in {} no images: {}; add images ({}) or remove the {}",
        plural(.1.len(), "class folder", "class folders"), .0.display(), listed(.1),
        EXTENSIONS.join(", "), if .1.len() == 1 { "folder" } else { "folders" }
    )]
    EmptyClasses(PathBuf, Vec<String>),
    #[error(
        "{} has {} that the training split lacks: {}; a model cannot be tested on what it was never shown, \
         so add training images or remove the folders",
        .0.display(), plural(.1.len(), "class", "classes"), listed(.1)
    )]
    UnknownClasses(PathBuf, Vec<String>),
    #[error(
        "there are no images in {}; add images ({}) or set data.root and the names of its folders to where they are",
        .0.display(), EXTENSIONS.join(", ")
    )]
    NoImages(PathBuf),
    #[error(
        "images and masks do not pair up by name: {} in {} without a mask in {}{}; {} without an image{}; give both the \
         same names (endings may differ) or remove what has no partner",
        plural(.1.len(), "image", "images"), .0[0].display(), .0[1].display(), names(.1),
        plural(.2.len(), "mask", "masks"), names(.2)
    )]
    Unpaired([PathBuf; 2], Vec<String>, Vec<String>),
    #[error(
        "{} has two files `{}` and `{}` of one name but for the ending; rename or remove one, since images and \
         masks are paired by name",
        .0.display(), .1, .2
    )]
    SameName(PathBuf, String, String),
    #[error(
        "{} is {}x{} pixels where {} is {}x{}; data.resize = \"none\" uses images as they are, so set data.resize = \
         \"crop\" or \"stretch\", or make all images of one size",
        .0.0, .0.1.0, .0.1.1, .1.0, .1.1.0, .1.1.1
    )]
    MixedSizes((String, (u32, u32)), (String, (u32, u32))),
    #[error("the name of {} is not valid UTF-8; rename it", .0.display())]
    NotUnicode(PathBuf),
    #[error(
        "{} of {} images cannot be used, and more than 1% is taken for damage to the data set; \
         replace or remove them: {}", .0.len(), .1, lines(.0)
    )]
    TooManyBad(Vec<BadSample>, usize),
    #[error("no image of class `{}` can be used; replace them or remove the class: {}", .0, lines(.1))]
    ClassLost(String, Vec<BadSample>),
    #[error(
        "{} holds images of one class only, `{}`, and a classifier needs two or more; add a folder of images for each other \
         class, or set data.root and data.train to the folder that holds the class folders",
        .0.display(), .1
    )]
    OneClass(PathBuf, String),
    #[error("the training masks in {} {}, and a model needs two classes or more to learn; {}", .0.display(), .1, .2)]
    OneMaskClass(PathBuf, String, &'static str),
    #[error(
        "every pixel of the test masks in {} has the value {}, which data.ignore = {} leaves out, so nothing is left to \
         test with; set data.ignore to the value that means no class",
        .0.display(), .1, .1
    )]
    NothingToTest(PathBuf, i64),
    #[error("the text {} cannot be read ({}); set data.root to a text file or to a folder of .txt files", .0.display(), .1)]
    UnreadableText(PathBuf, #[source] io::Error),
    #[error("there are no .txt files in {}; set data.root to a text file or to a folder of .txt files", .0.display())]
    NoTexts(PathBuf),
    #[error("the text {} is empty; set data.root to one that is not", .0.display())]
    EmptyText(PathBuf),
    #[error("the text {} is not UTF-8 from byte {} on; convert it to UTF-8, for example with iconv", .0.display(), .1)]
    NotUtf8(PathBuf, usize),
    #[error(
        "the {part} part of the text has {tokens} tokens, and one window of model.context = {context} needs {}; use a longer \
         text, lower model.context or change data.test_fraction",
        context + 1
    )]
    ShortText { part: &'static str, tokens: usize, context: usize },
    #[error(
        "the text has the character {0:?} (character {1}), which the vocabulary of {2} characters lacks; train on \
         the text that the vocabulary was made of, or start a new run"
    )]
    UnknownCharacter(char, usize, usize),
    #[error(
        "the text below {} is not the one that rank 0 read; give all machines the same files and leave them unchanged while a run \
         starts", .0.display()
    )]
    TextDiffers(PathBuf),
    #[error("a loader thread cannot be started ({0}); lower data.workers or raise the process limit")]
    ThreadStart(#[source] io::Error),
    #[error(
        "loading stopped at {0}: {1}; this is a bug in dtrain or in the data set's code, please report it"
    )]
    Panicked(String, String),
}

/// Result for a sample, or the reason why it cannot be used.
pub type Result<T, E = SampleError> = std::result::Result<T, E>;

/// Reason why one sample cannot be used. It has no path: [`BadSample`] does.
#[derive(Debug, thiserror::Error)]
pub enum SampleError {
    #[error("the file cannot be read: {0}")]
    Read(#[from] io::Error),
    #[error("the file is empty")]
    Empty,
    #[error("not an image: the file begins with {0}, and PNG, JPEG, BMP, TIFF and WebP are read")]
    NotAnImage(String),
    #[error("{0} is not read; convert the image to 8-bit RGB, for example as PNG")]
    Unsupported(String),
    #[error(
        "it holds data in {0} band(s), which are no RGB picture; set data.channels = {0} to train on the values as \
         they are, or convert the image to 8-bit RGB"
    )]
    NotRgb(usize),
    #[error(
        "it has {found} channels where {expected} are expected; set data.channels = {found} or convert the image"
    )]
    Channels { found: usize, expected: usize },
    #[error(
        "samples of type {0} with {1} bits are not read; convert the image to 8- or 16-bit unsigned or to 32-bit \
         floating-point samples"
    )]
    SampleType(String, u8),
    #[error(
        "the data has {count} values that are not finite (the first is {value}, at column {column}, row {row} of channel \
         {channel}); replace them in the file, for example by 0"
    )]
    NotFinite { value: f32, channel: usize, row: usize, column: usize, count: usize },
    #[error(
        "it is {}x{} pixels where all are to be {}x{}; set data.resize = \"crop\" or \"stretch\"",
        .0.0, .0.1, .1.0, .1.1
    )]
    Size((u32, u32), (u32, u32)),
    #[error("a JPEG file cannot be a mask, since its compression changes the values; save masks as PNG")]
    JpegMask,
    #[error(
        "a mask has one whole number for each pixel, but this image of {0} channel(s) holds colours or fractions; save \
         it as a grey or palette PNG whose values are the classes"
    )]
    ColorMask(usize),
    #[error(
        "the mask has the value {value} at column {column}, row {row}, but classes go from 0 to {} and {ignore} means none; \
         set data.classes to the number of classes, or data.ignore to the value that means none",
        classes.saturating_sub(1)
    )]
    MaskValue { value: u16, column: usize, row: usize, classes: usize, ignore: i64 },
    #[error("its mask {} is {}x{} pixels and the image {}x{}; make both of one size", .0, .1.0, .1.1, .2.0, .2.1)]
    MaskSize(String, (u32, u32), (u32, u32)),
    #[error("its mask {0}: {1}")]
    Mask(String, #[source] Box<SampleError>),
    #[error("damaged: {0}")]
    Damaged(String),
    #[error(
        "{}x{} pixels are more than the limit of {} MiB once decoded; make the image smaller",
        .0.0, .0.1, .1 >> 20
    )]
    TooLarge((u32, u32), u64),
}

/// A sample that was left out, with the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadSample {
    pub index: usize,
    /// Its path, or another description.
    pub path: String,
    pub reason: String,
}

impl fmt::Display for BadSample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// Writes "`a`, `b`, `c`" or, for many names, "`a`, `b`, `c`, `d`, `e` and 7 more".
pub(super) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<String> = names.iter().map(|name| format!("`{}`", name.as_ref())).take(LISTED).collect();
    match names.len() - shown.len() {
        0 => shown.join(", "),
        rest => format!("{} and {rest} more", shown.join(", ")),
    }
}

/// Writes ": `a`, `b`", or nothing without names.
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
