//! Errors of data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::fmt;
use std::io;
use std::path::PathBuf;

use dtrain_common::text::counted;
use dtrain_shared_memory::MemoryError;

use super::annotation_problem::AnnotationProblem;
use super::ignored::{EXTENSIONS, Ignored};
use super::names::{LISTED, listed};
use super::pack_problem::PackProblem;
pub(super) use super::sample_error::no_image;
pub use super::sample_error::{Result, SampleError};
use super::sample_error::{remedy_of, turned};
use super::table_problem::TableProblem;
use super::token_problem::TokenProblem;

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
        "{}: a sample of this model is not one image; name a table (.csv, .jsonl) with the columns {}", .0.display(), .1
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
        "data.test = \"train:{part}\" of the {} in {} leaves no training or no test samples; add samples, or name a test set",
        counted(*samples, "sample"), place.display()
    )]
    NoTestPart { place: PathBuf, part: f64, samples: usize },
    #[error(
        "data.val = {part} of the {} in {} leaves no {set} samples{}; {}, or name a folder or set in it",
        counted(*samples, "sample"), place.display(), of_classes(missing), match missing.iter().all(|(_, all)| *all > 1) {
            // One sample is on one side, whatever the part.
            false => "add samples of it, remove data.val",
            true if *set == "validation" => "raise data.val",
            true => "lower data.val",
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
