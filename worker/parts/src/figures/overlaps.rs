//! Intersection over union and Dice of classes: of all elements, or the mean of each image's own.

use dtrain_recipe::figures::{Dice, Iou};
use tch::{Kind, TchError, Tensor};

use super::confusion::{self, Counts, Quotient};
use super::{ByClasses, Figure, Made, Shape, Source, elements, means};

/// Makes the settings a figure of overlaps: a quotient of the counts of a class.
macro_rules! of_overlaps {
    ($($figure:ident $name:literal: $value:expr;)+) => { $(
        impl Figure for $figure {
            fn takes(&self) -> Vec<Source<'_>> {
                vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
            }

            fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
                confusion::check($name, shapes, classes, self.positive)?;
                match self.images == Some(true) && shapes[1].len() < 2 {
                    true => Err("one sample with one class has no overlap; remove images = true".to_owned()),
                    false => Ok(()),
                }
            }

            fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
                match self.images {
                    Some(true) => Err("one sample without pixels has no overlap; remove images = true".to_owned()),
                    _ => confusion::check_sets($name, shapes, self.positive),
                }
            }

            fn made(&self) -> Made<'_> {
                Made::ByClasses(self)
            }
        }

        impl ByClasses for $figure {
            fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
                match self.images {
                    Some(true) => {
                        let [values, occurs] = of_images(values, weights, classes, $value)?;
                        means_of_images(&values, &occurs, self.positive, self.interval)
                    }
                    _ => confusion::sums(values, weights, classes),
                }
            }

            fn sums(&self, classes: usize) -> usize {
                match self.images {
                    Some(true) => means::count(self.interval) * (1 + classes),
                    _ => confusion::SUMS * classes,
                }
            }

            fn figure(&self, sums: &[f64]) -> f64 {
                match self.images {
                    Some(true) => means::all(sums, self.interval).next().map_or(f64::NAN, |mean| mean.value()),
                    _ => confusion::of_classes(sums, self.positive, $value),
                }
            }

            fn further(&self, sums: &[f64]) -> Vec<f64> {
                let wanted = self.interval == Some(true);
                let mean = means::all(sums, self.interval).next().filter(|_| wanted);
                mean.map(|mean| mean.interval()).into_iter().collect()
            }

            fn by_class(&self, sums: &[f64]) -> Vec<f64> {
                match self.images {
                    Some(true) => means::all(sums, self.interval).skip(1).map(|mean| mean.value()).collect(),
                    _ => confusion::values(sums, $value),
                }
            }
        }
    )+ };
}

of_overlaps! {
    Iou "iou": |Counts { both, predicted, target }| [both, predicted + target - both];
    Dice "dice": |Counts { both, predicted, target }| [2.0 * both, predicted + target];
}

/// Returns the value of each class in each image, N x K float64, and whether the class is in its target or prediction; where it is not,
/// the value is 0. `values`: logits, N x M x K', and classes, N x M.
fn of_images(
    values: &[&Tensor],
    weights: &Tensor,
    classes: usize,
    value: Quotient,
) -> Result<[Tensor; 2], TchError> {
    let (logits, targets) = (values[0].f_detach()?, values[1]);
    let (images, classes) = (targets.size()[0], classes as i64);
    let counted = elements::counted(targets, weights)?;
    let predicted = logits.f_argmax(-1, false)?;
    let right = counted.f_logical_and(&predicted.f_eq_tensor(targets)?)?;
    let first =
        Tensor::f_arange(images, (Kind::Int64, targets.device()))?.f_mul_scalar(classes)?.f_unsqueeze(1)?;
    let count = |of: &Tensor, among: &Tensor| {
        // A class that the data lacks must not be counted in the next image.
        let known = among.f_logical_and(&of.f_lt(classes)?)?;
        let bins = of.f_add(&first)?.f_reshape([-1])?;
        elements::count(&bins, &known.f_reshape([-1])?, images * classes)
    };
    let counts = [count(targets, &right)?, count(&predicted, &counted)?, count(targets, &counted)?];
    let [both, predicted, target] = counts.map(Vec::<f64>::try_from);
    let (both, predicted, target) = (both?, predicted?, target?);
    let mut found = [Vec::with_capacity(both.len()), Vec::with_capacity(both.len())];
    for ((both, predicted), target) in both.into_iter().zip(predicted).zip(target) {
        let [above, below] = value(Counts { both, predicted, target });
        found[0].push(if below == 0.0 { 0.0 } else { above / below });
        found[1].push(if below == 0.0 { 0.0 } else { 1.0 });
    }
    let [values, occurs] = found.map(|of| Tensor::f_from_slice(&of)?.f_view([images, classes]));
    Ok([values?, occurs?])
}

