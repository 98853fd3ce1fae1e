//! A vision transformer (Dosovitskiy et al. 2020, arXiv 2010.11929) with timm's names.

use tch::Tensor;

use super::error::ModelError;
use super::layers::{Block, BlockNames, BlockOptions, Conv2d, ConvOptions, Dropout, Init, LayerNorm, Linear};
use super::layout::input_layout;
use super::recompute::Segment;
use super::registry::Registry;
use super::{Classifier, settings};

/// The settings of a vision transformer.
///
/// Parameters, with P = (image_size / patch)² patches: (12 width² + 13 width) depth in the blocks, and
/// outside (channels patch² + 1 + P + 1 + 1 + 2) width + (width + 1) classes. At 224 pixels in patches of 16,
/// 3 channels and 1000 classes: width 192, depth 12, heads 3 is timm's `vit_tiny_patch16_224` with 5.7
/// million; width 384 with 6 heads is `vit_small` with 22.1 million; width 768 with 12 heads is `vit_base`
/// with 86.6 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VitConfig {
    /// The side of the square images in pixels (`data.image_size`), a multiple of `patch`.
    pub image_size: usize,
    /// The side of a patch in pixels (`model.patch`).
    pub patch: usize,
    /// Features per token (`model.width`), a multiple of `heads`.
    pub width: usize,
    /// Number of blocks (`model.depth`).
    pub depth: usize,
    /// Heads of each attention layer (`model.heads`).
    pub heads: usize,
}

/// A classifier of square images of one size.
///
/// Each patch of the image becomes a token. A class token is put before them, and learned positions are
/// added. The head gets the class token's features after the last block and normalisation. Each block
/// normalises first (eps 1e-6); GELU is exact. The registry's dropout follows the positions, GELU and both branches of a block;
/// its stochastic depth grows linearly from 0 in the first block. As in timm, initial values of linear layers and
/// positions are normal with deviation 0.02, truncated at two deviations; the patch layer has PyTorch's initial values.
#[derive(Debug)]
pub(super) struct Vit {
    cls_token: Tensor,
    pos_embed: Tensor,
    patch_embed: Conv2d,
    dropout: Dropout,
    blocks: Vec<Segment<Block>>,
    norm: LayerNorm,
    head: Linear,
    channels: i64,
    image_size: i64,
    channels_last: bool,
}

impl Vit {
    pub(super) fn new(
        config: VitConfig,
        channels: usize,
        classes: usize,
        registry: &mut Registry,
    ) -> Result<Self, ModelError> {
        let channels = settings::check_positive(channels, ModelError::NoChannels)?;
        let classes = settings::check_positive(classes, ModelError::NoClasses)?;
        let depth = settings::check_at_least_one("model.depth", config.depth)?;
        settings::check_divides(("model.patch", config.patch), ("data.image_size", config.image_size))?;
        settings::check_divides(("model.heads", config.heads), ("model.width", config.width))?;
        let (patch, width) = (settings::size(config.patch), settings::size(config.width));
        let image_size = settings::size(config.image_size);
        let options = BlockOptions {
            width,
            heads: settings::size(config.heads),
            causal: false,
            eps: 1e-6,
            gelu: "none",
            drops_inside: true,
            drop_path: 0.0,
            init: Init::Truncated(0.02),
            residual: Init::Truncated(0.02),
            names: BlockNames::TIMM,
        };
        let tokens = (image_size / patch).pow(2) + 1;
        let channels_last = registry.channels_last;
        let mut root = registry.root();
        let cls_token = root.parameter("cls_token", &Init::Normal(1e-6).weight(&[1, 1, width])?)?;
        let pos_embed = root.parameter("pos_embed", &Init::Truncated(0.02).weight(&[1, tokens, width])?)?;
        let projection =
            ConvOptions { stride: patch, bias: true, init: Init::FanIn, ..ConvOptions::kernel(patch) };
        let patch_embed =
            Conv2d::new(&mut root.sub("patch_embed").sub("proj"), (channels, width), projection)?;
        let (rate, drop_path) = (root.registry().dropout, root.registry().drop_path);
        let dropout = Dropout::new(&mut root, rate);
        let mut scope = root.sub("blocks");
        let last = (depth - 1).max(1) as f64;
        let blocks = (0..depth).map(|index| {
            let options = BlockOptions { drop_path: drop_path * index as f64 / last, ..options };
            scope.sub(index).segment(|scope| Block::new(scope, &options))
        });
        let blocks = blocks.collect::<Result<_, _>>()?;
        Ok(Self {
            cls_token,
            pos_embed,
            patch_embed,
            dropout,
            blocks,
            norm: LayerNorm::new(&mut root.sub("norm"), width, options.eps)?,
            head: Linear::with_init(&mut root.sub("head"), width, classes, options.init)?,
            channels,
            image_size,
            channels_last,
        })
    }

