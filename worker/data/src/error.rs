//! Errors of data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::fmt;
use std::io;
use std::path::PathBuf;

use dtrain_common::content::Content;
use dtrain_common::text::counted;
use dtrain_shared_memory::MemoryError;
use rustix::io::Errno;

use super::annotation_problem::AnnotationProblem;
use super::color_table::Hex;
use super::ignored::{EXTENSIONS, Ignored};
use super::names::{LISTED, listed};
use super::pack_problem::PackProblem;
use super::stored::Stored;
use super::table_problem::TableProblem;
use super::token_file::TokenProblem;

/// Most unreadable files that are named; further ones are only counted.
pub const MOST_NAMED: usize = 20;

/// An error that ends the run. Each message has a place and a remedy; the first path is the place.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("the folder {} does not exist; {}", .0.display(), .1)]
    MissingFolder(PathBuf, String),
    #[error("{} is not a folder; name folders in data.root and in the settings of the folders below it", .0.display())]
    NotAFolder(PathBuf),
    #[error(
        "cannot list the folder {}: {}; {}", .0.display(), .1,
        remedy_of(.1, "give the user of dtrain read and execute permission")
    )]
    UnreadableFolder(PathBuf, #[source] io::Error),
    #[error(
        "{} has no class folders{}{}; expected one folder of images for each class, as in {}/cat/001.png, or a list of its images in \
         data.lists",
        .0.display(), loose_note(*.1), others(.2), .0.display()
    )]
    NoClasses(PathBuf, usize, Box<Ignored>),
    #[error(
        "{} in {} without images: {}{}; add images ({}) or remove the {}",
        plural(.1.len(), "class folder", "class folders"), .0.display(), listed(.1), others(.2),
        EXTENSIONS.join(", "), if .1.len() == 1 { "folder" } else { "folders" }
    )]
    EmptyClasses(PathBuf, Vec<String>, Box<Ignored>),
    #[error(
        "{} has {} that the training split lacks: {}; {}",
        .0.display(), plural(.1.len(), "class", "classes"), listed(.1),
        .2.as_deref().unwrap_or("add training images, or remove the folders")
    )]
    UnknownClasses(PathBuf, Vec<String>, Option<String>),
    #[error(
        "{} has no images{}; add images ({}), or set data.root and its folder names to their location",
        .0.display(), others(.1), EXTENSIONS.join(", ")
    )]
    NoImages(PathBuf, Box<Ignored>),
    #[error("{} has no images{}; name an image, a folder with images ({}), or a table (.csv)", .0.display(), others(.1), EXTENSIONS.join(", "))]
    NoInputs(PathBuf, Box<Ignored>),
    #[error(
        "{}: a sample of this model has several images; name a table (.csv) with the columns {}", .0.display(), .1
    )]
    NeedsTable(PathBuf, String),
    #[error(
        "images and masks do not pair up by name: {} in {} without a mask in {}{}; {} without an image{}; {}{}",
        plural(.1.len(), "image", "images"), .0[0].display(), .0[1].display(), names(.1),
        plural(.2.len(), "mask", "masks"), names(.2),
        .3.1.as_deref().unwrap_or("give both the same names (endings may differ), or remove files without a partner"),
        others(&.3.0)
    )]
    Unpaired(Box<[PathBuf; 2]>, Vec<String>, Vec<String>, Box<(Ignored, Option<String>)>),
    #[error(
        "{} has the files `{}` and `{}`, which differ only in the ending; rename or remove one: images and masks \
         pair by name",
        .0.display(), .1, .2
    )]
    SameName(PathBuf, String, String),
    #[error(
        "no name in {} is of the form {} of data.pair{}; correct the pattern, which leaves out endings unless it has one itself",
        .0.display(), .1, match .2.as_slice() {
            [] => String::new(),
            names => format!("; the names are {}", listed(names)),
        }
    )]
    NoNames(PathBuf, String, Vec<String>),
    #[error(
        "{} has the files `{}` and `{}`, which are both {{id}} = `{}` of {} in data.pair; make the pattern narrower, or remove one",
        .0.display(), .1[0], .1[1], .2, .3
    )]
    SameId(PathBuf, Box<[String; 2]>, String, String),
    #[error("{}: {}", .0.display(), .1)]
    Annotations(PathBuf, Box<AnnotationProblem>),
    #[error(
        "{} has {}x{} pixels, but {} has {}x{}; data.resize = \"none\" needs images of one size: set data.resize = \
         \"crop\" or \"stretch\", or resize the images{}",
        .0.0, .0.1.0, .0.1.1, .1.0, .1.1.0, .1.1.1, turned(.0.1, .1.1)
    )]
    MixedSizes((String, (u32, u32)), (String, (u32, u32))),
    #[error("{0} is alone in its set, and data.pairs gives each sample another as its partner; add samples")]
    NoPartner(String),
    #[error("samples of data.kind = {0:?} are not listed; this is a bug of dtrain")]
    NotListed(&'static str),
    #[error("data.source[{number}]: {}", of_source(error, *.number))]
    OfSource { number: usize, error: Box<DataError> },
    #[error(
        "data.source[{0}] has no place in an epoch of {1} samples: its weight is too small beside the others; raise it, or remove \
         the source"
    )]
    NoPlace(usize, usize),
    #[error("the field `{field}` is {one}, but {other}; give all sources the same fields")]
    OtherFields { field: String, one: String, other: String },
    #[error(
        "classes in {0}: {1}, fewer than the {2} of an episode; add classes, or lower data.episodes.n_way"
    )]
    FewClasses(String, usize, usize),
    #[error(
        "images of the class {class} in {place}: {found}, fewer than the {needed} that an episode takes (k_shot and n_query); add \
         images, remove the class, or lower data.episodes.k_shot or n_query"
    )]
    SmallClass { place: String, class: String, found: usize, needed: usize },
    #[error("the name of {} is not valid UTF-8; rename it", .0.display())]
    NotUnicode(PathBuf),
    #[error(
        "{} of {} images cannot be used, more than the 1% that a run tolerates; replace or remove them:{}", .0.len(), .1, lines(.0)
    )]
    TooManyBad(Vec<BadSample>, usize),
    #[error(
        "{} of {} texts cannot be used, more than the 1% that a run tolerates; correct or remove them:{}", .0.len(), .1, lines(.0)
    )]
    TooManyBadTexts(Vec<BadSample>, usize),
    #[error("no image of class `{}` can be used; replace them or remove the class:{}", .0, lines(.1))]
    ClassLost(String, Vec<BadSample>),
    #[error(
        "{} has images of one class only, `{}`, but a classifier needs at least two; {}", .0.display(), .1, .2
    )]
    OneClass(PathBuf, String, &'static str),
    #[error(
        "data.val takes a part of the samples by the paths of their images, and those in {} have no images; name a set of \
         validation samples in data.val",
        .0.display()
    )]
    NoPathToDivide(PathBuf),
    #[error(
        "data.val = {part} of the {} in {} leaves no {set} samples{}; {}, or name a folder or set in it",
        counted(*samples, "sample"), place.display(), of_classes(missing), match missing.iter().all(|(_, all)| *all > 1) {
            // One sample is on one side, whatever the part.
            false => "add samples of it, remove data.val",
            true if *set == "training" => "lower data.val",
            true => "raise data.val",
        }
    )]
    Undivided {
        place: PathBuf,
        part: f64,
        set: &'static str,
        /// The classes without such samples, with the numbers of all their samples.
        missing: Vec<(String, usize)>,
        samples: usize,
    },
    #[error("the training masks in {} {}, but a model needs at least two classes to learn; {}", .0.display(), .1, .2)]
    OneMaskClass(PathBuf, String, String),
    #[error(
        "every pixel of the masks of the set {} in {} has the value {}, which data.ignore = {} excludes; \
         set data.ignore to the value that means no class",
        .0, .1.display(), .2, .2
    )]
    NothingToTest(String, PathBuf, i64),
    #[error(
        "every pixel of the maps in {} has the value of data.ignore; set data.ignore to the value that means no number",
        .0.display()
    )]
    EmptyMaps(PathBuf),
    #[error(
        "the training targets {} are all {}, and data.normalize_targets divides by their standard deviation; remove them, or \
         set data.normalize_targets = false", .0, .1
    )]
    EqualTargets(String, f64),
    /// A problem in a line, or in the whole file if that is 0.
    #[error("{}{}: {}", .0.display(), match .1 { 0 => String::new(), line => format!(":{line}") }, .2)]
    Table(PathBuf, usize, TableProblem),
    /// A problem of a file with many samples.
    #[error("{}: {}", .0.display(), .1)]
    Pack(PathBuf, Box<PackProblem>),
    #[error(
        "cannot read {}: {}; {}", .0.display(), .1,
        remedy_of(.1, .2)
    )]
    UnreadableTable(PathBuf, #[source] io::Error, &'static str),
    #[error(
        "{} in {} without a line in {}: {}; add lines, or remove the images",
        plural(.1.len(), "image", "images"), .0.display(), .2, listed(.1)
    )]
    NoTargets(PathBuf, Vec<String>, &'static str),
    #[error(
        "{} and {} disagree: {} in the first alone{}; {} in the second alone{}; download both files again",
        .0[0].display(), .0[1].display(), plural(.1.len(), "number", "numbers"), names(.1),
        plural(.2.len(), "number", "numbers"), names(.2)
    )]
    OtherNumbers(Box<[PathBuf; 2]>, Vec<String>, Vec<String>),
    #[error(
        "{} has the targets {}, but the training split has {}; give both the same names in the same order",
        .0.display(), listed(.1), listed(.2)
    )]
    OtherTargets(PathBuf, Vec<String>, Vec<String>),
    #[error(
        "cannot read the text {}: {}; {}", .0.display(), .1,
        remedy_of(.1, "set data.root to a text file or to a folder of .txt files")
    )]
    UnreadableText(PathBuf, #[source] io::Error),
    #[error("{} has no .txt files; set data.root to a text file or to a folder of .txt files", .0.display())]
    NoTexts(PathBuf),
    #[error("the text {} is empty; remove it from the folder of data.root, or set data.root to another text", .0.display())]
    EmptyText(PathBuf),
    #[error("the text {} is {}", .0.display(), .1)]
    ForeignText(PathBuf, String),
    #[error(
        "the text {} has only the character {:?}, so a model has nothing to learn; set data.root to another text",
        .0.display(), .1
    )]
    OneCharacter(PathBuf, char),
    #[error(
        "the {part} part of the text has {tokens} tokens, and one window of model.context = {context} needs {}; use a longer \
         text, lower model.context or change {}",
        context + 1, fractions(part)
    )]
    ShortText { part: &'static str, tokens: usize, context: usize },
    #[error(
        "the {part} part of the text has none of its {documents} documents of two or more tokens; use a text with more \
         documents, set data.documents to another unit or change {}",
        fractions(part)
    )]
    NoDocuments { part: &'static str, documents: usize },
    #[error(
        "the text has the character {0:?} (character {1}), which the vocabulary of {2} characters lacks; use the text \
         of the vocabulary, or start a new run"
    )]
    UnknownCharacter(char, usize, usize),
    #[error(
        "cannot read the tokenizer {}: {}; {}", .0.display(), .1,
        remedy_of(.1, "set data.tokenizer to a tokenizer.json")
    )]
    UnreadableTokenizer(PathBuf, #[source] io::Error),
    #[error("the tokenizer {}: {}", .0.display(), .1)]
    BadTokenizer(PathBuf, String),
    #[error(
        "data.repeat: the tokenizer has no token {0:?}; name one of its added tokens, and set data.tokenizer to a tokenizer.json"
    )]
    NoToken(String),
    #[error(
        "none of the {count} {set} samples has a target within model.context = {context} tokens: the prompts are longer; raise \
         model.context, or shorten them"
    )]
    NoTextTargets { set: String, count: usize, context: usize },
    #[error(
        "cannot read the token file {}: {}; {}", .0.display(), .1,
        remedy_of(.1, "set data.root to a file of tokens (.bin), or to a folder with one for each set")
    )]
    UnreadableTokens(PathBuf, #[source] io::Error),
    #[error("the token file {}: {}", .0.display(), .1)]
    BadTokens(PathBuf, TokenProblem),
    #[error(
        "the text at {} differs from the text of rank 0; give all machines the same files, and do not change them while a \
         run starts", .0.display()
    )]
    TextDiffers(PathBuf),
    #[error(
        "cannot keep the list of files in shared memory: {0}; free memory, or allow memfd_create to this process"
    )]
    NoSharedMemory(#[from] MemoryError),
    #[error("cannot start a loader thread: {0}; lower data.workers or raise the process limit")]
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
    #[error(
        "it has {}x{} pixels, expected {}x{}; set data.resize = \"crop\" or \"stretch\"{}",
        .0.0, .0.1, .1.0, .1.1, turned(*.0, *.1)
    )]
    Size((u32, u32), (u32, u32)),
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

