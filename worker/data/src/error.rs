//! What can go wrong with data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::io;
use std::path::PathBuf;

use super::ignored::EXTENSIONS;
use super::mask_rule::{MaskKind, MaskRule};
pub use super::sample_error::SampleError;

/// How many names or files a message lists before it only counts.
const LISTED: usize = 5;

/// Files that cannot be read and are named one by one before they are only counted.
pub const MOST_NAMED: usize = 20;

/// An error that ends the run. Each message says where it is and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// A split's folder, or the data root above it, does not exist.
    #[error("there is no folder {}; {hint}", path.display())]
    MissingFolder {
        /// The folder looked for.
        path: PathBuf,
        /// What was found instead and which setting names the folder.
        hint: String,
    },
    /// A file stands where a folder is needed.
    #[error("{} is not a folder; images are read from folders, one for each class", path.display())]
    NotAFolder {
        /// The path that is not a folder.
        path: PathBuf,
    },
    /// A folder that cannot be listed.
    #[error("the folder {} cannot be listed ({source}); give the user who runs dtrain read and execute permission", path.display())]
    UnreadableFolder {
        /// The folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A split without class folders.
    #[error(
        "{} has no class folders{}; expected one folder for each class with images in it, as in {}/cat/001.png",
        path.display(), loose_note(*loose_images), path.display()
    )]
    NoClasses {
        /// The split's folder.
        path: PathBuf,
        /// Images that lie directly in it.
        loose_images: usize,
    },
    /// Class folders in which no image was found.
    #[error(
        "{} in {} no images: {}; add images ({}) or remove the {}",
        plural(classes.len(), "class folder", "class folders"), path.display(), listed(classes),
        EXTENSIONS.join(", "), if classes.len() == 1 { "folder" } else { "folders" }
    )]
    EmptyClasses {
        /// The split's folder.
        path: PathBuf,
        /// The classes without images.
        classes: Vec<String>,
    },
    /// The test split has classes that the training split lacks.
    #[error(
        "{} has {} that the training split lacks: {}; a model cannot be tested on what it was never shown, \
         so add training images or remove the folders",
        path.display(), plural(classes.len(), "class", "classes"), listed(classes)
    )]
    UnknownClasses {
        /// The test split's folder.
        path: PathBuf,
        /// The classes that only it has.
        classes: Vec<String>,
    },
    /// A folder of images without any.
    #[error(
        "there are no images in {}; add images ({}) or set data.root and the names of its folders to where they are",
        path.display(), EXTENSIONS.join(", ")
    )]
    NoImages {
        /// The folder.
        path: PathBuf,
    },
    /// Images without masks, or masks without images.
    #[error(
        "images and masks do not pair up by name: {} in {} without a mask in {}{}; {} without an image{}; give both the \
         same names (endings may differ) or remove what has no partner",
        plural(images.len(), "image", "images"), image_folder.display(), mask_folder.display(), names(images),
        plural(masks.len(), "mask", "masks"), names(masks)
    )]
    Unpaired {
        /// The folder of images.
        image_folder: PathBuf,
        /// The folder of masks.
        mask_folder: PathBuf,
        /// Images without a mask, by name.
        images: Vec<String>,
        /// Masks without an image, by name.
        masks: Vec<String>,
    },
    /// Two files whose names differ in their ending alone, so that neither can be paired.
    #[error(
        "{} has two files `{first}` and `{second}` of one name but for the ending; rename or remove one, since images and \
         masks are paired by name",
        path.display()
    )]
    SameName {
        /// The folder.
        path: PathBuf,
        /// One of them.
        first: String,
        /// The other.
        second: String,
    },
    /// Images of different sizes that are not to be resized.
    #[error(
        "{path} is {}x{} pixels where {} is {}x{}; data.resize = \"none\" uses images as they are, so set data.resize = \
         \"crop\" or \"stretch\", or make all images of one size",
        size.0, size.1, first, expected.0, expected.1
    )]
    MixedSizes {
        /// The image that differs.
        path: String,
        /// Its width and height.
        size: (u32, u32),
        /// The image that gave the size.
        first: String,
        /// The size of the others.
        expected: (u32, u32),
    },
    /// A name that is not valid UTF-8.
    #[error("the name of {} is not valid UTF-8; rename it", path.display())]
    NotUnicode {
        /// The file or folder.
        path: PathBuf,
    },
    /// More than 1% of the images are bad.
    #[error(
        "{bad} of {total} images cannot be used, and more than 1% is taken for damage to the data set; \
         replace or remove them: {}{}", lines(first), more(*bad, first.len())
    )]
    TooManyBad {
        /// How many are bad.
        bad: usize,
        /// Out of how many.
        total: usize,
        /// The first few.
        first: Vec<BadSample>,
    },
    /// All images of a class are bad.
    #[error(
        "no image of class `{class}` can be used; replace them or remove the class: {}{}",
        lines(first), more(*bad, first.len())
    )]
    ClassLost {
        /// The class.
        class: String,
        /// How many images it had, all bad.
        bad: usize,
        /// The first few.
        first: Vec<BadSample>,
    },
    /// Classes of one name only.
    #[error(
        "{} holds images of one class only, `{class}`, and a classifier needs two or more; add a folder of images for each other \
         class, or set data.root and data.train to the folder that holds the class folders",
        path.display()
    )]
    OneClass {
        /// The split's folder.
        path: PathBuf,
        /// Its class.
        class: String,
    },
    /// Masks that tell nothing apart.
    #[error(
        "the training masks in {} {}, and a model needs two classes or more to learn; {}",
        path.display(), mask_class(*only, *ignored, *rule), mask_remedy(*ignored, *rule)
    )]
    OneMaskClass {
        /// The folder of masks.
        path: PathBuf,
        /// Their class; none where no pixel has one.
        only: Option<usize>,
        /// The share of the pixels that is left out.
        ignored: f64,
        /// How they are read.
        rule: MaskRule,
    },
    /// Test masks of pixels that are all left out.
    #[error(
        "every pixel of the test masks in {} has the value {ignore}, which data.ignore = {ignore} leaves out, so nothing is left to \
         test with; set data.ignore to the value that means no class",
        path.display()
    )]
    NothingToTest {
        /// The folder of masks.
        path: PathBuf,
        /// The value.
        ignore: i64,
    },
    /// A text, or a folder of texts, that cannot be read.
    #[error("the text {} cannot be read ({source}); set data.root to a text file or to a folder of .txt files", path.display())]
    UnreadableText {
        /// The file or folder.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A folder without texts.
    #[error("there are no .txt files in {}; set data.root to a text file or to a folder of .txt files", path.display())]
    NoTexts {
        /// The folder.
        path: PathBuf,
    },
    /// A text of no characters.
    #[error("the text {} is empty; set data.root to one that is not", path.display())]
    EmptyText {
        /// The file.
        path: PathBuf,
    },
    /// A text in another encoding.
    #[error(
        "the text {} is not UTF-8 from byte {at} on; convert it to UTF-8, for example with iconv", path.display()
    )]
    NotUtf8 {
        /// The file.
        path: PathBuf,
        /// The first byte that does not belong to a character, from 0.
        at: usize,
    },
    /// A text without enough tokens for a window.
    #[error(
        "the {part} part of the text has {tokens} tokens, and one window of model.context = {context} needs {}; use a longer \
         text, lower model.context or change data.test_fraction",
        context + 1
    )]
    ShortText {
        /// "training" or "test".
        part: &'static str,
        /// Tokens of that part.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// A character that the vocabulary lacks.
    #[error(
        "the text has the character {character:?} (character {at}), which the vocabulary of {size} characters lacks; train on \
         the text that the vocabulary was made of, or start a new run"
    )]
    UnknownCharacter {
        /// The character.
        character: char,
        /// Its place in the text, from 0.
        at: usize,
        /// Characters of the vocabulary.
        size: usize,
    },
    /// Ranks that read different texts.
    #[error(
        "the text below {} is not the one that rank 0 read; give all machines the same files and leave them unchanged while a run \
         starts", path.display()
    )]
    TextDiffers {
        /// The first file.
        path: PathBuf,
    },
    /// A loader thread could not be started.
    #[error("a loader thread cannot be started ({source}); lower data.workers or raise the process limit")]
    ThreadStart {
        /// Why not.
        source: io::Error,
    },
    /// The code that loads samples or plans batches panicked.
    #[error(
        "loading stopped at {at}: {message}; this is a bug in dtrain or in the data set's code, please report it"
    )]
    Panicked {
        /// The sample, or the planning of the next batch.
        at: String,
        /// The panic's message.
        message: String,
    },
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

