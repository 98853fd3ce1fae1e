//! Finds programs in which the samples of a batch change each other's values.

use dtrain_torch_shim::symbolic::is_symbolic;
use tch::{Device, Kind, TchError, Tensor};

use super::{OwnProgram, Source};
use crate::models::Port;
use crate::tasks::TaskError;
use crate::tensors::is_floating;

/// The samples of the comparison.
const SAMPLES: i64 = 3;

impl OwnProgram {
    /// Compares the values of samples in a batch with those of each alone, in training and in evaluation. A program that does not
    /// run on such values, or whose sizes are not known, is not judged.
    ///
    /// # Errors
    /// Values that differ.
    pub(super) fn check_apart(&self) -> Result<(), TaskError> {
        let Some(inputs) = self.examples()? else { return Ok(()) };
        for train in [true, false] {
            if tch::no_grad(|| self.mixes(&inputs, train))? {
                let reason = "the samples of a batch change each other's values, which would depend on the cut of a step; compute \
                              each sample by itself, without means or orders over the first dimension";
                return Err(self.error(reason));
            }
        }
        Ok(())
    }

    /// Returns whether a value has a derivative by the outputs of the network; None if that cannot be said.
    pub(super) fn has_gradient(&self, at: usize) -> Result<Option<bool>, TaskError> {
        let Some(inputs) = self.examples()? else { return Ok(None) };
        let differentiable = |(source, input): (&Source, Tensor)| match source {
            Source::Output { .. } if is_floating(input.kind()) => input.set_requires_grad(true),
            _ => input,
        };
        let inputs: Vec<Tensor> = self.sources.iter().zip(inputs).map(differentiable).collect();
        let found = self.exported.run(&inputs.iter().collect::<Vec<_>>(), true).ok();
        Ok(found.map(|values| values[at].requires_grad()))
    }

    fn mixes(&self, inputs: &[Tensor], train: bool) -> Result<bool, TchError> {
        let run = |inputs: Vec<Tensor>| self.exported.run(&inputs.iter().collect::<Vec<_>>(), train).ok();
        let part = |row: i64| -> Result<Vec<Tensor>, TchError> {
            inputs.iter().map(|input| input.f_narrow(0, row, 1)).collect()
        };
        let Some(whole) = run(inputs.iter().map(Tensor::shallow_clone).collect()) else { return Ok(false) };
        for row in 0..SAMPLES {
            let Some(alone) = run(part(row)?) else { return Ok(false) };
            for (whole, alone) in whole.iter().zip(&alone) {
                let is_of_samples =
                    whole.size().first() == Some(&SAMPLES) && alone.size().first() == Some(&1);
                if is_of_samples && !whole.f_narrow(0, row, 1)?.f_allclose(alone, 1e-3, 1e-5, true)? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Returns values for every input.
    fn examples(&self) -> Result<Option<Vec<Tensor>>, TchError> {
        if is_symbolic() {
            return Ok(None);
        }
        let inputs = self.exported.inputs().iter().zip(&self.shapes);
        let shape = |(port, of_source): (&Port, &Option<Vec<i64>>)| {
            of_source.clone().or_else(|| port.shape.iter().skip(1).copied().collect())
        };
        let Some(shapes) = inputs.map(shape).collect::<Option<Vec<Vec<i64>>>>() else { return Ok(None) };
        let value = |(port, shape): (&Port, Vec<i64>)| values(port.kind, &shape, self.device);
        self.exported.inputs().iter().zip(shapes).map(value).collect::<Result<_, _>>().map(Some)
    }
}

/// Returns numbers between 0.05 and 0.95, or the numbers 0 and 1.
fn values(kind: Kind, shape: &[i64], device: Device) -> Result<Tensor, TchError> {
    let shape: Vec<i64> = [SAMPLES].into_iter().chain(shape.iter().copied()).collect();
    let each = Tensor::f_arange(shape.iter().product::<i64>(), (Kind::Float, device))?;
    let each = each.f_mul_scalar(12.9898)?.f_sin()?.f_mul_scalar(0.45)?.f_add_scalar(0.5)?;
    let each = if is_floating(kind) { each } else { each.f_round()? };
    each.f_view(shape.as_slice())?.f_to_kind(kind)
}
