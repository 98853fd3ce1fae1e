//! A text decoder as GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

use tch::{Kind, Tensor};

use super::error::ModelError;
use super::layers::{Block, BlockNames, BlockOptions, Dropout, Embedding, Init, LayerNorm};
use super::recompute::Segment;
use super::registry::Registry;
use super::settings;

/// The settings of a GPT.
///
/// Parameters: (12 width² + 13 width) depth in the blocks and (vocabulary + context + 2) width outside.
/// Vocabulary 65, context 256, width 384 and depth 6 give 10.8 million (10.6 in the blocks); GPT-2's
/// vocabulary 50257, context 1024, width 768 and depth 12 give 124 million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GptConfig {
    /// Number of different tokens.
    pub vocabulary: usize,
    /// Most tokens that the model attends to, including the current token (`model.context`).
    pub context: usize,
    /// Features per token (`model.width`), a multiple of `heads`.
    pub width: usize,
    /// Number of blocks (`model.depth`).
    pub depth: usize,
    /// Heads of each attention layer (`model.heads`).
    pub heads: usize,
}

/// A decoder that computes for every token the logits of the next token.
///
/// Names are GPT-2's; weights are stored as in `nn.Linear` (output x input, as in nanoGPT; files of Hugging
/// Face have them transposed). The head shares the token embedding: `lm_head.weight` in a file is a copy of
/// it, which is neither read nor written. Each block normalises first (eps 1e-5); GELU is the tanh form.
/// Initial weights are normal with deviation 0.02, those at the end of a branch 0.02 / sqrt(2 depth). The registry's dropout
/// follows the embeddings and both branches of a block; weights of the attention are not dropped.
#[derive(Debug)]
pub struct Gpt {
    tokens: Embedding,
    positions: Embedding,
    dropout: Dropout,
    blocks: Vec<Segment<Block>>,
    norm: LayerNorm,
    context: i64,
}

impl Gpt {
    /// The target of a token whose next token is unknown.
    pub const NO_TARGET: i64 = Embedding::NO_TARGET;

    /// Registers the model's tensors in `registry`, in the order of PyTorch's `state_dict`.
    pub fn new(config: GptConfig, registry: &mut Registry) -> Result<Self, ModelError> {
        let vocabulary = settings::check_at_least_one("model.vocabulary", config.vocabulary)?;
        let context = settings::check_at_least_one("model.context", config.context)?;
        let depth = settings::check_at_least_one("model.depth", config.depth)?;
        settings::check_divides(("model.heads", config.heads), ("model.width", config.width))?;
        let width = settings::size(config.width);
        let options = BlockOptions {
            width,
            heads: settings::size(config.heads),
            causal: true,
            eps: 1e-5,
            gelu: "tanh",
            drops_inside: false,
            drop_path: 0.0,
            init: Init::Normal(0.02),
            residual: Init::Normal(0.02 / (2.0 * depth as f64).sqrt()),
            names: BlockNames::GPT2,
        };
        let mut root = registry.root();
        root.tie("lm_head.weight", "transformer.wte.weight");
        let mut scope = root.sub("transformer");
        let tokens = Embedding::with_head(&mut scope.sub("wte"), vocabulary, width, options.init)?;
        let positions = Embedding::new(&mut scope.sub("wpe"), context, width, options.init)?;
        let rate = scope.registry().dropout;
        let dropout = Dropout::new(&mut scope, rate);
        let mut stack = scope.sub("h");
        let blocks = (0..depth).map(|index| stack.sub(index).segment(|scope| Block::new(scope, &options)));
        let blocks = blocks.collect::<Result<_, _>>()?;
        Ok(Self {
            tokens,
            positions,
            dropout,
            blocks,
            norm: LayerNorm::new(&mut scope.sub("ln_f"), width, options.eps)?,
            context,
        })
    }

    /// Computes N x T x vocabulary logits of the token after each of N x T int64 tokens. T may be less than
    /// the context. A token beyond the vocabulary is an error only on the CPU. Dropout applies if `train`.
    pub fn forward(&self, tokens: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        self.tokens.scores(&self.features(tokens, train)?)
    }

