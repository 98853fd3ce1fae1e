//! Figures of predicted objects, an image at a time: the measures of salient and camouflaged object detection, as py_sod_metrics
//! computes them, and the distance between borders.

use dtrain_recipe::Threshold;
use dtrain_recipe::figures::{EMeasure, Hd95, MaskMae, SMeasure, WeightedF};
use tch::{Kind, TchError, Tensor};

use super::{BySums, Figure, Made, Shape, Source, confusion, means};
use crate::object::{self, Object};

/// Returns the [`means::sums`] of the numbers that `each` image has. One without such numbers is left out.
fn sums(
    values: &[&Tensor],
    weights: &Tensor,
    positive: usize,
    interval: Option<bool>,
    numbers: usize,
    each: impl Fn(&Object) -> Option<Vec<f64>>,
) -> Result<Tensor, TchError> {
    let weights = Vec::<f32>::try_from(weights.f_to_kind(Kind::Float)?)?;
    let (mut above, mut below) = (Vec::new(), Vec::new());
    for (image, weight) in weights.iter().enumerate() {
        let of = |values: &Tensor| values.f_get(image as i64);
        let found = match *weight == 0.0 {
            true => None,
            false => Object::of(&of(values[0])?, &of(values[1])?, positive)?.and_then(|object| each(&object)),
        };
        below.extend(std::iter::repeat_n(if found.is_some() { 1.0 } else { 0.0 }, numbers));
        above.extend(found.unwrap_or_else(|| vec![0.0; numbers]));
    }
    let shaped = |of: &[f64]| Tensor::f_from_slice(of)?.f_view([-1, numbers as i64]);
    means::sums(&shaped(&above)?, &shaped(&below)?, interval)
}

/// Makes the settings a figure of the objects of images, with a mean over the images of one number or several.
macro_rules! of_objects {
    ($($figure:ident $name:literal, |$settings:ident| $numbers:expr, $each:expr;)+) => { $(
        impl Figure for $figure {
            fn takes(&self) -> Vec<Source<'_>> {
                vec![Source::Output(self.output.as_deref()), Source::Mask(self.classes.as_deref())]
            }

            fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
                let $settings = self;
                if $numbers > 1 && self.interval == Some(true) {
                    return Err("interval is of a mean over the images, which a maximum is not; remove interval".to_owned());
                }
                let known = classes.or(shapes[0].get(1).copied().flatten().map(|k| k as usize));
                known.map_or(Ok(()), |known| confusion::has_class($name, Some(self.positive), known))
            }

            fn made(&self) -> Made<'_> {
                Made::BySums(self)
            }
        }

        impl BySums for $figure {
            fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError> {
                let $settings = self;
                let each: fn(&Self, &Object) -> Option<Vec<f64>> = $each;
                sums(values, weights, self.positive, self.interval, $numbers, |object| each(self, object))
            }

            fn sums(&self) -> usize {
                let $settings = self;
                means::count(self.interval) * $numbers
            }

            /// Returns the mean, or the largest of several.
            fn figure(&self, sums: &[f64]) -> f64 {
                means::all(sums, self.interval).map(|mean| mean.value()).reduce(f64::max).unwrap_or(f64::NAN)
            }

            fn further(&self, sums: &[f64]) -> Vec<f64> {
                means::further(sums, self.interval)
            }
        }
    )+ };
}

of_objects! {
    SMeasure "s-measure", |_it| 1, |_, object| Some(vec![object::structure::measure(object)]);
    EMeasure "e-measure", |it| if it.threshold == Threshold::Max { object::alignment::THRESHOLDS } else { 1 },
        |it, object| Some(match it.threshold {
            Threshold::Max => object::alignment::curve(object),
            Threshold::Mean => {
                let curve = object::alignment::curve(object);
                vec![curve.iter().sum::<f64>() / curve.len() as f64]
            }
            Threshold::Adaptive => vec![object::alignment::adaptive(object)],
        });
    WeightedF "weighted-f", |_it| 1, |_, object| Some(vec![object::weighted::measure(object)]);
    MaskMae "mask-mae", |_it| 1, |_, object| Some(vec![object.error()]);
    Hd95 "hd95", |_it| 1, |_, object| object::borders::distance_95(object).map(|distance| vec![distance]);
}

#[cfg(test)]
mod tests;
