//! Residual networks. torchvision's and timm's names are the same.

use super::numbered;

/// The name in `ResNetForImageClassification` of torchvision's tensor.
pub(super) fn huggingface(name: &str) -> Option<String> {
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

/// `conv2.weight`: 1, `convolution`, `weight`.
fn layer_of(name: &str) -> Option<(usize, &'static str, &str)> {
    let (part, rest) = match name.strip_prefix("conv") {
        Some(rest) => ("convolution", rest),
        None => ("normalization", name.strip_prefix("bn")?),
    };
    let (number, kind) = numbered(rest)?;
    Some((number.checked_sub(1)?, part, kind))
}
