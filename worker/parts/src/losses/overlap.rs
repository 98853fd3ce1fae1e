//! The areas of classes in images, as sums of probabilities.

use tch::{Kind, TchError, Tensor};

/// The areas of K classes in each of N images: sums over its counted pixels, each N x K float32.
pub struct Areas {
    /// Of the probability of the class where it is right.
    pub both: Tensor,
    /// Of the probability of the class.
    pub predicted: Tensor,
    /// The number of pixels of the class.
    pub target: Tensor,
}

impl Areas {
    /// Returns the areas of the first `classes` classes of `logits`, N x K x H x W, for the classes `target`, N x H x W, of the pixels
    /// that are `counted`.
    pub(super) fn of(
        logits: &Tensor,
        target: &Tensor,
        counted: &Tensor,
        classes: i64,
    ) -> Result<Self, TchError> {
        let probabilities = logits.f_softmax(1, Kind::Float)?.f_narrow(1, 0, classes)?;
        let one_hot = one_hot(target, counted, classes)?;
        let left_out = |which: &Tensor| probabilities.f_masked_fill(&which.f_logical_not()?, 0.0);
        let sum = |values: &Tensor| values.f_sum_dim_intlist([2i64, 3].as_slice(), false, Kind::Float);
        Ok(Self {
            both: sum(&left_out(&one_hot)?)?,
            predicted: sum(&left_out(&counted.f_unsqueeze(1)?)?)?,
            target: sum(&one_hot)?,
        })
    }
}

/// Returns whether a counted pixel has a class, N x K x H x W.
pub(super) fn one_hot(target: &Tensor, counted: &Tensor, classes: i64) -> Result<Tensor, TchError> {
    // A scatter would add in another order each time.
    let numbers = Tensor::f_arange(classes, (Kind::Int64, target.device()))?.f_view([1, -1, 1, 1])?;
    target.f_unsqueeze(1)?.f_eq_tensor(&numbers)?.f_logical_and(&counted.f_unsqueeze(1)?)
}

/// Returns (above + smooth) / (below + smooth).
pub(super) fn quotient(above: &Tensor, below: &Tensor, smooth: f64) -> Result<Tensor, TchError> {
    above.f_add_scalar(smooth)?.f_div(&below.f_add_scalar(smooth)?)
}
