//! The block of a transformer with normalisation first (Xiong et al. 2020, arXiv 2002.04745), for pictures and for text.

use tch::Tensor;

use super::super::error::ModelError;
use super::super::registry::Scope;
use super::init::Init;
use super::linear::Linear;
use super::norm::LayerNorm;

/// Which form of GELU (Hendrycks and Gimpel 2016, arXiv 1606.08415).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gelu {
    /// By the error function.
    Exact,
    /// By the hyperbolic tangent, as GPT-2 has it.
    Tanh,
}

/// What the parts of a block are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockNames {
    /// The normalisation before the attention, and that before the perceptron.
    pub norms: [&'static str; 2],
    /// Within `attn`: the layer of queries, keys and values, and the layer after the attention.
    pub attention: [&'static str; 2],
    /// Within `mlp`: the layer that widens and the one that narrows.
    pub mlp: [&'static str; 2],
}

impl BlockNames {
    /// As timm names them.
    pub const TIMM: Self =
        Self { norms: ["norm1", "norm2"], attention: ["qkv", "proj"], mlp: ["fc1", "fc2"] };
    /// As GPT-2 names them.
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
    /// Whether a token sees only those before it and itself.
    pub causal: bool,
    /// Added to the variance in the normalisations.
    pub eps: f64,
    /// The perceptron's non-linearity.
    pub gelu: Gelu,
    /// How the layers into a branch begin.
    pub init: Init,
    /// How the last layer of each branch begins.
    pub residual: Init,
    /// The names.
    pub names: BlockNames,
}

/// Multi-head self-attention (Vaswani et al. 2017, arXiv 1706.03762) with one layer for queries, keys and values. Without
/// dropout.
#[derive(Debug)]
pub struct SelfAttention {
    qkv: Linear,
    proj: Linear,
    heads: i64,
    causal: bool,
}

impl SelfAttention {
    /// Registers the two layers under the names of `options`: width to 3 width (queries, keys, values, each head by
    /// head), and width to width.
    pub fn new(scope: &mut Scope<'_>, options: &BlockOptions) -> Result<Self, ModelError> {
        let (width, [qkv, proj]) = (options.width, options.names.attention);
        Ok(Self {
            qkv: Linear::with_init(&mut scope.sub(qkv), width, 3 * width, options.init)?,
            proj: Linear::with_init(&mut scope.sub(proj), width, width, options.residual)?,
            heads: options.heads,
            causal: options.causal,
        })
    }

    /// N x T x width to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let (n, t, width) = x.size3()?;
        let qkv = self.qkv.forward(x)?;
        // N x T x 3 x heads x features to three of N x heads x T x features.
        let parts = qkv.f_view([n, t, 3, self.heads, width / self.heads])?.f_permute([2, 0, 3, 1, 4])?;
        let [q, k, v] = [0, 1, 2].map(|part| parts.f_select(0, part));
        let y = Tensor::f_scaled_dot_product_attention(
            &q?,
            &k?,
            &v?,
            None::<&Tensor>,
            0.0,
            self.causal,
            None,
            false,
        )?;
        let y = y.f_transpose(1, 2)?.f_reshape([n, t, width])?;
        self.proj.forward(&y)
    }
}

/// Two layers with a GELU between, the inner four times as wide. Without dropout.
#[derive(Debug)]
pub struct Mlp {
    widen: Linear,
    narrow: Linear,
    gelu: Gelu,
}

impl Mlp {
    /// Registers the two layers under the names of `options`.
    pub fn new(scope: &mut Scope<'_>, options: &BlockOptions) -> Result<Self, ModelError> {
        let (width, [widen, narrow]) = (options.width, options.names.mlp);
        Ok(Self {
            widen: Linear::with_init(&mut scope.sub(widen), width, 4 * width, options.init)?,
            narrow: Linear::with_init(&mut scope.sub(narrow), 4 * width, width, options.residual)?,
            gelu: options.gelu,
        })
    }

    /// ... x width to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let form = match self.gelu {
            Gelu::Exact => "none",
            Gelu::Tanh => "tanh",
        };
        self.narrow.forward(&self.widen.forward(x)?.f_gelu(form)?)
    }
}

/// Attention and perceptron, each with a normalisation before it and a way around it: 12 width² + 13 width parameters.
#[derive(Debug)]
pub struct Block {
    norm1: LayerNorm,
    attention: SelfAttention,
    norm2: LayerNorm,
    mlp: Mlp,
}

impl Block {
    /// Registers the parts under the names of `options`, attention in `attn` and perceptron in `mlp`.
    pub fn new(scope: &mut Scope<'_>, options: &BlockOptions) -> Result<Self, ModelError> {
        let [norm1, norm2] = options.names.norms;
        Ok(Self {
            norm1: LayerNorm::new(&mut scope.sub(norm1), options.width, options.eps)?,
            attention: SelfAttention::new(&mut scope.sub("attn"), options)?,
            norm2: LayerNorm::new(&mut scope.sub(norm2), options.width, options.eps)?,
            mlp: Mlp::new(&mut scope.sub("mlp"), options)?,
        })
    }

    /// N x T x width to the same shape.
    pub fn forward(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let x = x.f_add(&self.attention.forward(&self.norm1.forward(x)?)?)?;
        Ok(x.f_add(&self.mlp.forward(&self.norm2.forward(&x)?)?)?)
    }
}
