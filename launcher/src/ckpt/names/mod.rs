//! Names and forms of a model's tensors in torchvision, timm, and Hugging Face's transformers. dtrain's own
//! names are torchvision's for ResNet, timm's for vision transformers, nanoGPT's for GPT.

mod transformers;

use crate::cli::Names;
use anyhow::{Context, bail};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) name: String,
    pub(super) form: Form,
}

/// How a tensor is made from the checkpoint's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Unchanged.
    Same,
    /// A matrix with rows and columns exchanged.
    Transposed,
    /// One of three equal parts of the rows: 0, 1 or 2.
    Third(u8),
}

/// Returns the tensors, at least one, that `tensor` of a checkpoint of `model` becomes under other names. It
/// is an error if the other program has no such model, or its model no such tensor.
pub(super) fn rename(names: Names, model: &str, tensor: &str) -> anyhow::Result<Vec<Piece>> {
    let same = |name: &str| vec![piece(name, Form::Same)];
    let found = match (names, model) {
        (Names::Pytorch, _) => Some(same(tensor)),
        (_, file) if file.to_ascii_lowercase().ends_with(".pt2") => {
            bail!(
                "the tensors of {file} have the names of the imported module already; leave out --names {names}"
            )
        }
        (Names::Torchvision | Names::Timm, _) if is_resnet(model) => {
            resnet_huggingface(tensor).map(|_| same(tensor))
        }
        (Names::Huggingface, _) if is_resnet(model) => resnet_huggingface(tensor).map(|name| same(&name)),
        (Names::Timm, "vit") => transformers::vit_torchvision(tensor).map(|_| same(tensor)),
        (Names::Torchvision, "vit") => transformers::vit_torchvision(tensor).map(|name| same(&name)),
        (Names::Huggingface, "vit") => transformers::vit_huggingface(tensor),
        (Names::Huggingface, "gpt") => transformers::gpt_huggingface(tensor),
        _ => {
            let gpt = if names == Names::Huggingface { ", vit and gpt" } else { " and vit" };
            bail!(
                "{names} has no model like {model:?}; these have: resnet18 to resnet152{gpt}. `--names pytorch` keeps the \
                 checkpoint's own names"
            )
        }
    };
    found.with_context(|| {
        format!("{tensor:?} has no counterpart in {names}'s {model}; `--names pytorch` keeps the checkpoint's own names")
    })
}

fn is_resnet(model: &str) -> bool {
    ["resnet18", "resnet34", "resnet50", "resnet101", "resnet152"].contains(&model)
}

fn piece(name: impl Into<String>, form: Form) -> Piece {
    Piece { name: name.into(), form }
}

/// Returns the name in `ResNetForImageClassification` for torchvision's tensor.
fn resnet_huggingface(name: &str) -> Option<String> {
    if let Some(kind) = name.strip_prefix("fc.") {
        return Some(format!("classifier.1.{kind}"));
    }
    if let Some(stage) = name.strip_prefix("layer") {
        let (stage, rest) = numbered(stage)?;
        let (block, layer) = numbered(rest)?;
        let place = format!("resnet.encoder.stages.{}.layers.{block}", stage.checked_sub(1)?);
        if let Some(rest) = layer.strip_prefix("downsample.") {
            let (part, kind) = numbered(rest)?;
            let part = ["convolution", "normalization"].get(part)?;
            return Some(format!("{place}.shortcut.{part}.{kind}"));
        }
        let (number, part, kind) = layer_of(layer)?;
        return Some(format!("{place}.layer.{number}.{part}.{kind}"));
    }
    match layer_of(name)? {
        (0, part, kind) => Some(format!("resnet.embedder.embedder.{part}.{kind}")),
        _ => None,
    }
}

/// Splits `conv2.weight` into 1, `convolution` and `weight`.
fn layer_of(name: &str) -> Option<(usize, &'static str, &str)> {
    let (part, rest) = match name.strip_prefix("conv") {
        Some(rest) => ("convolution", rest),
        None => ("normalization", name.strip_prefix("bn")?),
    };
    let (number, kind) = numbered(rest)?;
    Some((number.checked_sub(1)?, part, kind))
}

/// Splits `3.norm1.weight` into 3 and `norm1.weight`.
fn numbered(text: &str) -> Option<(usize, &str)> {
    let (number, rest) = text.split_once('.')?;
    let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| number.parse().ok()).flatten().zip(Some(rest))
}

#[cfg(test)]
mod tests;
