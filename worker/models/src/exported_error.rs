//! Errors in files of exported programs.

use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::content::Content;
use dtrain_torch_shim::ShimError;
use thiserror::Error;

/// An error in a file of an exported program.
#[derive(Debug, Error)]
#[error("{}: {problem}", path.display())]
pub struct ExportedError {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: Box<Problem>,
}

impl ExportedError {
    pub(super) fn new(path: &Path, problem: Problem) -> Self {
        let path = path.to_owned();
        Self { path, problem: Box::new(problem) }
    }
}

/// The major version of programs that dtrain reads.
pub(super) const SCHEMA: u64 = 8;

pub(super) type Result<T, E = ExportedError> = std::result::Result<T, E>;

/// A problem with a file of an exported program.
#[derive(Debug, Error)]
pub enum Problem {
    /// The file could not be opened or read.
    #[error("the model cannot be read: {0}")]
    Read(#[source] io::Error),

    /// The file is not an archive of `torch.export.save`. Has a reason.
    #[error(
        "not an exported program: {0}; write the file by `dtrain import`, or by torch.export.save of torch 2.8 or newer"
    )]
    NotArchive(String),

    /// The file has another format: its name and a remedy.
    #[error("the file is {0}, not an exported program; {1}")]
    Foreign(Content, String),

    /// The file has the format of torch 2.5 to 2.7, with pickles.
    #[error("an archive of torch 2.7 or older, whose weights are pickled: write it again by `dtrain import`")]
    OldArchive,

    /// Bytes are missing or have changed. Has a reason.
    #[error("the file is damaged: {0}; write or copy it again")]
    Damaged(String),

    /// An entry is outside the archive's folder.
    #[error(
        "the entry `{0}` is outside the archive's folder: do not use a file that torch.export.save has not written"
    )]
    EntryName(String),

    /// An entry is compressed.
    #[error("the entry `{0}` is compressed: use the file as torch.export.save has written it")]
    Compressed(String),

    /// A description is too large to be one.
    #[error("the entry `{0}` has {1} bytes, too many for a description of a program")]
    TooLarge(String, u64),

    /// An entry is missing.
    #[error("the archive has no entry `{0}`: write the file again")]
    NoEntry(String),

    /// The archive has this number of programs.
    #[error("the archive has {0} programs, and dtrain takes one: save each in a separate file")]
    Programs(usize),

    /// A description is invalid: its entry and the reason.
    #[error("`{0}` is invalid: {1}; write the file by `dtrain import`")]
    Json(String, String),

    /// The schema's major and minor version, and the version of torch that wrote it.
    #[error("schema {0}.{1} of torch {2} is not supported: dtrain reads schema {major}; use a torch that writes it, such as 2.11", major = SCHEMA)]
    Schema(u64, u64, String),

    /// A tensor is pickled.
    #[error("the tensor `{0}` is pickled, because its class is not torch.Tensor: use plain tensors")]
    Pickled(String),

    /// A tensor has a type that dtrain does not know.
    #[error("the tensor `{0}` has the dtype number {1}, which dtrain does not support")]
    Dtype(String, i64),

    /// A tensor's shape and its data, or its use, do not fit. Has a reason.
    #[error("the tensor `{0}` does not fit: {1}; write the file again")]
    Tensor(String, String),

    /// Two tensors of these names have memory in common, as views of another shape or place.
    #[error(
        "the tensors `{0}` and `{1}` share memory as different views, and dtrain keeps tensors apart: make one of them in \
         forward from the other, or clone it"
    )]
    Overlap(String, String),

    /// The program's graph is invalid. Has a reason.
    #[error("the program is invalid: {0}; write the file again")]
    Graph(String),

    /// A text that is no condition of Python on sizes.
    #[error("the guard `{0}` cannot be read: write the file again by `dtrain import`")]
    Guard(String),

    /// A condition on sizes is false.
    #[error(
        "the program is not valid for {about}: its guard `{guard}` is false{place}; compute the same for all sizes in \
         the model, and import it again"
    )]
    False {
        /// The condition.
        guard: String,
        /// The place in the model's source, in words that follow; may be empty.
        place: String,
        /// The batch or the lengths, in words.
        about: String,
    },

    /// An input has a length for which the program is not valid.
    #[error(
        "the input `{input}` has length {length} in dimension {dim}, and the program takes {range}; change the data or \
         model.context, or import the model again"
    )]
    Length {
        /// The input.
        input: String,
        /// The dimension.
        dim: usize,
        /// The length.
        length: i64,
        /// The valid lengths.
        range: String,
    },

    /// The program takes or returns what dtrain cannot give or use. Has a reason and a remedy.
    #[error("{0}")]
    Unfit(String),

    /// An operation cannot be prepared: its name, the place in the model, and the reason.
    #[error("the operation {operation}{place} {}", reason(source))]
    Operation {
        /// The name.
        operation: String,
        /// The place in the model's source, in words that follow the name; may be empty.
        place: String,
        /// libtorch's reason.
        #[source]
        source: ShimError,
    },

    /// Gradients end at an operation: its name and the place in the model.
    #[error(
        "the operation {0}{1} has no derivative, and gradients must pass it: export the model without run_decompositions(), or \
         register a derivative in its library"
    )]
    Derivative(String, String),

    /// An operation that only Python can run: its name and the place in the model.
    #[error("the operation {0}{1} is not supported: replace it in the model by plain PyTorch operations")]
    Unsupported(String, String),
}

fn reason(source: &ShimError) -> String {
    use dtrain_torch_shim::ErrorKind;
    match source.kind {
        ErrorKind::NotImplemented => {
            "is unknown to libtorch: name the library that registers it in model.libraries".to_owned()
        }
        _ => format!("does not fit libtorch 2.11: {}", source.message),
    }
}
