//! A transformer block with normalisation first (Xiong et al. 2020, arXiv 2002.04745), for images and text.

use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::dropout::{DropPath, Dropout};
use super::init::{CPU_FLOAT, Init};
use super::linear::Linear;

/// Layer normalisation (Ba et al. 2016, arXiv 1607.06450) of every token over its features.
#[derive(Debug)]
pub struct LayerNorm {
    weight: Tensor,
    bias: Tensor,
    eps: f64,
}

impl LayerNorm {
    /// Registers `weight` = 1 and `bias` = 0, each of length `width`. `eps` is added to the variance.
    pub fn new(scope: &mut Scope<'_>, width: i64, eps: f64) -> Result<Self, ModelError> {
        Ok(Self {
            weight: scope.parameter("weight", &Tensor::f_ones([width], CPU_FLOAT)?)?,
            bias: scope.parameter("bias", &Tensor::f_zeros([width], CPU_FLOAT)?)?,
            eps,
        })
    }

    /// Normalises ... x width; keeps the shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        Ok(x.f_layer_norm(self.weight.size(), Some(&self.weight), Some(&self.bias), self.eps, true)?)
    }
}

/// The names of a block's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNames {
    /// The normalisations before the attention and before the perceptron.
    pub norms: [&'static str; 2],
    /// In `attn`: the layer of queries, keys and values, and the layer after the attention.
    pub attention: [&'static str; 2],
    /// In `mlp`: the first layer, which widens, and the second, which narrows.
    pub mlp: [&'static str; 2],
}

impl BlockNames {
    /// The names in timm.
    pub const TIMM: Self =
        Self { norms: ["norm1", "norm2"], attention: ["qkv", "proj"], mlp: ["fc1", "fc2"] };
    /// The names in GPT-2.
    pub const GPT2: Self =
        Self { norms: ["ln_1", "ln_2"], attention: ["c_attn", "c_proj"], mlp: ["c_fc", "c_proj"] };
}

/// The settings of a block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BlockOptions {
    /// Features per token.
    pub width: i64,
    /// Heads of the attention; divides `width`.
    pub heads: i64,
    /// Whether a token attends only to itself and to earlier tokens.
    pub causal: bool,
    /// Added to the variance in normalisations.
    pub eps: f64,
    /// GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415): `none` is exact, `tanh` is GPT-2's form.
    pub gelu: &'static str,
    /// Whether dropout follows GELU, too, and not only both branches.
    pub drops_inside: bool,
    /// The probability with which a branch of a sample is dropped.
    pub drop_path: f64,
    /// Initial values of all but the last layer of a branch.
    pub init: Init,
    /// Initial values of the last layer of each branch.
    pub residual: Init,
    /// The names.
    pub names: BlockNames,
}

/// Multi-head self-attention (Vaswani et al. 2017, arXiv 1706.03762) with one layer for queries, keys and
/// values, and a perceptron with an inner layer of four times the width. Each has a normalisation before it
/// and a residual connection: 12 width² + 13 width parameters. At the end of each branch is a dropout of the registry's
/// probability; weights of the attention are not dropped.
#[derive(Debug)]
pub struct Block {
    options: BlockOptions,
    norm1: LayerNorm,
    qkv: Linear,
    proj: Linear,
    norm2: LayerNorm,
    widen: Linear,
    narrow: Linear,
    dropouts: [Dropout; 3],
    drop_paths: [DropPath; 2],
}

impl Block {
    /// Registers the parts under the names of `options`, attention in `attn` and perceptron in `mlp`.
    pub fn new(scope: &mut Scope<'_>, options: &BlockOptions) -> Result<Self, ModelError> {
        let BlockOptions { width, eps, init, residual, names, drop_path, .. } = *options;
        let dropout = scope.registry().dropout;
        let inside = if options.drops_inside { dropout } else { 0.0 };
        let ([norm1, norm2], [qkv, proj], [widen, narrow]) = (names.norms, names.attention, names.mlp);
        let linear = |scope: &mut Scope<'_>, part, name, (input, output), init| {
            Linear::with_init(&mut scope.sub(part).sub(name), input, output, init)
        };
        Ok(Self {
            options: *options,
            norm1: LayerNorm::new(&mut scope.sub(norm1), width, eps)?,
            qkv: linear(scope, "attn", qkv, (width, 3 * width), init)?,
            proj: linear(scope, "attn", proj, (width, width), residual)?,
            norm2: LayerNorm::new(&mut scope.sub(norm2), width, eps)?,
            widen: linear(scope, "mlp", widen, (width, 4 * width), init)?,
            narrow: linear(scope, "mlp", narrow, (4 * width, width), residual)?,
            dropouts: [dropout, inside, dropout].map(|p| Dropout::new(scope, p)),
            drop_paths: [drop_path; 2].map(|p| DropPath::new(scope, p)),
        })
    }

    /// Transforms N x T x width; keeps the shape. Dropout applies if `train`.
    pub fn forward(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let ([attended, inside, narrowed], [first, second]) = (&self.dropouts, &self.drop_paths);
        let branch = attended.forward(&self.attention(&self.norm1.forward(x)?, train)?, train)?;
        let x = x.f_add(&first.forward(&branch, train)?)?;
        let wide = self.widen.forward(&self.norm2.forward(&x)?, train)?.f_gelu(self.options.gelu)?;
        let branch = narrowed.forward(&self.narrow.forward(&inside.forward(&wide, train)?, train)?, train)?;
        Ok(x.f_add(&second.forward(&branch, train)?)?)
    }

    pub(super) fn attention(&self, x: &Tensor, train: bool) -> Result<Tensor, ModelError> {
        let (n, t, width) = x.size3()?;
        let BlockOptions { heads, causal, .. } = self.options;
        // Splits N x T x (3 x heads x features) into q, k and v, each N x heads x T x features. The gradient of a split is
        // one kernel; that of three selections has eight, and three tensors of the whole size.
        let parts = self.qkv.forward(x, train)?.f_split(width, -1)?;
        let part = |part: usize| parts[part].f_view([n, t, heads, width / heads])?.f_transpose(1, 2);
        let mask = None::<&Tensor>;
        let [q, k, v] = [part(0)?, part(1)?, part(2)?];
        let y = Tensor::f_scaled_dot_product_attention(&q, &k, &v, mask, 0.0, causal, None, false)?;
        self.proj.forward(&y.f_transpose(1, 2)?.f_reshape([n, t, width])?, train)
    }
}