/// Returns the sums of the mean over the images: of the class `positive`, else of the mean over the classes of each; then those of each class.
fn means_of_images(
    values: &Tensor,
    occurs: &Tensor,
    positive: Option<usize>,
    interval: Option<bool>,
) -> Result<Tensor, TchError> {
    let (above, below) = match positive {
        Some(at) => (values.f_narrow(1, at as i64, 1)?, occurs.f_narrow(1, at as i64, 1)?),
        None => {
            let sum = |of: &Tensor| of.f_sum_dim_intlist([1i64].as_slice(), true, Kind::Double);
            let (sum, count) = (sum(values)?, sum(occurs)?);
            (sum.f_div(&count.f_clamp_min(1.0)?)?, count.f_gt(0.0)?.f_to_kind(Kind::Double)?)
        }
    };
    means::sums(&Tensor::f_cat(&[&above, values], 1)?, &Tensor::f_cat(&[&below, occurs], 1)?, interval)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_recipe::figures::{Accuracy, Auc, Confusion};

    use super::*;
    use crate::parity::OfFigures;

    #[test]
    fn overlaps_are_those_of_scikit_learn_and_torchmetrics_in_every_cut() {
        let known = OfFigures::read().with_pixels();
        let compare = |figure: &dyn Figure, expected: &[&str]| {
            known.compare(figure, ["pixels.flat", "pixels.targets"], 3, expected)
        };
        let (images, interval) = (Some(true), Some(true));
        compare(&Iou::default(), &["iou", "ious"]);
        compare(&Dice::default(), &["dice"]);
        compare(&Iou { images, interval, ..Iou::default() }, &["images.iou", "images.iou.interval"]);
        compare(&Iou { images, positive: Some(1), ..Iou::default() }, &["images.iou.1"]);
        compare(&Dice { images, ..Dice::default() }, &["images.dice"]);
        let of_one = Dice { images, interval, positive: Some(1), ..Dice::default() };
        compare(&of_one, &["images.dice.1", "images.dice.1.interval"]);
        compare(&Accuracy::default(), &["pixels.accuracy"]);
        // By bins of scores.
        let (found, expected) =
            (known.binned(&Auc::default(), ["pixels.flat", "pixels.targets"]), known.of("pixels.auc")[0]);
        assert!((found - expected).abs() < 1e-3, "{found} {expected}");
    }

    #[test]
    fn samples_have_counts_and_an_interval() {
        let known = OfFigures::read();
        let compare = |figure: &dyn Figure, expected: &[&str]| {
            known.compare(figure, ["samples.logits", "samples.labels"], 4, expected)
        };
        let interval = Some(true);
        compare(&Accuracy { interval, ..Accuracy::default() }, &["accuracy", "accuracy.interval"]);
        compare(&Accuracy { top: 2, interval, ..Accuracy::default() }, &["top2", "top2.interval"]);
        compare(&Iou::default(), &["samples.iou"]);
        compare(&Confusion::default(), &["kappa", "recalls"]);
        assert_eq!(known.counts(["samples.logits", "samples.labels"], 4), known.of("confusion"));
    }
}