    /// Computes the sum of the cross-entropies of the next tokens `targets` (N x T, int64) for the `tokens`
    /// of [`Gpt::forward`], without holding all logits at once. Targets of [`Gpt::NO_TARGET`] are ignored.
    pub fn loss(&self, tokens: &Tensor, targets: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        self.tokens.cross_entropy(&self.features(tokens, train)?, targets)
    }

    /// Computes the input of the head, N x T x width.
    fn features(&self, tokens: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let (kind, shape) = (tokens.f_kind()?, tokens.size());
        let length = match shape[..] {
            [samples, length] if samples > 0 && length > 0 && kind == Kind::Int64 => length,
            _ => {
                let expected = "int64 tokens of shape N x T with N > 0 and T > 0".to_owned();
                return Err(ModelError::Input(expected, shape));
            }
        };
        if length > self.context {
            return Err(ModelError::Context(length, self.context));
        }
        let x = self.tokens.forward(tokens)?.f_add(&self.positions.first(length)?)?;
        let mut x = self.dropout.forward(&x, train)?;
        for block in &self.blocks {
            x = block.run(&x, move |block, x| block.forward(x, train))?;
        }
        self.norm.forward(&x)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_torch_shim::rng::BySample;
    use tch::{Device, Reduction};

    use super::*;

    const SMALL: GptConfig = GptConfig { vocabulary: 11, context: 8, width: 12, depth: 2, heads: 3 };

    fn small() -> (Registry, Gpt) {
        let mut registry = Registry::new(Device::Cpu);
        let model = Gpt::new(SMALL, &mut registry).unwrap();
        (registry, model)
    }

    fn tokens(shape: [i64; 2]) -> Tensor {
        Tensor::f_randint(11, shape, (Kind::Int64, Device::Cpu)).unwrap()
    }

    #[test]
    fn parameter_counts_are_gpt2s() {
        for (config, parameters) in [
            (GptConfig { vocabulary: 65, context: 256, width: 384, depth: 6, heads: 6 }, 10_770_816),
            (GptConfig { vocabulary: 50_257, context: 1024, width: 768, depth: 12, heads: 12 }, 124_439_808),
        ] {
            let mut registry = Registry::new(Device::Cpu);
            Gpt::new(config, &mut registry).unwrap();
            assert_eq!(registry.parameter_count(), parameters);
        }
    }

    #[test]
    fn names_and_initial_values_are_gpt2s() {
        let (registry, _) = small();
        let names: Vec<_> = registry.state().iter().map(|entry| entry.name()).collect();
        assert_eq!(
            names[..3],
            ["transformer.wte.weight", "transformer.wpe.weight", "transformer.h.0.ln_1.weight"]
        );
        assert_eq!(names[names.len() - 1], "transformer.ln_f.bias");
        let size = |name: &str| registry.get(name).unwrap().tensor().size();
        assert_eq!(size("transformer.h.1.attn.c_attn.weight"), [36, 12]);
        assert_eq!(size("transformer.h.1.mlp.c_fc.weight"), [48, 12]);
        assert_eq!(registry.tied(), [("lm_head.weight".to_owned(), "transformer.wte.weight".to_owned())]);

        let mut registry = Registry::new(Device::Cpu);
        Gpt::new(GptConfig { width: 192, ..SMALL }, &mut registry).unwrap();
        for (name, deviation) in [
            ("attn.c_attn.weight", 0.02),
            ("attn.c_proj.weight", 0.01),
            ("mlp.c_fc.weight", 0.02),
            ("mlp.c_proj.weight", 0.01),
        ] {
            let tensor = registry.get(&format!("transformer.h.0.{name}")).unwrap().tensor();
            let got = tensor.std(true).double_value(&[]);
            assert!((got / deviation - 1.0).abs() < 0.03, "{name}: {got}");
        }
    }

    #[test]
    fn no_token_attends_to_a_later_one() {
        let (registry, model) = small();
        let x = tokens([2, 8]);
        let logits = model.forward(&x, true).unwrap();
        assert_eq!(logits.size(), [2, 8, 11]);
        let shorter = model.forward(&x.narrow(1, 0, 5), true).unwrap();
        assert!(logits.narrow(1, 0, 5).allclose(&shorter, 1e-4, 1e-6, false));
        let other = x.copy();
        let _ = other.select(1, 5).fill_(0);
        let changed = (model.forward(&other, true).unwrap() - &logits).abs().sum_dim_intlist(
            [0, 2].as_slice(),
            false,
            Kind::Float,
        );
        assert!(changed.narrow(0, 0, 5).max().double_value(&[]) < 1e-6);
        assert!(x.select(1, 5).sum(Kind::Int64).int64_value(&[]) == 0 || changed.double_value(&[7]) > 0.0);
        logits.square().sum(Kind::Float).backward();
        for entry in registry.parameters() {
            let gradient = entry.tensor().grad();
            assert!(gradient.abs().sum(Kind::Float).double_value(&[]) > 0.0, "{}", entry.name());
        }
    }

    #[test]
    fn dropout_draws_by_sample_in_training() {
        let (mut registry, x) = (Registry::new(Device::Cpu), tokens([4, 8]));
        registry.dropout = 0.2;
        let model = Gpt::new(SMALL, &mut registry).unwrap();
        let run = |key, first: i64, count: i64, train| {
            let _samples = BySample::enter(key, &(first as usize..(first + count) as usize)).unwrap();
            model.forward(&x.narrow(0, first, count), train).unwrap()
        };
        let whole = run(1, 0, 4, true);
        let parts = Tensor::cat(&[run(1, 0, 1, true), run(1, 1, 3, true)], 0);
        assert!(whole.allclose(&parts, 1e-5, 1e-6, false));
        assert!(!whole.allclose(&run(2, 0, 4, true), 1e-5, 1e-6, false));
        assert!(run(1, 0, 4, false).equal(&run(2, 0, 4, false)), "an evaluation draws");
    }

    #[test]
    fn the_loss_equals_that_of_the_logits() {
        let (registry, model) = small();
        let x = tokens([3, 8]);
        let _ = x.select(1, 2).fill_(4);
        let logits = model.forward(&x, true).unwrap().view([-1, 11]);
        let expected = logits.cross_entropy_loss(&x.view([-1]), None::<&Tensor>, Reduction::Sum, -100, 0.0);
        let got = model.loss(&x, &x, true).unwrap();
        assert_eq!(got, expected);
        got.backward();
        assert!(registry.parameters().all(|entry| entry.tensor().grad().defined()));
    }

    #[test]
    fn bad_settings_and_tokens_are_typed_errors() {
        for (config, key) in [
            (GptConfig { heads: 5, ..SMALL }, "model.heads"),
            (GptConfig { heads: 0, ..SMALL }, "model.heads"),
            (GptConfig { width: 0, ..SMALL }, "model.width"),
            (GptConfig { depth: 0, ..SMALL }, "model.depth"),
            (GptConfig { context: 0, ..SMALL }, "model.context"),
            (GptConfig { vocabulary: 0, ..SMALL }, "model.vocabulary"),
        ] {
            let error = Gpt::new(config, &mut Registry::new(Device::Cpu)).unwrap_err();
            assert!(matches!(&error, ModelError::Setting { key: got, .. } if *got == key), "{key}: {error}");
        }
        let (_registry, model) = small();
        let error = model.forward(&tokens([1, 9]), true).unwrap_err();
        assert!(matches!(error, ModelError::Context(9, 8)), "{error}");
        assert!(error.to_string().contains("`model.context`"), "{error}");
        for wrong in
            [tokens([1, 0]), tokens([0, 4]), tokens([1, 4]).to_kind(Kind::Int), tokens([1, 4]).view([4])]
        {
            assert!(matches!(model.forward(&wrong, true), Err(ModelError::Input { .. })));
        }
        let beyond = Tensor::from_slice(&[3i64, 11]).view([1, 2]);
        assert!(matches!(model.forward(&beyond, true), Err(ModelError::Torch(_))));
    }
}