impl std::fmt::Display for BadSample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// The first few of `bad`, for a message.
pub(super) fn first_few(bad: &[BadSample]) -> Vec<BadSample> {
    bad.iter().take(LISTED).cloned().collect()
}

/// "a, b, c" or, of many, "a, b, c, d, e and 7 more".
pub(super) fn listed<S: AsRef<str>>(names: &[S]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(LISTED)
        .map(|name| format!("`{}`", name.as_ref()))
        .collect();
    let rest = names.len() - shown.len();
    if rest == 0 {
        shown.join(", ")
    } else {
        format!("{} and {rest} more", shown.join(", "))
    }
}

/// ": `a`, `b`", or nothing for no names.
fn names<S: AsRef<str>>(all: &[S]) -> String {
    if all.is_empty() {
        String::new()
    } else {
        format!(": {}", listed(all))
    }
}

fn lines(bad: &[BadSample]) -> String {
    bad.iter().map(|image| format!("\n  {image}")).collect()
}

fn more(total: usize, shown: usize) -> String {
    if total > shown {
        format!("\n  and {} more", total - shown)
    } else {
        String::new()
    }
}

/// What the masks hold instead of two classes.
fn mask_class(only: Option<usize>, ignored: f64, rule: MaskRule) -> String {
    let left_out = format!(
        "{:.1}% of the pixels have the value {}, which data.ignore leaves out",
        100.0 * ignored,
        rule.ignore
    );
    match only {
        None => format!("hold no class: {left_out}"),
        Some(class) if ignored > 0.0 => format!("hold class {class} alone: {left_out}"),
        Some(class) => format!("hold class {class} alone"),
    }
}

fn mask_remedy(ignored: f64, rule: MaskRule) -> &'static str {
    match rule.kind {
        MaskKind::Index if ignored > 0.0 => {
            "if every value but 0 is the object, set data.masks = \"binary\"; else set data.ignore to the value that means no class"
        }
        MaskKind::Index => {
            "the value of a pixel is its class: if these are other files, set data.train_masks to the folder of the masks"
        }
        MaskKind::Binary if ignored > 0.0 => "set data.ignore to another value than 0 and 1",
        MaskKind::Binary => {
            "0 is class 0 and any other value class 1: if these are other files, set data.train_masks to the folder of the masks"
        }
    }
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
