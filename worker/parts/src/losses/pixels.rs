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

/// The targets of a batch of images: the classes of its pixels, and which pixels count.
#[derive(Debug, Clone, Copy)]
pub struct Masks<'a> {
    /// The classes, N x H x W int64.
    pub mask: &'a Tensor,
    /// The weights of the samples, N. No pixel of a sample with weight 0 counts.
    pub weights: &'a Tensor,
    /// The value of pixels that do not count.
    pub ignore: i64,
    /// The number of classes of the data.
    pub classes: usize,
}

/// Computes the cross-entropy of `logits`, N x K x H x W or smaller with K at least the number of classes. Smaller logits are enlarged.
/// The sums are empty.
pub fn pixel_loss(logits: &Outputs, masks: &Masks<'_>) -> Result<Loss, TchError> {
    let logits = enlarged_to(logits, masks.mask)?;
    let pixels = Pixels::of(masks)?;
    // A mean would need the number of counted pixels in the whole step.
    let sum = logits.loss(|logits| {
        logits.f_cross_entropy_loss(&pixels.target, None::<Tensor>, Reduction::Sum, masks.ignore, 0.0)
    })?;
    let sums = Loss::no_sums(masks.mask.device())?;
    Ok(Loss { sum, weight: pixels.counted.f_sum(Kind::Double)?, sums })
}

/// Computes the sum of losses as [`pixel_loss`]; samples with weight 0 may have any logits.
///
/// One loss of pixels is divided by the sum of the weights of the pixels. Otherwise each sample with counted pixels has its own loss: of
/// each term of pixels the weighted mean over its pixels, and of areas their loss.
pub fn pixel_losses(terms: &[Term], logits: &Outputs, masks: &Masks<'_>) -> Result<Loss, TchError> {
    let (logits, pixels, target) = prepared(logits, masks)?;
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
            let (losses, counts) = pixels.of_images(&bound, &target, &logits, masks.weights)?;
            // A sample weighs as many pixels, so that derivatives keep their size if a stage has another loss.
            let (_, height, width) = masks.mask.size3()?;
            let size = (height * width) as f64;
            let sum = losses.f_sum(Kind::Float)?;
            (sum.f_mul_scalar(size)?, counts.f_sum(Kind::Double)?.f_mul_scalar(size)?)
        }
    };
    Ok(Loss { sum, weight, sums: Loss::no_sums(masks.mask.device())? })
}

/// Returns the sums of the areas of the classes (`figures::areas::sums`) that `logits`, as of [`pixel_loss`], predict, and the number
/// of counted pixels.
pub fn pixel_sums(logits: &Tensor, masks: &Masks<'_>) -> Result<Tensor, TchError> {
    let pixels = Pixels::of(masks)?;
    let logits = enlarged_to(&Outputs::only(logits.f_detach()?), masks.mask)?.main;
    let mut predicted = logits.f_argmax(1, false)?;
    if logits.size()[1] > pixels.classes {
        // Classes that the data lacks are in no area.
        predicted = predicted.f_clamp_max(pixels.classes)?;
    }
    let areas = areas::sums(&predicted, &pixels.target, &pixels.counted, pixels.classes)?;
    Tensor::f_cat(&[areas, pixels.counted.f_sum(Kind::Double)?.f_reshape([1])?], 0)
}

/// Returns the loss of each image by one term, as [`pixel_losses`]; 0 of images without a pixel that counts.
pub fn image_losses(term: &Term, logits: &Outputs, masks: &Masks<'_>) -> Result<Tensor, TchError> {
    let (logits, pixels, target) = prepared(logits, masks)?;
    let bound = [pixels.bind(term, &target)?];
    Ok(pixels.of_images(&bound, &target, &logits, masks.weights)?.0)
}

/// Returns logits, which are 0 for samples of weight 0, the pixels, and classes that are 0 where a pixel does not count.
fn prepared(logits: &Outputs, masks: &Masks<'_>) -> Result<(Outputs, Pixels, Tensor), TchError> {
    let absent = masks.weights.f_eq(0.0)?.f_view([-1, 1, 1, 1])?;
    // Their derivatives are 0 and not NaN.
    let logits = enlarged_to(logits, masks.mask)?.map(|logits| logits.f_masked_fill(&absent, 0.0))?;
    let pixels = Pixels::of(masks)?;
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
    fn of(masks: &Masks<'_>) -> Result<Self, TchError> {
        let unreadable = masks.weights.f_eq(0.0)?.f_view([-1, 1, 1])?;
        let target = masks.mask.f_masked_fill(&unreadable, masks.ignore)?;
        Ok(Self { counted: target.f_ne(masks.ignore)?, target, classes: masks.classes as i64 })
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
