//! Losses of the classes of pixels.

use dtrain_recipe::Loss as Settings;
use tch::{Kind, Reduction, TchError, Tensor};

use super::classes::{add, or_nothing};
use super::of_samples::{Elements, OfClasses, Term, of_samples};
use super::overlap::Areas;
use crate::figures::areas;
use crate::{Loss, Outputs, enlarged};

/// Returns whether a loss is the cross-entropy alone, whose weight is the number of counted pixels.
pub fn is_plain(loss: &Settings) -> bool {
    *loss == Settings::default()
}

/// Computes the cross-entropy of `logits`, N x K x H x W or smaller with K at least `classes`, for the classes `mask`,
/// N x H x W int64. Smaller logits are enlarged. Pixels of value `ignore`, and all pixels of samples with
/// weight 0 in `weights`, N, do not count.
pub fn pixel_loss(
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<Loss, TchError> {
    let logits = enlarged_to(logits, mask)?;
    let pixels = Pixels::of(mask, weights, ignore, classes)?;
    // A mean would need the number of counted pixels in the whole step.
    let sum = logits.loss(|logits| {
        logits.f_cross_entropy_loss(&pixels.target, None::<Tensor>, Reduction::Sum, ignore, 0.0)
    })?;
    Ok(Loss { sum, weight: pixels.counted.f_sum(Kind::Double)?, sums: pixels.areas(&logits.main)? })
}

/// Computes the sum of losses as [`pixel_loss`]; samples with weight 0 may have any logits. The last of the sums is the number of
/// counted pixels.
///
/// One loss of pixels is divided by the sum of the weights of the pixels. Otherwise each sample with counted pixels has its own loss: of
/// each term of pixels the weighted mean over its pixels, and of areas their loss.
pub fn pixel_losses(
    terms: &[Term],
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<Loss, TchError> {
    let (logits, pixels, target) = prepared(logits, mask, weights, ignore, classes)?;
    let bound: Vec<_> = terms.iter().map(|term| pixels.bind(term, &target)).collect::<Result<_, _>>()?;
    let (sum, weight) = match &bound[..] {
        [alone @ Bound { of_pixels: Some(of_pixels), .. }] => {
            let sum = logits.loss(|logits| {
                let losses = pixels.losses(of_pixels, &target, alone.term, logits)?;
                alone.term.scaled(losses.f_sum(Kind::Float)?)
            })?;
            (sum, of_pixels.weights.f_sum(Kind::Double)?)
        }
        _ => {
            let (losses, counts) = pixels.of_images(&bound, &target, &logits, weights)?;
            // A sample weighs as many pixels, so that derivatives keep their size if a stage has another loss.
            let size = (mask.size()[1] * mask.size()[2]) as f64;
            let sum = losses.f_sum(Kind::Float)?;
            (sum.f_mul_scalar(size)?, counts.f_sum(Kind::Double)?.f_mul_scalar(size)?)
        }
    };
    let count = pixels.counted.f_sum(Kind::Double)?.f_reshape([1])?;
    Ok(Loss { sum, weight, sums: Tensor::f_cat(&[pixels.areas(&logits.main)?, count], 0)? })
}

/// Returns the loss of each image by one term, as [`pixel_losses`]; 0 of images without a pixel that counts.
pub fn image_losses(
    term: &Term,
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<Tensor, TchError> {
    let (logits, pixels, target) = prepared(logits, mask, weights, ignore, classes)?;
    let bound = [pixels.bind(term, &target)?];
    Ok(pixels.of_images(&bound, &target, &logits, weights)?.0)
}

/// Returns logits, which are 0 for samples of weight 0, the pixels, and classes that are 0 where a pixel does not count.
fn prepared(
    logits: &Outputs,
    mask: &Tensor,
    weights: &Tensor,
    ignore: i64,
    classes: usize,
) -> Result<(Outputs, Pixels, Tensor), TchError> {
    let absent = weights.f_eq(0.0)?.f_view([-1, 1, 1, 1])?;
    // Their derivatives are 0 and not NaN.
    let logits = enlarged_to(logits, mask)?.map(|logits| logits.f_masked_fill(&absent, 0.0))?;
    let pixels = Pixels::of(mask, weights, ignore, classes)?;
    let target = pixels.target.f_masked_fill(&pixels.counted.f_logical_not()?, 0)?;
    Ok((logits, pixels, target))
}

fn enlarged_to(logits: &Outputs, mask: &Tensor) -> Result<Outputs, TchError> {
    let (_, height, width) = mask.size3()?;
    logits.map(|logits| enlarged(logits, (height, width)))
}

/// The pixels of a batch.
struct Pixels {
    /// The classes; `ignore` where a pixel does not count.
    target: Tensor,
    counted: Tensor,
    /// The number of classes of the data.
    classes: i64,
}

/// A term with the weights of the pixels, if it is of pixels.
struct Bound<'a> {
    term: &'a Term,
    of_pixels: Option<OfPixels<'a>>,
}

struct OfPixels<'a> {
    loss: &'a dyn OfClasses,
    /// Of the term, to multiply; None if each pixel weighs 1.
    own: Option<Tensor>,
    /// N x H x W float32, 0 for pixels that do not count.
    weights: Tensor,
}

impl Pixels {
    fn of(mask: &Tensor, weights: &Tensor, ignore: i64, classes: usize) -> Result<Self, TchError> {
        let unreadable = weights.f_eq(0.0)?.f_view([-1, 1, 1])?;
        let target = mask.f_masked_fill(&unreadable, ignore)?;
        Ok(Self { counted: target.f_ne(ignore)?, target, classes: classes as i64 })
    }

    /// Returns the sums of the figures.
    fn areas(&self, logits: &Tensor) -> Result<Tensor, TchError> {
        let mut predicted = logits.f_detach()?.f_argmax(1, false)?;
        if logits.size()[1] > self.classes {
            // Classes that the data lacks are in no area.
            predicted = predicted.f_clamp_max(self.classes)?;
        }
        areas::sums(&predicted, &self.target, &self.counted, self.classes)
    }

    fn elements<'a>(&'a self, target: &'a Tensor, term: &'a Term) -> Elements<'a> {
        Elements {
            classes: target,
            counted: Some(&self.counted),
            known: self.classes,
            class_weights: term.class_weights.as_ref(),
        }
    }

    fn bind<'a>(&self, term: &'a Term, target: &Tensor) -> Result<Bound<'a>, TchError> {
        let Some(loss) = term.of_classes() else { return Ok(Bound { term, of_pixels: None }) };
        let own = loss.weights(&self.elements(target, term))?;
        let weights = match &own {
            Some(own) => own.f_masked_fill(&self.counted.f_logical_not()?, 0.0)?,
            None => self.counted.f_to_kind(Kind::Float)?,
        };
        Ok(Bound { term, of_pixels: Some(OfPixels { loss, own, weights }) })
    }

    /// Returns the weighted losses of the pixels, without the factor of the term; 0 where a pixel does not count.
    fn losses(
        &self,
        of_pixels: &OfPixels<'_>,
        target: &Tensor,
        term: &Term,
        logits: &Tensor,
    ) -> Result<Tensor, TchError> {
        let losses = of_pixels.loss.losses(logits, &self.elements(target, term), of_pixels.own.as_ref())?;
        losses.f_masked_fill(&self.counted.f_logical_not()?, 0.0)
    }

    /// Returns the loss of each image, 0 of those without a pixel that counts; and which have one.
    fn of_images(
        &self,
        terms: &[Bound<'_>],
        target: &Tensor,
        logits: &Outputs,
        weights: &Tensor,
    ) -> Result<(Tensor, Tensor), TchError> {
        let counts = self.counted.f_flatten(1, 2)?.f_any_dim(1, false)?;
        let losses = logits.loss(|logits| self.of_samples(terms, target, logits, weights))?;
        Ok((losses.f_masked_fill(&counts.f_logical_not()?, 0.0)?, counts))
    }

    /// Returns the loss of each sample, N: the sum of all terms.
    fn of_samples(
        &self,
        terms: &[Bound<'_>],
        target: &Tensor,
        logits: &Tensor,
        weights: &Tensor,
    ) -> Result<Tensor, TchError> {
        let sums = |values: &Tensor| values.f_sum_dim_intlist([1i64, 2].as_slice(), false, Kind::Float);
        let (mut total, mut areas) = (None, None);
        for Bound { term, of_pixels } in terms {
            let losses = match (of_pixels, of_samples(&term.settings).of_areas()) {
                (Some(of_pixels), _) => {
                    let all = sums(&of_pixels.weights)?;
                    // Without a pixel that counts, or with classes of weight 0 alone.
                    let none = all.f_eq(0.0)?;
                    let mean = sums(&self.losses(of_pixels, target, term, logits)?)?
                        .f_div(&all.f_masked_fill(&none, 1.0)?)?;
                    mean.f_masked_fill(&none, 0.0)?
                }
                (None, Some(of_areas)) => {
                    let areas = match &mut areas {
                        Some(areas) => areas,
                        none => none.insert(Areas::of(logits, target, &self.counted, self.classes)?),
                    };
                    let mean = of_areas.matches(areas)?.f_mean_dim([1i64].as_slice(), false, Kind::Float)?;
                    mean.f_neg()?.f_add_scalar(1.0)?
                }
                (None, None) => continue,
            };
            total = Some(add(total, term.scaled(losses)?)?);
        }
        or_nothing(total, weights)
    }
}

#[cfg(test)]
mod tests;