    /// Computes tokens with positions, N x (1 + patches) x width.
    fn tokens(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let images = input_layout(images, self.channels_last)?;
        let patches = self.patch_embed.forward(&images, train)?.f_flatten(2, 3)?.f_transpose(1, 2)?;
        let class = self.cls_token.f_expand([patches.size()[0], -1, -1], false)?;
        Ok(Tensor::f_cat(&[class, patches], 1)?.f_add(&self.pos_embed)?)
    }
}

impl Classifier for Vit {
    fn forward(&self, images: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let shape = images.size();
        let side = self.image_size;
        if !matches!(shape[..], [n, c, h, w] if n > 0 && c == self.channels && h == side && w == side) {
            let expected = format!("images of shape N x {} x {side} x {side} with N > 0", self.channels);
            return Err(ModelError::Input(expected, shape));
        }
        let mut x = self.dropout.forward(&self.tokens(images, train)?, train)?;
        for block in &self.blocks {
            x = block.run(&x, move |block, x| block.forward(x, train))?;
        }
        // The head needs only the class token, and the normalisation is per token.
        self.head.forward(&self.norm.forward(&x.f_select(1, 0)?)?, train)
    }

    fn min_micro_batch(&self, _image_size: usize) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_torch_shim::rng::BySample;
    use tch::{Device, Kind};

    use super::super::{Architecture, build};
    use super::*;

    const SMALL: VitConfig = VitConfig { image_size: 16, patch: 4, width: 24, depth: 2, heads: 3 };

    fn images(shape: [i64; 4]) -> Tensor {
        Tensor::f_randn(shape, (Kind::Float, Device::Cpu)).unwrap()
    }

    #[test]
    fn parameters_and_names_are_timms() {
        for (width, heads, parameters) in [(192, 3, 5_717_416), (384, 6, 22_050_664)] {
            let config = VitConfig { image_size: 224, patch: 16, width, depth: 12, heads };
            let mut registry = Registry::new(Device::Cpu);
            build(Architecture::Vit(config), 3, 1000, &mut registry).unwrap();
            assert_eq!(registry.parameter_count(), parameters);
        }
        let mut registry = Registry::new(Device::Cpu);
        Vit::new(SMALL, 4, 7, &mut registry).unwrap();
        let names: Vec<_> = registry.state().iter().map(|entry| entry.name()).collect();
        assert_eq!(
            names[..6],
            [
                "cls_token",
                "pos_embed",
                "patch_embed.proj.weight",
                "patch_embed.proj.bias",
                "blocks.0.norm1.weight",
                "blocks.0.norm1.bias"
            ]
        );
        assert_eq!(names[names.len() - 2..], ["head.weight", "head.bias"]);
        assert_eq!(registry.get("pos_embed").unwrap().tensor().size(), [1, 17, 24]);
        assert_eq!(registry.get("blocks.1.attn.qkv.weight").unwrap().tensor().size(), [72, 24]);
    }

