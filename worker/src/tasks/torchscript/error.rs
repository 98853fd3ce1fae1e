//! Modules that cannot be trained.

use std::collections::BTreeSet;
use std::path::PathBuf;

use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::jit::{Fixed, LoadError};
use thiserror::Error;

/// A TorchScript module that cannot be trained. Every variant names the file.
#[derive(Debug, Error)]
pub enum ScriptError {
    /// The file.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// There is nothing to train.
    #[error(
        "{}: the module has no parameters, so there is nothing to train. Save the network itself, before torch.jit.freeze: \
         torch.jit.script(model).save(\"model.pt\").",
        path.display()
    )]
    NoParameters {
        /// The file.
        path: PathBuf,
    },
    /// A trace, which does the same in training and in evaluation.
    #[error(
        "{}: the module cannot change between training and evaluation: {}, as torch.jit.trace left {}. Save it by \
         torch.jit.script(model).save(\"model.pt\"), which keeps both modes.",
        path.display(), modes(fixed), if fixed.len() == 1 { "it" } else { "them" }
    )]
    Traced {
        /// The file.
        path: PathBuf,
        /// The operations that should change.
        fixed: BTreeSet<Fixed>,
    },
    /// The module fails on the data's images.
    #[error(
        "{}: {}: {}. Change the module, model.loss, or the images by data.image_size and data.channels.",
        path.display(), call(*with_label), reason(source)
    )]
    Call {
        /// The file.
        path: PathBuf,
        /// Whether it was given labels besides images.
        with_label: bool,
        /// The cause, with the interpreter's traceback.
        source: ShimError,
    },
    /// The output's shape does not go with the loss.
    #[error(
        "{}: with model.loss = \"{loss}\" the module has to return {expected}, but of {samples} image(s) it returned the shape \
         {got:?}. Change the module or model.loss.",
        path.display()
    )]
    Output {
        /// The file.
        path: PathBuf,
        /// The recipe's `model.loss`.
        loss: &'static str,
        /// What it has to return, in words.
        expected: String,
        /// N.
        samples: i64,
        /// What it returned.
        got: Vec<i64>,
    },
    /// Anything else that libtorch refuses.
    #[error("{}: {source}", path.display())]
    Torch {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: ShimError,
    },
}

impl ScriptError {
    /// Whether memory ran out.
    pub fn is_out_of_memory(&self) -> bool {
        match self {
            Self::Call { source, .. }
            | Self::Torch { source, .. }
            | Self::Load(LoadError::Load { source, .. }) => source.is_out_of_memory(),
            Self::Load(_) | Self::NoParameters { .. } | Self::Traced { .. } | Self::Output { .. } => false,
        }
    }
}

/// "batch_norm is fixed in evaluation mode, dropout is fixed in training mode".
fn modes(fixed: &BTreeSet<Fixed>) -> String {
    let words = |it: &Fixed| {
        let mode = if it.training { "training" } else { "evaluation" };
        format!("{} is fixed in {mode} mode", it.operation)
    };
    fixed.iter().map(words).collect::<Vec<_>>().join(", ")
}

fn call(with_label: bool) -> &'static str {
    if with_label {
        "the module's forward(image, label) failed"
    } else {
        "the module's forward(image) failed"
    }
}

/// The interpreter's message is a traceback; the reason is its last line.
fn reason(error: &ShimError) -> &str {
    let lines = error
        .message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    // Mismatched arguments are explained in the first line, and followed by the declaration.
    let mut lines = lines.clone().take(1).chain(lines.rev().take(1));
    let (first, last) = (lines.next().unwrap_or("no reason given"), lines.next());
    if first.contains("interpreter") {
        last.unwrap_or(first)
    } else {
        first
    }
}
