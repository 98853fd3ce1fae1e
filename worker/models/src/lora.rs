//! Low-rank adapters (Hu et al. 2021, arXiv 2106.09685) of linear and convolution weights, as PEFT computes them: the layer's
//! result plus `alpha / rank` times B(A(dropout(x))). A begins uniform in ±1 / sqrt(fan-in), and B at zero.

use std::fmt;
use std::sync::Arc;

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
    pub fn scale(&self) -> f64 {
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
pub(super) fn shapes(weight: &[i64], is_transposed: bool, rank: i64) -> Option<[Vec<i64>; 2]> {
    let (output, input, kernel) = match weight {
        [input, output] if is_transposed => (*output, *input, &[][..]),
        [output, input, kernel @ ..] if !is_transposed => (*output, *input, kernel),
        _ => return None,
    };
    let ones = kernel.iter().map(|_| 1);
    Some([[&[rank, input], kernel].concat(), [output, rank].into_iter().chain(ones).collect()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_those_of_peft() {
        assert_eq!(shapes(&[6, 5], false, 2), Some([vec![2, 5], vec![6, 2]]));
        assert_eq!(shapes(&[5, 6], true, 2), Some([vec![2, 5], vec![6, 2]]));
        assert_eq!(shapes(&[6, 5, 3, 1], false, 2), Some([vec![2, 5, 3, 1], vec![6, 2, 1, 1]]));
        assert_eq!((shapes(&[6], false, 2), shapes(&[6, 5, 3], true, 2)), (None, None));
        let names = Adapted { weight: "a.in_proj_weight".to_owned(), is_transposed: false }.names();
        assert_eq!(names, ["a.in_proj_weight.lora_A.weight", "a.in_proj_weight.lora_B.weight"]);
    }
}
