//! The object of an image: the pixels of one class, as predicted and in the mask.

pub(crate) mod alignment;
pub(crate) mod borders;
pub(crate) mod nearest;
pub(crate) mod structure;
pub(crate) mod weighted;

use tch::{Kind, TchError, Tensor};

/// The smallest number that 1 can be changed by, as in the reference code.
const EPS: f64 = f64::EPSILON;

/// An object, row by row. A pixel that does not count is background in target and prediction.
pub(crate) struct Object {
    pub(crate) height: usize,
    pub(crate) width: usize,
    /// The probability in 8 bits, as in a file, stretched to the range from 0 to 1.
    pub(crate) probabilities: Vec<f64>,
    /// Whether the class has the largest logit.
    pub(crate) predicted: Vec<bool>,
    pub(crate) target: Vec<bool>,
    pub(crate) counted: Vec<bool>,
}

impl Object {
    /// Takes the class `positive` of logits, K x H x W, and a mask, H x W int64, below 0 where a pixel does not count; None if none counts.
    pub(crate) fn of(logits: &Tensor, mask: &Tensor, positive: usize) -> Result<Option<Self>, TchError> {
        let (height, width) = mask.size2()?;
        let logits = logits.f_detach()?;
        let mask = Vec::<i64>::try_from(mask.f_reshape([-1])?)?;
        let positive = positive as i64;
        let probabilities = logits.f_softmax(0, Kind::Double)?.f_get(positive)?;
        let probabilities = Vec::<f64>::try_from(probabilities.f_reshape([-1])?)?;
        let predicted = Vec::<bool>::try_from(logits.f_argmax(0, false)?.f_eq(positive)?.f_reshape([-1])?)?;
        let counted: Vec<bool> = mask.iter().map(|class| *class >= 0).collect();
        if !counted.contains(&true) {
            return Ok(None);
        }
        let target = mask.iter().map(|class| *class == positive).collect();
        let predicted = predicted.iter().zip(&counted).map(|(is, counts)| *is && *counts).collect();
        let bytes = probabilities
            .iter()
            .zip(&counted)
            .map(|(p, counts)| if *counts { (p * 255.0).round() } else { 0.0 });
        let probabilities = stretched(bytes.map(|byte| byte / 255.0).collect());
        Ok(Some(Self {
            height: height as usize,
            width: width as usize,
            probabilities,
            predicted,
            target,
            counted,
        }))
    }

    /// Returns the mean absolute error of the pixels that count.
    pub(crate) fn error(&self) -> f64 {
        let errors =
            self.probabilities.iter().zip(&self.target).map(|(p, is)| (p - f64::from(u8::from(*is))).abs());
        let counted = self.counted.iter().filter(|counts| **counts).count();
        errors.zip(&self.counted).filter_map(|(error, counts)| counts.then_some(error)).sum::<f64>()
            / counted as f64
    }

    /// Returns the threshold that depends on the prediction: twice its mean, at most 1.
    fn adaptive_threshold(&self) -> f64 {
        (2.0 * self.probabilities.iter().sum::<f64>() / self.probabilities.len() as f64).min(1.0)
    }
}

/// Returns the values with the smallest at 0 and the largest at 1, unless all are equal.
fn stretched(mut values: Vec<f64>) -> Vec<f64> {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    if most > least {
        values.iter_mut().for_each(|value| *value = (*value - least) / (most - least));
    }
    values
}

/// Returns the mean of numbers; 0 of none.
fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (mut sum, mut count) = (0.0, 0usize);
    values.for_each(|value| {
        sum += value;
        count += 1;
    });
    if count == 0 { 0.0 } else { sum / count as f64 }
}
