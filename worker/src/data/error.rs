//! What can go wrong with data: [`DataError`] ends a run, [`SampleError`] costs one sample.

use std::io;
use std::path::PathBuf;

/// How many names or files a message lists before it only counts.
const LISTED: usize = 5;

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
        super::image_folder::EXTENSIONS.join(", "), if classes.len() == 1 { "folder" } else { "folders" }
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
    /// An image index that does not read back; sender and receiver are of different versions.
    #[error(
        "the list of images sent between ranks cannot be read ({reason}); start all ranks with the same dtrain"
    )]
    Index {
        /// What is wrong with it.
        reason: String,
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

/// Why one sample cannot be used. It names no path: [`BadSample`] does.
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