impl DataError {
    pub(super) fn pack(path: PathBuf, problem: PackProblem) -> Self {
        Self::Pack(path, Box::new(problem))
    }

    /// Says in which of `count` sources it is.
    #[must_use]
    pub fn in_source(self, number: usize, count: usize) -> Self {
        if count == 1 { self } else { Self::OfSource { number, error: Box::new(self) } }
    }
}

/// Names the settings that decide the size of a part of a text.
fn fractions(part: &str) -> &'static str {
    match part {
        "test" => "data.test_fraction",
        "validation" => "data.val",
        _ => "data.test_fraction or data.val",
    }
}

/// Names classes with the numbers of their samples.
fn of_classes(missing: &[(String, usize)]) -> String {
    let named = missing.iter().take(MOST_NAMED);
    let mut words: Vec<_> =
        named.map(|(name, samples)| format!("{name:?} ({})", counted(*samples, "sample"))).collect();
    match missing.len() {
        0 => return String::new(),
        count if count > MOST_NAMED => words.push(format!("{} more", count - MOST_NAMED)),
        _ => {}
    }
    let of = if missing.len() == 1 { "class" } else { "classes" };
    format!(" of the {of} {}", words.join(", "))
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
            Self::Size(..) | Self::PixelSize(..) => "of another size",
            Self::LossyMask(..) => "a mask with lossy compression",
            Self::ColorMask(_) | Self::ColorMap(_) => "in colour where numbers are expected",
            Self::MaskValue { .. } => "a mask with a value outside of the classes",
            Self::MaskColor { .. } => "a mask with a colour that no class has",
            Self::Damaged(_) => "damaged",
            Self::TooLarge(..) => "too large",
            Self::Token { .. } => "with tokens outside of the vocabulary",
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
fn remedy_of(error: &io::Error, usual: &'static str) -> &'static str {
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

/// Names the setting for files that were turned, if the sizes differ like those of a turned image.
fn turned(one: (u32, u32), other: (u32, u32)) -> &'static str {
    match one == (other.1, other.0) {
        true => {
            "; if a file has an EXIF orientation, data.orientation = \"exif\" turns it, and \"stored\" leaves it as its \
             pixels are stored"
        }
        false => "",
    }
}

fn plural(count: usize, one: &str, many: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

/// Writes an error of one of several sources, with its keys.
fn of_source(error: &DataError, number: usize) -> String {
    let mut text = error.to_string();
    for key in ["root", "train_masks", "test_masks", "train", "test", "fields", "pair"] {
        // A longer key begins with a shorter one.
        for end in [" ", ",", ".", ";", "\"", ")"] {
            text = text.replace(&format!("data.{key}{end}"), &format!("data.source[{number}].{key}{end}"));
        }
    }
    text
}

/// Names the kinds of files that are no images, if there are any.
fn others(ignored: &Ignored) -> String {
    match ignored.files() {
        0 => String::new(),
        _ => format!(" (files that are no images to dtrain: {ignored})"),
    }
}

fn loose_note(images: usize) -> String {
    match images {
        0 => String::new(),
        1 => " (1 image lies directly in it)".to_owned(),
        n => format!(" ({n} images lie directly in it)"),
    }
}

#[cfg(test)]
mod tests;
