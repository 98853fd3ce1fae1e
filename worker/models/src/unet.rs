//! A U-Net (Ronneberger et al. 2015, arXiv 1505.04597) with batch normalisation and padded convolutions, and
//! the names of the usual PyTorch module (github.com/milesial/Pytorch-UNet).

use tch::Tensor;

use super::error::ModelError;
use super::layers::{BatchNorm, Conv2d, ConvOptions, ConvTranspose2d, Init};
use super::layout::{input_layout, input_size};
use super::recompute::Segment;
use super::registry::{Registry, Scope};
use super::{Classifier, settings};

/// The settings of a U-Net. Channels 3, classes 2, width 64 and depth 4 give 31.0 million parameters, as in
/// the original; width 16 gives 1.9 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnetConfig {
    /// Channels of the images.
    pub channels: usize,
    /// Number of classes.
    pub classes: usize,
    /// Channels of the first level (`model.width`); each level below has twice as many.
    pub width: usize,
    /// Number of halvings of the image (`model.depth`).
    pub depth: usize,
}

impl UnetConfig {
    /// Returns the smallest side of an image, of which one pixel remains after all halvings.
    pub fn smallest_image(&self) -> usize {
        u32::try_from(self.depth).ok().and_then(|depth| 1usize.checked_shl(depth)).unwrap_or(usize::MAX)
    }
}

/// Two 3 x 3 convolutions, each with batch normalisation and ReLU.
#[derive(Debug)]
struct DoubleConv {
    layers: [(Conv2d, BatchNorm); 2],
}

impl DoubleConv {
    fn new(scope: &mut Scope<'_>, input: i64, output: i64) -> Result<Self, ModelError> {
        let options = ConvOptions { padding: 1, ..ConvOptions::kernel(3) };
        let mut scope = scope.sub("double_conv");
        let mut layer = |index: usize, input| {
            let conv = Conv2d::new(&mut scope.sub(index), (input, output), options)?;
            Ok::<_, ModelError>((conv, BatchNorm::new(&mut scope.sub(index + 1), output)?))
        };
        // Indices 2 and 5 are the ReLUs, which have no tensors.
        Ok(Self { layers: [layer(0, input)?, layer(3, output)?] })
    }

    fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let [(conv1, bn1), (conv2, bn2)] = &self.layers;
        let x = bn1.forward(&conv1.forward(x, train)?, train)?.f_relu_()?;
        Ok(bn2.forward(&conv2.forward(&x, train)?, train)?.f_relu_()?)
    }
}

/// One level of the decoder: enlarges, appends the skip connection, and convolves.
#[derive(Debug)]
struct UpBlock {
    up: ConvTranspose2d,
    conv: DoubleConv,
}

impl UpBlock {
    fn forward(&self, x: &Tensor, skip: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let mut x = self.up.forward(x)?;
        let ((_, _, h, w), (_, _, height, width)) = (x.size4()?, skip.size4()?);
        if (h, w) != (height, width) {
            // Halving an odd side drops a pixel: pad with zeros at the right and the bottom.
            x = x.f_constant_pad_nd([0, width - w, 0, height - h])?;
        }
        self.conv.forward(&Tensor::f_cat(&[skip, &x], 1)?, train)
    }
}

/// The segmenter. Convolutions before a batch normalisation have a ResNet's initial values, the others
/// PyTorch's. No dropout.
#[derive(Debug)]
pub(super) struct Unet {
    inc: Segment<DoubleConv>,
    down: Vec<Segment<DoubleConv>>,
    up: Vec<Segment<UpBlock>>,
    outc: Conv2d,
    config: UnetConfig,
    channels_last: bool,
    synced: bool,
}