    #[test]
    fn every_parameter_gets_a_gradient_and_samples_are_independent() {
        for channels_last in [false, true] {
            let mut registry = Registry::new(Device::Cpu);
            registry.channels_last = channels_last;
            let model = Vit::new(SMALL, 4, 7, &mut registry).unwrap();
            let x = images([3, 4, 16, 16]);
            let logits = model.forward(&x, true).unwrap();
            assert_eq!(logits.size(), [3, 7]);
            logits.square().sum(Kind::Float).backward();
            for entry in registry.parameters() {
                assert!(
                    entry.tensor().grad().abs().sum(Kind::Float).double_value(&[]) > 0.0,
                    "{}",
                    entry.name()
                );
            }
            let one = model.forward(&x.narrow(0, 1, 1), true).unwrap();
            assert!(logits.narrow(0, 1, 1).allclose(&one, 1e-4, 1e-6, false));
            assert_eq!(model.min_micro_batch(16), 1);
        }
    }

    #[test]
    fn dropout_and_stochastic_depth_draw_by_sample_in_training() {
        let x = images([4, 3, 16, 16]);
        for (dropout, drop_path) in [(0.2, 0.0), (0.0, 0.5)] {
            let mut registry = Registry::new(Device::Cpu);
            (registry.dropout, registry.drop_path) = (dropout, drop_path);
            let model = Vit::new(SMALL, 3, 7, &mut registry).unwrap();
            let run = |key, places: std::ops::Range<usize>, train| {
                let _samples = BySample::enter(key, &places).unwrap();
                model.forward(&x.narrow(0, places.start as i64, places.len() as i64), train).unwrap()
            };
            let whole = run(1, 0..4, true);
            let parts = Tensor::cat(&[run(1, 0..1, true), run(1, 1..4, true)], 0);
            assert!(whole.allclose(&parts, 1e-5, 1e-6, false));
            assert!(!whole.allclose(&run(2, 0..4, true), 1e-5, 1e-6, false));
            assert!(run(1, 0..4, false).equal(&run(2, 0..4, false)), "an evaluation draws");
            let mut plain = Registry::new(Device::Cpu);
            Vit::new(SMALL, 3, 7, &mut plain).unwrap();
            assert!(registry.has_dropout() && !plain.has_dropout());
            assert_eq!(registry.parameter_count(), plain.parameter_count());
        }
    }

    #[test]
    fn bad_settings_and_images_are_typed_errors() {
        let error_of = |config| Vit::new(config, 3, 5, &mut Registry::new(Device::Cpu)).unwrap_err();
        for (config, key) in [
            (VitConfig { heads: 5, ..SMALL }, "model.heads"),
            (VitConfig { heads: 0, ..SMALL }, "model.heads"),
            (VitConfig { width: 0, ..SMALL }, "model.width"),
            (VitConfig { depth: 0, ..SMALL }, "model.depth"),
            (VitConfig { patch: 0, ..SMALL }, "model.patch"),
            (VitConfig { patch: 5, ..SMALL }, "model.patch"),
            (VitConfig { image_size: 0, ..SMALL }, "data.image_size"),
        ] {
            let error = error_of(config);
            assert!(matches!(&error, ModelError::Setting { key: got, .. } if *got == key), "{key}: {error}");
        }
        let registry = &mut Registry::new(Device::Cpu);
        assert!(matches!(Vit::new(SMALL, 3, 0, registry), Err(ModelError::NoClasses)));
        assert!(matches!(Vit::new(SMALL, 0, 3, registry), Err(ModelError::NoChannels)));
        let model = Vit::new(SMALL, 3, 5, registry).unwrap();
        for shape in [[1, 4, 16, 16], [1, 3, 16, 20], [0, 3, 16, 16]] {
            let error = model.forward(&images(shape), true).unwrap_err();
            assert!(error.to_string().contains("N x 3 x 16 x 16"), "{error}");
        }
    }
}
