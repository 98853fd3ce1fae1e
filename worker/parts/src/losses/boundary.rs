//! Cross-entropy of pixels that weighs those near other classes more: the weights of Wei et al. 2020, arXiv 1911.11445, for any
//! number of classes.

use dtrain_recipe::sample_losses::Boundary;
use tch::{Kind, Reduction, TchError, Tensor};

use super::of_samples::{Elements, OfClasses, OfSamples, weighted};
use super::overlap::one_hot;

impl OfSamples for Boundary {
    fn of_classes(&self) -> Option<&dyn OfClasses> {
        Some(self)
    }
}

impl OfClasses for Boundary {
    /// Returns 1 + factor x the part of the counted pixels in the window around each pixel that have another class.
    fn weights(&self, elements: &Elements<'_>) -> Result<Option<Tensor>, TchError> {
        let Some(counted) = elements.counted else { return Ok(None) };
        let width = self.width as i64;
        let side = 2 * width + 1;
        // A window is a sum over rows of sums over columns.
        let around = |values: &Tensor| {
            let columns = values.f_avg_pool2d([1, side], [1, 1], [0, width], false, true, 1)?;
            columns.f_avg_pool2d([side, 1], [1, 1], [width, 0], false, true, 1)
        };
        tch::no_grad(|| {
            let of_classes =
                around(&one_hot(elements.classes, counted, elements.known)?.f_to_kind(Kind::Float)?)?;
            let own = of_classes.f_gather(1, &elements.classes.f_unsqueeze(1)?, false)?;
            let all = around(&counted.f_unsqueeze(1)?.f_to_kind(Kind::Float)?)?.f_clamp_min(1.0)?;
            let others = all.f_sub(&own)?.f_div(&all)?.f_squeeze_dim(1)?;
            others.f_mul_scalar(self.factor)?.f_add_scalar(1.0).map(Some)
        })
    }

    fn losses(
        &self,
        logits: &Tensor,
        elements: &Elements<'_>,
        weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError> {
        let losses = logits.f_to_kind(Kind::Float)?.f_cross_entropy_loss(
            elements.classes,
            None::<Tensor>,
            Reduction::None,
            -100,
            0.0,
        )?;
        weighted(losses, weights)
    }
}