impl Unet {
    pub(super) fn new(config: UnetConfig, registry: &mut Registry) -> Result<Self, ModelError> {
        let channels = settings::check_positive(config.channels, ModelError::NoChannels)?;
        let classes = settings::check_positive(config.classes, ModelError::NoClasses)?;
        let width = settings::check_at_least_one("model.width", config.width)?;
        let depth = settings::check_at_least_one("model.depth", config.depth)?;
        // The width of a level. If it overflows, libtorch fails to allocate it.
        let width_at = |level: i64| width.saturating_mul(1i64.checked_shl(level as u32).unwrap_or(i64::MAX));
        if depth > MAX_DEPTH {
            return Err(ModelError::Setting {
                key: "model.depth",
                value: config.depth,
                reason: format!("it must be at most {MAX_DEPTH}; 4 is usual"),
            });
        }
        let (channels_last, synced) = (registry.channels_last, registry.is_batch_synced());
        let mut root = registry.root();
        let inc = root.sub("inc").segment(|scope| DoubleConv::new(scope, channels, width))?;
        let down = (1..=depth)
            .map(|level| {
                root.sub(format_args!("down{level}")).segment(|scope| {
                    // Index 0 is the pooling, which has no tensors.
                    let mut pooled = scope.sub("maxpool_conv");
                    DoubleConv::new(&mut pooled.sub(1), width_at(level - 1), width_at(level))
                })
            })
            .collect::<Result<_, _>>()?;
        let up = (1..=depth)
            .map(|step| {
                let (below, here) = (width_at(depth - step + 1), width_at(depth - step));
                root.sub(format_args!("up{step}")).segment(|scope| {
                    Ok(UpBlock {
                        up: ConvTranspose2d::new(&mut scope.sub("up"), (below, here), 2)?,
                        conv: DoubleConv::new(&mut scope.sub("conv"), below, here)?,
                    })
                })
            })
            .collect::<Result<_, ModelError>>()?;
        let last = ConvOptions { bias: true, init: Init::FanIn, ..ConvOptions::kernel(1) };
        let outc = Conv2d::new(&mut root.sub("outc").sub("conv"), (width, classes), last)?;
        Ok(Self { inc, down, up, outc, config, channels_last, synced })
    }

    fn check(&self, images: &Tensor) -> Result<(), ModelError> {
        let (h, w) = input_size(images, settings::size(self.config.channels), self.synced)?;
        let (side, smallest) = (h.min(w), settings::size(self.config.smallest_image()));
        if side < smallest {
            let depth = self.config.depth;
            return Err(ModelError::Setting {
                key: "data.image_size",
                value: side as usize,
                reason: format!(
                    "the image is too small for `model.depth = {depth}` halvings; use at least {smallest}, or a smaller \
                     depth"
                ),
            });
        }
        Ok(())
    }
}

/// With more halvings an image would need a side of more than a million pixels.
const MAX_DEPTH: i64 = 20;

