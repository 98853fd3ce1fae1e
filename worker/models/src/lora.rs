//! Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) of linear and convolution weights, as PEFT computes them: the layer's
//! result plus `alpha / rank` times B(A(dropout(x))). A begins uniform in ±1 / sqrt(fan-in), and B at zero.

use std::fmt;
use std::sync::Arc;

use tch::{Device, Kind, TchError, Tensor};

use super::error::ModelError;
use super::layers::{Dropout, Init};
use super::registry::{Registry, Scope};
use super::weight::Weight;

/// Decides by its full name whether a weight gets an adapter.
type Chooses = dyn Fn(&str) -> bool + Send + Sync;

/// The settings of all adapters of a model. A model that is built with them trains adapters alone: other parameters are frozen.
#[derive(Clone)]
pub struct Lora {
    /// The rank of the products B A.
    pub rank: i64,
    /// The factor of B A, times the rank.
    pub alpha: f64,
    /// The probability with which an adapter drops an element of its input in training.
    pub dropout: f64,
    /// Decides by its full name whether a weight gets an adapter.
    pub chooses: Arc<Chooses>,
}

impl fmt::Debug for Lora {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, alpha, dropout, .. } = self;
        f.debug_struct("Lora")
            .field("rank", rank)
            .field("alpha", alpha)
            .field("dropout", dropout)
            .finish_non_exhaustive()
    }
}

impl Lora {
    /// Returns the factor of B A.
    pub(super) fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// The ending of the names of weights, in place of which the names of adapters have [`A`] or [`B`].
const WEIGHT: &str = ".weight";
/// The ending of the name of A.
const A: &str = ".lora_A.weight";
/// The ending of the name of B.
const B: &str = ".lora_B.weight";

/// Returns the layer of a weight: its name without `.weight`.
fn layer(weight: &str) -> &str {
    weight.strip_suffix(WEIGHT).unwrap_or(weight)
}

/// A weight with an adapter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Adapted {
    /// The full name of the weight.
    pub weight: String,
    /// Whether the weight is input x output, as in Hugging Face's `Conv1D`.
    pub is_transposed: bool,
}

impl Adapted {
    /// Returns the names of A and B.
    pub fn names(&self) -> [String; 2] {
        [A, B].map(|ending| format!("{}{ending}", layer(&self.weight)))
    }
}

/// Returns the shapes of A and B for a weight: output x input, or output x input x kernel.
fn shapes(weight: &[i64], is_transposed: bool, rank: i64) -> Option<[Vec<i64>; 2]> {
    let (output, input, kernel) = match weight {
        [input, output] if is_transposed => (*output, *input, &[][..]),
        [output, input, kernel @ ..] => (*output, *input, kernel),
        _ => return None,
    };
    let ones = kernel.iter().map(|_| 1);
    Some([[&[rank, input], kernel].concat(), [output, rank].into_iter().chain(ones).collect()])
}

impl Registry {
    /// Returns the settings of adapters if a weight gets one.
    pub(super) fn lora_of(&self, weight: &str) -> Option<&Lora> {
        self.lora.as_ref().filter(|lora| (lora.chooses)(weight))
    }

    /// Registers the adapter of a weight that exists. Returns A and B.
    ///
    /// # Errors
    /// The weight has an adapter already, or no two dimensions.
    pub(super) fn adapt(&mut self, adapted: Adapted, rank: i64) -> Result<[Weight; 2], ModelError> {
        let shape = self.get(&adapted.weight).map(|entry| entry.tensor().size()).unwrap_or_default();
        let Some([a, b]) = shapes(&shape, adapted.is_transposed, rank) else {
            let reason = format!("its shape {shape:?} is not that of a linear or convolution weight");
            return Err(ModelError::NotAdaptable { weight: adapted.weight, reason });
        };
        let [a_name, b_name] = adapted.names();
        let b = Tensor::f_zeros(b.as_slice(), (Kind::Float, Device::Cpu))?;
        let mut root = self.root();
        let pair = [root.weight(&a_name, &Init::FanIn.weight(&a)?)?, root.weight(&b_name, &b)?];
        self.adapted.push(adapted);
        Ok(pair)
    }
}

/// The adapter of a layer of this crate.
#[derive(Debug)]
pub(super) struct Adapter {
    a: Weight,
    b: Weight,
    scale: f64,
    dropout: Dropout,
}

impl Adapter {
    /// Registers the adapter of the layer in this scope, if it gets one.
    pub(super) fn of_layer(scope: &mut Scope<'_>) -> Result<Option<Self>, ModelError> {
        let weight = scope.full_name("weight");
        let Some(lora) = scope.registry().lora_of(&weight).cloned() else { return Ok(None) };
        let dropout = Dropout::new(scope, lora.dropout);
        let [a, b] = scope.adapt(Adapted { weight, is_transposed: false }, lora.rank)?;
        Ok(Some(Self { a, b, scale: lora.scale(), dropout }))
    }

    /// Adds the adapter's result for `x` to the layer's, `y`. `down` computes the layer with A as its weight and without a bias,
    /// and `up` the product with B.
    pub(super) fn add(
        &self,
        y: &Tensor,
        x: &Tensor,
        train: bool,
        down: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>,
        up: impl Fn(&Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, ModelError> {
        let low = down(&self.dropout.forward(x, train)?, &self.a.get()?)?;
        Ok(y.f_add(&up(&low, &self.b.get()?)?.f_mul_scalar(self.scale)?)?)
    }
}
