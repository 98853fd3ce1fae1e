//! ResNet-18 and ResNet-34 (He et al., 2015) with the structure and the names of torchvision's.

use tch::Tensor;

use super::error::ModelError;
use super::layers::{BatchNorm2d, Conv2d, Linear};
use super::registry::{Registry, Scope};
use super::{Architecture, Classifier};

/// The channels of the four stages.
const STAGE_CHANNELS: [i64; 4] = [64, 128, 256, 512];

/// Each side of the last feature map is the image's, halved this many times and rounded up.
const HALVINGS: usize = 5;

/// Two convolutions with a way around them. The first may halve the image; then the way around does too.
#[derive(Debug)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    downsample: Option<(Conv2d, BatchNorm2d)>,
}

impl BasicBlock {
    fn new(scope: &mut Scope<'_>, input: i64, output: i64, stride: i64) -> Result<Self, ModelError> {
        Ok(Self {
            conv1: Conv2d::new(&mut scope.sub("conv1"), (input, output), 3, stride, 1)?,
            bn1: BatchNorm2d::new(&mut scope.sub("bn1"), output)?,
            conv2: Conv2d::new(&mut scope.sub("conv2"), (output, output), 3, 1, 1)?,
            bn2: BatchNorm2d::silent(&mut scope.sub("bn2"), output)?,
            downsample: if stride != 1 || input != output {
                let mut scope = scope.sub("downsample");
                let conv = Conv2d::new(&mut scope.sub(0), (input, output), 1, stride, 0)?;
                Some((conv, BatchNorm2d::new(&mut scope.sub(1), output)?))
            } else {
                None
            },
        })
    }

    // ReLU and the addition work in place, which saves an allocation each: the backward pass needs a batch norm's input
    // and a ReLU's output, and nothing needs what lies between.
    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let inner = self.bn1.forward(&self.conv1.forward(x)?, train)?.f_relu_()?;
        let mut out = self.bn2.forward(&self.conv2.forward(&inner)?, train)?;
        let mut out = match &self.downsample {
            Some((conv, bn)) => out.f_add_(&bn.forward(&conv.forward(x)?, train)?)?,
            None => out.f_add_(x)?,
        };
        Ok(out.f_relu_()?)
    }
}

/// A residual network of basic blocks.
///
/// Every block begins as the identity: the last batch norm of its branch starts with weight 0 (Goyal et al. 2017, arXiv
/// 1706.02677, section 5.1; torchvision's `zero_init_residual`). Without it the first steps of training at small images are
/// chaotic, and a difference in the last digit becomes one in the second within twenty steps.
#[derive(Debug)]
pub(super) struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    blocks: Vec<BasicBlock>,
    fc: Linear,
}

impl ResNet {
    pub(super) fn new(arch: Architecture, classes: i64, registry: &mut Registry) -> Result<Self, ModelError> {
        let mut root = registry.root();
        let conv1 = Conv2d::new(&mut root.sub("conv1"), (3, STAGE_CHANNELS[0]), 7, 2, 3)?;
        let bn1 = BatchNorm2d::new(&mut root.sub("bn1"), STAGE_CHANNELS[0])?;
        let mut blocks = Vec::new();
        let mut input = STAGE_CHANNELS[0];
        for (stage, (output, count)) in STAGE_CHANNELS.into_iter().zip(arch.stage_blocks()).enumerate() {
            let mut scope = root.sub(format_args!("layer{}", stage + 1));
            for index in 0..count {
                let stride = if stage > 0 && index == 0 { 2 } else { 1 };
                blocks.push(BasicBlock::new(&mut scope.sub(index), input, output, stride)?);
                input = output;
            }
        }
        Ok(Self {
            conv1,
            bn1,
            blocks,
            fc: Linear::new(&mut root.sub("fc"), input, classes)?,
        })
    }
}

