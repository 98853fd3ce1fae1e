//! The values of a batch that a figure takes, in the form that it takes.

use dtrain_parts::enlarged;
use tch::{Kind, TchError, Tensor};

use super::Of;
use crate::tasks::TaskError;

/// A value of a figure.
pub(super) enum Value {
    /// The output of this number, and whether its target is that of the task.
    Output(usize, OutputForm, bool),
    /// The field of this name.
    Field(String, FieldForm),
    /// The sum of the losses of a text's targets.
    Nats,
    /// The bytes of a text's targets: the field, and the bytes of each token.
    Bytes(String, Tensor),
}

/// What is made of an output.
pub(super) enum OutputForm {
    AsIs,
    /// Logits, N x K x H x W, of masks of this height and width.
    Planes([i64; 2]),
    /// Those of each pixel, N x M x K.
    Pixels([i64; 2]),
    /// A vector, N x K.
    Vector,
    /// A map, N x 1 x H x W.
    Map([i64; 2]),
}

/// What is made of a field.
pub(super) enum FieldForm {
    AsIs,
    /// Classes of pixels, below 0 where the value is this one.
    Mask(i64),
    /// The same, N x M.
    Pixels(i64),
    /// A vector of numbers.
    Vector,
    /// A map, N x 1 x H x W.
    Map,
}

impl Value {
    /// Returns the value of a batch.
    pub(super) fn of(&self, of: &Of<'_>) -> Result<Tensor, TaskError> {
        Ok(match self {
            Self::Output(at, form, is_own) => {
                let value = form.of(&(of.output)(*at)?.f_detach()?)?;
                match of.in_unit.filter(|_| *is_own) {
                    Some(in_unit) => in_unit(&value)?,
                    None => value,
                }
            }
            Self::Field(name, form) => form.of(of.batch.field(name)?)?,
            Self::Nats => match of.nats {
                Some(nats) => nats.shallow_clone(),
                None => Tensor::f_zeros([1], (Kind::Double, of.batch.weights.device()))?,
            },
            Self::Bytes(name, of_tokens) => {
                let targets = of.batch.field(name)?;
                let counted =
                    targets.f_ge(0)?.f_logical_and(&of.batch.weights.f_ne(0.0)?.f_view([-1, 1])?)?;
                let of_tokens = of_tokens.f_to_device(targets.device())?;
                let last = of_tokens.size()[0] - 1;
                let bytes = of_tokens.f_take(&targets.f_clamp(0, last)?)?;
                bytes.f_masked_fill(&counted.f_logical_not()?, 0.0)?
            }
        })
    }
}

impl OutputForm {
    fn of(&self, output: &Tensor) -> Result<Tensor, TchError> {
        match self {
            Self::AsIs => Ok(output.shallow_clone()),
            Self::Planes(size) => planes(output, *size),
            Self::Pixels(size) => planes(output, *size)?.f_flatten(2, 3)?.f_transpose(1, 2),
            Self::Vector => output.f_reshape([output.size()[0], -1]),
            Self::Map([height, width]) => {
                let maps = if output.dim() == 3 { output.f_unsqueeze(1)? } else { output.shallow_clone() };
                enlarged(&maps, (*height, *width))
            }
        }
    }
}

/// Returns logits of the size of the mask, of at least two classes: one logit, N x H x W or N x 1 x H x W, is that of class 1.
pub(in crate::tasks) fn planes(output: &Tensor, [height, width]: [i64; 2]) -> Result<Tensor, TchError> {
    let logits = if output.dim() == 3 { output.f_unsqueeze(1)? } else { output.shallow_clone() };
    let logits = enlarged(&logits, (height, width))?;
    match logits.size()[1] {
        1 => Tensor::f_cat(&[&logits.f_zeros_like()?, &logits], 1),
        _ => Ok(logits),
    }
}

impl FieldForm {
    fn of(&self, field: &Tensor) -> Result<Tensor, TchError> {
        let counted = |ignore: i64| field.f_masked_fill(&field.f_eq(ignore)?, -1);
        match self {
            Self::AsIs => Ok(field.shallow_clone()),
            Self::Mask(ignore) => counted(*ignore),
            Self::Pixels(ignore) => counted(*ignore)?.f_flatten(1, 2),
            Self::Vector => field.f_to_kind(Kind::Double)?.f_reshape([field.size()[0], -1]),
            Self::Map => field.f_to_kind(Kind::Double)?.f_unsqueeze(1),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::tasks::Batch;

    /// An output of another field has another unit than the task's target.
    #[test]
    fn only_outputs_of_the_tasks_target_change_their_unit() {
        let batch = Batch::blank(&[], 2, tch::Device::Cpu).unwrap();
        let output = |_| Ok(Tensor::from_slice(&[1f32, 2.0]));
        let in_unit = |values: &Tensor| Ok(values * 10.0);
        let of = Of { output: &output, in_unit: Some(&in_unit), nats: None, batch: &batch };
        for (is_own, expected) in [(true, [10f32, 20.0]), (false, [1.0, 2.0])] {
            let value = Value::Output(0, OutputForm::Vector, is_own).of(&of).unwrap();
            assert_eq!(Vec::<f32>::try_from(value.view([-1])).unwrap(), expected);
        }
    }
}
