//! Errors for modules that cannot be trained.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use dtrain_common::content::Content;
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::jit::{FixedMode, LoadError};
use thiserror::Error;

/// A TorchScript module that cannot be trained. Every variant names the file.
#[derive(Debug, Error)]
pub enum ScriptError {
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("{}: {reason}", path.display())]
    Unfit { path: PathBuf, reason: String },
    #[error(
        "{}: the module's forward({}) failed: {}; change the module, model.loss, data.image_size or data.channels",
        path.display(), if *with_label { "image, label" } else { "image" }, reason(source)
    )]
    Call { path: PathBuf, with_label: bool, source: ShimError },
    #[error("{}: {source}", path.display())]
    Torch { path: PathBuf, source: ShimError },
}

impl ScriptError {
    /// Returns the error of loading a module, or says which other kind of file it is.
    pub(super) fn of_load(path: &Path, error: LoadError) -> Self {
        let content = match &error {
            LoadError::NotTorchScript(..) => Content::of_file(path),
            _ => None,
        };
        let remedy = match content {
            None | Some(Content::TorchScript | Content::Zip) => return error.into(),
            Some(Content::Exported) => {
                "set task to that of the data, such as \"classify\": it reads such files".to_owned()
            }
            Some(other) => other.remedy(path).unwrap_or_else(|| {
                "write it in Python with torch.jit.script(model).save(\"model.pt\")".to_owned()
            }),
        };
        let content = content.map(|content| content.to_string()).unwrap_or_default();
        let reason = format!("the file is {content}, not a TorchScript module; {remedy}");
        Self::Unfit { path: path.to_owned(), reason }
    }

    /// Returns whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Call { source, .. }
            | Self::Torch { source, .. }
            | Self::Load(LoadError::Load(_, source)) => source.is_out_of_memory(),
            Self::Load(_) | Self::Unfit { .. } => false,
        }
    }
}

/// Formats "batch_norm is fixed in evaluation mode, dropout is fixed in training mode".
pub(super) fn modes(fixed: &BTreeSet<FixedMode>) -> String {
    let words = |it: &FixedMode| {
        let mode = if it.training { "training" } else { "evaluation" };
        format!("{} is fixed in {mode} mode", it.operation)
    };
    fixed.iter().map(words).collect::<Vec<_>>().join(", ")
}

/// Returns the reason in the message: the last line of the interpreter's traceback, otherwise the first line.
fn reason(error: &ShimError) -> &str {
    let lines = error.message.lines().map(str::trim);
    let mut lines = lines.filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("no reason given");
    if first.contains("interpreter") { lines.next_back().unwrap_or(first) } else { first }
}