impl Classifier for ResNet {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let shape = images.size();
        if !matches!(shape[..], [n, 3, h, w] if n > 0 && h > 0 && w > 0) {
            return Err(ModelError::Input {
                expected: "images of shape N x 3 x H x W with N > 0",
                got: shape,
            });
        }
        let mut x = self.bn1.forward(&self.conv1.forward(images)?, train)?;
        let mut x = x.f_relu_()?.f_max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)?;
        for block in &self.blocks {
            x = block.forward(&x, train)?;
        }
        self.fc
            .forward(&x.f_adaptive_avg_pool2d([1, 1])?.f_flatten(1, -1)?)
    }

    fn min_micro_batch(&self, image_size: usize) -> usize {
        let side = (0..HALVINGS).fold(image_size, |side, _| side.div_ceil(2));
        if side > 1 { 1 } else { 2 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Device, Kind};

    use super::super::build;
    use super::*;

    fn network(arch: Architecture, classes: usize) -> (Registry, Box<dyn Classifier>) {
        let mut registry = Registry::new(Device::Cpu);
        let model = build(arch, classes, &mut registry).unwrap();
        (registry, model)
    }

    fn images(shape: [i64; 4]) -> Tensor {
        Tensor::f_ones(shape, (Kind::Float, Device::Cpu)).unwrap()
    }

    #[test]
    fn blocks_begin_as_the_identity() {
        let (registry, _model) = network(Architecture::ResNet18, 10);
        for entry in registry.parameters() {
            let zero = entry.tensor().abs().max().double_value(&[]) == 0.0;
            let silent = entry.name().ends_with("bn2.weight");
            let bias = entry.name().contains("bn") && entry.name().ends_with("bias")
                || entry.name().ends_with("1.bias");
            assert_eq!(zero, silent || bias, "{}", entry.name());
        }
    }

    #[test]
    fn parameter_counts_are_torchvisions() {
        for (arch, count, tensors, entries) in [
            (Architecture::ResNet18, 11_689_512, 62, 122),
            (Architecture::ResNet34, 21_797_672, 110, 218),
        ] {
            let (registry, _) = network(arch, 1000);
            assert_eq!(registry.parameter_count(), count, "{arch}");
            assert_eq!(registry.parameter_bytes(), 4 * count);
            assert_eq!(registry.parameters().count(), tensors);
            assert_eq!(registry.state().len(), entries);
        }
        assert_eq!(
            network(Architecture::ResNet18, 10).0.parameter_count(),
            11_689_512 - 990 * 513
        );
    }

    #[test]
    fn forward_and_backward_reach_every_parameter() {
        let (registry, model) = network(Architecture::ResNet18, 7);
        let logits = model.forward(&images([2, 3, 40, 33]), true).unwrap();
        assert_eq!(logits.size(), [2, 7]);
        logits
            .f_square()
            .unwrap()
            .f_sum(Kind::Float)
            .unwrap()
            .f_backward()
            .unwrap();
        for entry in registry.parameters() {
            assert!(
                entry.tensor().grad().defined(),
                "{} has no gradient",
                entry.name()
            );
            assert_eq!(entry.tensor().grad().size(), entry.tensor().size());
        }
        let counter = registry.get("layer4.1.bn2.num_batches_tracked").unwrap().tensor();
        assert_eq!(counter.int64_value(&[]), 1);
    }

    #[test]
    fn evaluation_leaves_the_state_alone_and_takes_one_image() {
        let (registry, model) = network(Architecture::ResNet18, 3);
        let before: Vec<Tensor> = registry.buffers().map(|entry| entry.tensor().copy()).collect();
        assert_eq!(
            model.forward(&images([1, 3, 32, 32]), false).unwrap().size(),
            [1, 3]
        );
        for (entry, before) in registry.buffers().zip(&before) {
            assert!(entry.tensor().f_equal(before).unwrap(), "{}", entry.name());
        }
    }

    #[test]
    fn the_smallest_micro_batch_is_what_batch_norm_needs() {
        let (_registry, model) = network(Architecture::ResNet18, 3);
        for size in [8usize, 32, 33, 64] {
            let least = model.min_micro_batch(size);
            let side = size as i64;
            assert!(
                model
                    .forward(&images([least as i64, 3, side, side]), true)
                    .is_ok(),
                "{size}"
            );
            if least > 1 {
                let error = model
                    .forward(&images([least as i64 - 1, 3, side, side]), true)
                    .unwrap_err();
                assert!(
                    matches!(&error, ModelError::Batch { layer, .. } if layer.starts_with("layer")),
                    "{error}"
                );
            }
        }
        assert_eq!(
            [1, 32, 33, 224].map(|size| model.min_micro_batch(size)),
            [2, 2, 1, 1]
        );
    }

    #[test]
    fn wrong_input_and_no_classes_are_errors() {
        let (_registry, model) = network(Architecture::ResNet18, 3);
        for shape in [[1, 1, 32, 32], [0, 3, 32, 32], [1, 3, 0, 32]] {
            let error = model.forward(&images(shape), false).unwrap_err();
            assert!(matches!(error, ModelError::Input { .. }), "{error}");
        }
        let flat = Tensor::f_ones([3, 32, 32], (Kind::Float, Device::Cpu)).unwrap();
        assert!(matches!(
            model.forward(&flat, false),
            Err(ModelError::Input { .. })
        ));
        let nothing = build(Architecture::ResNet18, 0, &mut Registry::new(Device::Cpu)).map(|_| ());
        assert!(matches!(nothing, Err(ModelError::NoClasses)));
    }
}
