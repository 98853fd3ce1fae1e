//! Cross-entropy of pixels.

use tch::{Kind, Reduction, TchError, Tensor};

use crate::figures::areas;
use crate::{Loss, Outputs, enlarged};

/// Computes the loss of `logits`, N x K x H x W or smaller with K at least `classes`, for the classes `mask`,
/// N x H x W int64. Smaller logits are enlarged. Pixels of value `ignore`, and all pixels of samples with
/// weight 0 in `weights`, N, do not count.
pub fn pixel_loss(
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<Loss, TchError> {
    let (_, height, width) = mask.size3()?;
    let logits = logits.map(|logits| enlarged(logits, (height, width)))?;
    let unreadable = weights.f_eq(0.0)?.f_view([-1, 1, 1])?;
    let target = mask.f_masked_fill(&unreadable, ignore)?;
    let counted = target.f_ne(ignore)?;
    // A mean would need the number of counted pixels in the whole step.
    let sum = logits
        .loss(|logits| logits.f_cross_entropy_loss(&target, None::<Tensor>, Reduction::Sum, ignore, 0.0))?;
    let classes = classes as i64;
    let mut predicted = logits.main.f_detach()?.f_argmax(1, false)?;
    if logits.main.size()[1] > classes {
        // Classes that the data lacks are in no area.
        predicted = predicted.f_clamp_max(classes)?;
    }
    Ok(Loss {
        sum,
        weight: counted.f_sum(Kind::Double)?,
        sums: areas::sums(&predicted, &target, &counted, classes)?,
    })
}

#[cfg(test)]
mod tests;
