//! What has a class: samples, the pixels of masks or the tokens of texts.

use tch::{Kind, TchError, Tensor};

use super::Shape;

/// The elements of a batch, one after the other.
pub(super) struct Elements {
    /// P x K, detached.
    pub(super) logits: Tensor,
    /// P, int64.
    pub(super) targets: Tensor,
    /// P, whether each counts.
    pub(super) counted: Tensor,
}

impl Elements {
    /// Takes logits, N x K or N x M x K, and classes, N or N x M.
    pub(super) fn of(values: &[&Tensor], weights: &Tensor) -> Result<Self, TchError> {
        let (logits, targets) = (values[0].f_detach()?, values[1]);
        Ok(Self {
            logits: logits.f_reshape([-1, *logits.size().last().unwrap_or(&1)])?,
            targets: targets.f_reshape([-1])?,
            counted: counted(targets, weights)?.f_reshape([-1])?,
        })
    }
}

/// Returns which classes of `targets`, N or N x M, count: none of samples with weight 0.
pub(super) fn counted(targets: &Tensor, weights: &Tensor) -> Result<Tensor, TchError> {
    let mut shape = vec![-1];
    shape.resize(targets.dim(), 1);
    targets.f_ge(0)?.f_logical_and(&weights.f_ne(0.0)?.f_view(shape.as_slice())?)
}

/// Returns how often each of the numbers below `bins` is in `values`, P int64, float64. Those with `counted` false do not count, nor others.
pub(super) fn count(values: &Tensor, counted: &Tensor, bins: i64) -> Result<Tensor, TchError> {
    // Selecting values would wait for a GPU.
    let values = values.f_where_scalarother(counted, bins)?.f_clamp(0, bins)?;
    let one =
        Tensor::f_ones([1], (Kind::Double, values.device()))?.f_expand([values.numel() as i64], false)?;
    let counts = Tensor::f_zeros([bins + 1], (Kind::Double, values.device()))?;
    counts.f_scatter_add(0, &values, &one)?.f_narrow(0, 0, bins)
}

/// Returns the number of logits of each element, if the shapes are those of [`Elements::of`]; None inside if it is not known.
pub(super) fn logits(shapes: &[Shape]) -> Option<Option<i64>> {
    match (&shapes[0][..], &shapes[1][..]) {
        ([None, k], [None]) => Some(*k),
        ([None, m, k], [None, of]) if m.is_none() || of.is_none() || m == of => Some(*k),
        _ => None,
    }
}
