//! ResNet-18 to ResNet-152 (He et al. 2015, arXiv 1512.03385) with torchvision's structure and names.

use tch::Tensor;

use super::error::ModelError;
use super::layers::{BatchNorm, Conv2d, ConvOptions, Linear};
use super::layout::{input_layout, input_size};
use super::recompute::Segment;
use super::registry::{Registry, Scope};
use super::{Classifier, settings};

/// The inner channels of the four stages.
const STAGE_CHANNELS: [i64; 4] = [64, 128, 256, 512];

/// The ratio of a bottleneck block's output channels to its inner channels.
const EXPANSION: i64 = 4;

/// The number of times that a side is halved and rounded up until the last feature map.
const HALVINGS: usize = 5;

/// The structure of a residual network.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Blocks of each stage.
    pub(super) blocks: [usize; 4],
    /// Whether a block has three convolutions (1 x 1, 3 x 3, 1 x 1) instead of two of 3 x 3.
    pub(super) bottleneck: bool,
}

/// Convolutions with batch normalisation, all but the last also with ReLU, and a residual connection. A
/// convolution may halve the image; then the residual connection does too.
#[derive(Debug)]
struct Block {
    layers: Vec<(Conv2d, BatchNorm)>,
    downsample: Option<(Conv2d, BatchNorm)>,
}

impl Block {
    /// Builds a block with `inner` inner channels; a bottleneck's output has [`EXPANSION`] times as many. The
    /// stride is on the 3 x 3 convolution (version 1.5, as in torchvision), which loses less.
    fn new(
        scope: &mut Scope<'_>,
        (input, inner): (i64, i64),
        stride: i64,
        bottleneck: bool,
    ) -> Result<Self, ModelError> {
        let output = if bottleneck { inner * EXPANSION } else { inner };
        let shapes: &[(i64, i64, i64, i64)] = if bottleneck {
            &[(1, input, inner, 1), (3, inner, inner, stride), (1, inner, output, 1)]
        } else {
            &[(3, input, output, stride), (3, output, output, 1)]
        };
        let mut layers = Vec::with_capacity(shapes.len());
        for (index, (kernel, from, to, stride)) in shapes.iter().copied().enumerate() {
            let number = index + 1;
            let options = ConvOptions { stride, padding: kernel / 2, ..ConvOptions::kernel(kernel) };
            let conv = Conv2d::new(&mut scope.sub(format_args!("conv{number}")), (from, to), options)?;
            let mut norm = scope.sub(format_args!("bn{number}"));
            // With a last weight of 0 the branch initially adds nothing.
            let weight = if number == shapes.len() { 0.0 } else { 1.0 };
            layers.push((conv, BatchNorm::with_weight(&mut norm, to, weight)?));
        }
        let downsample = if stride != 1 || input != output {
            let mut scope = scope.sub("downsample");
            let options = ConvOptions { stride, ..ConvOptions::kernel(1) };
            let conv = Conv2d::new(&mut scope.sub(0), (input, output), options)?;
            Some((conv, BatchNorm::new(&mut scope.sub(1), output)?))
        } else {
            None
        };
        Ok(Self { layers, downsample })
    }

    // ReLU and the addition work in place, which saves an allocation each: backward needs a batch norm's
    // input and a ReLU's output, and nothing in between.
    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let mut out = x.shallow_clone();
        for (index, (conv, bn)) in self.layers.iter().enumerate() {
            if index > 0 {
                out = out.f_relu_()?;
            }
            out = bn.forward(&conv.forward(&out, train)?, train)?;
        }
        let mut out = match &self.downsample {
            Some((conv, bn)) => out.f_add_(&bn.forward(&conv.forward(x, train)?, train)?)?,
            None => out.f_add_(x)?,
        };
        Ok(out.f_relu_()?)
    }
}

fn stem((conv, bn): &(Conv2d, BatchNorm), images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
    let mut x = bn.forward(&conv.forward(images, train)?, train)?;
    Ok(x.f_relu_()?.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?)
}

/// A residual network without dropout.
///
/// Every block starts as the identity: the last batch norm of its branch has initial weight 0 (Goyal et al.
/// 2017, arXiv 1706.02677, section 5.1; torchvision's `zero_init_residual`). Otherwise the first steps on
/// small images are chaotic: a difference in the last digit grows to the second digit in twenty steps.
#[derive(Debug)]
pub(super) struct ResNet {
    /// The layers before the blocks. For large images they keep more activations than any block.
    stem: Segment<(Conv2d, BatchNorm)>,
    blocks: Vec<Segment<Block>>,
    fc: Linear,
    channels: i64,
    channels_last: bool,
    synced: bool,
}

impl ResNet {
    pub(super) fn new(
        layout: Layout,
        channels: usize,
        classes: usize,
        registry: &mut Registry,
    ) -> Result<Self, ModelError> {
        let channels = settings::check_positive(channels, ModelError::NoChannels)?;
        let classes = settings::check_positive(classes, ModelError::NoClasses)?;
        let (channels_last, synced) = (registry.channels_last, registry.is_batch_synced());
        let mut root = registry.root();
        let stem = root.segment(|root| {
            let options = ConvOptions { stride: 2, padding: 3, ..ConvOptions::kernel(7) };
            let conv = Conv2d::new(&mut root.sub("conv1"), (channels, STAGE_CHANNELS[0]), options)?;
            Ok((conv, BatchNorm::new(&mut root.sub("bn1"), STAGE_CHANNELS[0])?))
        })?;
        let expansion = if layout.bottleneck { EXPANSION } else { 1 };
        let mut blocks = Vec::new();
        let mut input = STAGE_CHANNELS[0];
        for (stage, (inner, count)) in STAGE_CHANNELS.into_iter().zip(layout.blocks).enumerate() {
            let mut scope = root.sub(format_args!("layer{}", stage + 1));
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                let block =
                    |scope: &mut Scope<'_>| Block::new(scope, (input, inner), stride, layout.bottleneck);
                blocks.push(scope.sub(index).segment(block)?);
                input = inner * expansion;
            }
        }
        Ok(Self {
            stem,
            blocks,
            fc: Linear::new(&mut root.sub("fc"), input, classes)?,
            channels,
            channels_last,
            synced,
        })
    }

    /// Computes the last feature map.
    fn features(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let images = input_layout(images, self.channels_last)?;
        let mut x = self.stem.run(&images, move |layers, x| stem(layers, x, train))?;
        for block in &self.blocks {
            x = block.run(&x, move |block, x| block.forward(x, train))?;
        }
        Ok(x)
    }
}

impl Classifier for ResNet {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        input_size(images, self.channels, self.synced)?;
        let x = self.features(images, train)?.f_adaptive_avg_pool2d([1, 1])?;
        self.fc.forward(&x.f_flatten(1, -1)?, train)
    }

    fn min_micro_batch(&self, image_size: usize) -> usize {
        let side = (0..HALVINGS).fold(image_size, |side, _| side.div_ceil(2));
        if side > 1 || self.synced { 1 } else { 2 }
    }
}

#[cfg(test)]
mod tests;