impl Classifier for Unet {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        self.check(images)?;
        let mut skips = Vec::with_capacity(self.down.len());
        let images = input_layout(images, self.channels_last)?;
        let mut x = self.inc.run(&images, move |inc, x| inc.forward(x, train))?;
        for level in &self.down {
            let lower = level.run(&x, move |level, x| {
                level.forward(&x.f_max_pool2d([2, 2], [2, 2], [0, 0], [1, 1], false)?, train)
            })?;
            skips.push(std::mem::replace(&mut x, lower));
        }
        for (level, skip) in self.up.iter().zip(skips.iter().rev()) {
            x = level.run_many([&x, skip], move |level, [x, skip]| level.forward(x, skip, train))?;
        }
        self.outc.forward(&x, train)
    }

    fn min_micro_batch(&self, image_size: usize) -> usize {
        let side = image_size / self.config.smallest_image();
        if side > 1 || self.synced { 1 } else { 2 }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use tch::{Device, Kind};

    use super::super::layout::is_channels_last;
    use super::*;

    const SMALL: UnetConfig = UnetConfig { channels: 2, classes: 3, width: 4, depth: 3 };

    fn images(shape: [i64; 4]) -> Tensor {
        Tensor::f_randn(shape, (Kind::Float, Device::Cpu)).unwrap()
    }

    #[test]
    fn parameters_and_names_are_the_usual_modules() {
        let mut registry = Registry::new(Device::Cpu);
        let config = UnetConfig { channels: 3, classes: 2, width: 64, depth: 4 };
        Unet::new(config, &mut registry).unwrap();
        assert_eq!(registry.parameter_count(), 31_037_698);
        for (name, shape) in [
            ("inc.double_conv.0.weight", vec![64, 3, 3, 3]),
            ("down4.maxpool_conv.1.double_conv.3.weight", vec![1024, 1024, 3, 3]),
            ("up1.up.weight", vec![1024, 512, 2, 2]),
            ("up1.conv.double_conv.0.weight", vec![512, 1024, 3, 3]),
            ("up4.conv.double_conv.4.running_var", vec![64]),
            ("outc.conv.bias", vec![2]),
        ] {
            assert_eq!(registry.get(name).unwrap().tensor().size(), shape, "{name}");
        }
        let mut registry = Registry::new(Device::Cpu);
        Unet::new(UnetConfig { width: 16, ..config }, &mut registry).unwrap();
        assert_eq!(registry.parameter_count() / 10_000, 194);
    }

    #[test]
    fn every_size_is_kept_and_every_parameter_gets_a_gradient() {
        let mut registry = Registry::new(Device::Cpu);
        let model = Unet::new(SMALL, &mut registry).unwrap();
        for (h, w) in [(8, 8), (16, 24), (9, 15), (31, 22), (8, 61)] {
            let logits = model.forward(&images([2, 2, h, w]), true).unwrap();
            assert_eq!(logits.size(), [2, 3, h, w]);
            logits.square().sum(Kind::Float).backward();
        }
        for entry in registry.parameters() {
            assert!(entry.tensor().grad().defined(), "{}", entry.name());
        }
        // In evaluation a sample is independent of its batch.
        let x = images([3, 2, 13, 17]);
        let (all, one) = tch::no_grad(|| {
            let one = model.forward(&x.narrow(0, 1, 1), false).unwrap();
            (model.forward(&x, false).unwrap(), one)
        });
        assert!(all.narrow(0, 1, 1).allclose(&one, 1e-4, 1e-5, false));
    }

    #[test]
    fn small_images_and_batches_and_bad_settings_are_typed_errors() {
        let mut registry = Registry::new(Device::Cpu);
        let model = Unet::new(SMALL, &mut registry).unwrap();
        let error = model.forward(&images([2, 2, 32, 7]), true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "`data.image_size = 7`: the image is too small for `model.depth = 3` halvings; use at least 8, or a smaller depth"
        );
        for shape in [[2, 3, 16, 16], [0, 2, 16, 16]] {
            let error = model.forward(&images(shape), true).unwrap_err();
            assert!(matches!(error, ModelError::Input { .. }), "{error}");
        }
        for size in [8, 15, 16, 64] {
            let (least, side) = (model.min_micro_batch(size), size as i64);
            assert!(model.forward(&images([least as i64, 2, side, side]), true).is_ok());
            if least > 1 {
                let error = model.forward(&images([1, 2, side, side]), true).unwrap_err();
                assert!(matches!(error, ModelError::Batch { .. }), "{error}");
            }
        }
        assert_eq!([8, 15, 16].map(|size| model.min_micro_batch(size)), [2, 2, 1]);
        let error_of = |config: UnetConfig| Unet::new(config, &mut Registry::new(Device::Cpu)).unwrap_err();
        for (config, key) in [
            (UnetConfig { width: 0, ..SMALL }, "model.width"),
            (UnetConfig { depth: 0, ..SMALL }, "model.depth"),
            (UnetConfig { depth: 64, ..SMALL }, "model.depth"),
        ] {
            let error = error_of(config);
            assert!(matches!(&error, ModelError::Setting { key: got, .. } if *got == key), "{error}");
        }
        assert!(matches!(error_of(UnetConfig { classes: 0, ..SMALL }), ModelError::NoClasses));
        assert!(matches!(error_of(UnetConfig { channels: 0, ..SMALL }), ModelError::NoChannels));
    }

    #[test]
    fn channels_last_is_kept_and_gives_the_same_values() {
        let mut models = [false, true].map(|on| {
            let mut registry = Registry::new(Device::Cpu);
            registry.kind = Kind::Double;
            registry.channels_last = on;
            let model = Unet::new(SMALL, &mut registry).unwrap();
            (registry, model)
        });
        let [(plain, a), (last, b)] = &mut models;
        for (from, to) in plain.state().iter().zip(last.state()) {
            tch::no_grad(|| to.tensor().shallow_clone().copy_(from.tensor()));
        }
        let x = images([2, 2, 21, 26]).to_kind(Kind::Double);
        let (ya, yb) = (a.forward(&x, true).unwrap(), b.forward(&x, true).unwrap());
        assert!(ya.allclose(&yb, 1e-9, 1e-9, false));
        assert!(is_channels_last(&yb), "{:?}", yb.stride());
        ya.square().sum(Kind::Double).backward();
        yb.square().sum(Kind::Double).backward();
        for (from, to) in plain.parameters().zip(last.parameters()) {
            let near = from.tensor().grad().allclose(&to.tensor().grad(), 1e-7, 1e-8, false);
            assert!(near, "gradient of {}", from.name());
        }
    }
}
