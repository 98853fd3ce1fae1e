//! Finds programs whose batch normalisations see the rows of a sample apart from each other.

use dtrain_torch_shim::rng;
use tch::{Device, Kind, TchError, Tensor};

use super::{Exported, Port};
use crate::batch_rows::check_order;
use crate::error::ModelError;
use crate::layers::copy_of;
use crate::registry::Registry;

impl Exported {
    /// Checks that groups of samples are possible: runs the training program twice, in which the last sample differs. Changes
    /// no tensor and no generator. A program that does not run on such values is not judged.
    ///
    /// # Errors
    /// A batch normalisation with rows that are not equally many for each sample, or not together.
    pub fn check_rows(&self, registry: &Registry) -> Result<(), ModelError> {
        let (samples, device) = (self.min_micro_batch().max(2), registry.device());
        let input = |port: &Port, changed| input(port, samples as i64, device, changed).transpose();
        let inputs = |changed| self.inputs.iter().map(|port| input(port, changed)).collect::<Option<_>>();
        let (Some(first), Some(second)) = (inputs(false), inputs(true)) else { return Ok(()) };
        let inputs: [Result<Vec<Tensor>, TchError>; 2] = [first, second];
        let buffers: Vec<&Tensor> = registry.buffers().map(|entry| entry.tensor()).collect();
        let before = buffers.iter().map(|buffer| copy_of(buffer)).collect::<Result<Vec<_>, _>>()?;
        let generator = rng::state(Device::Cpu)?;
        let pass = |inputs: Result<Vec<Tensor>, TchError>| {
            let inputs = inputs?;
            tch::manual_seed(0);
            registry.groups().begin_recording();
            let outcome = tch::no_grad(|| self.run(&inputs.iter().collect::<Vec<_>>(), true));
            let recorded = registry.groups().end_recording();
            for (buffer, before) in buffers.iter().zip(&before) {
                tch::no_grad(|| buffer.shallow_clone().f_copy_(before))?;
            }
            Ok::<_, ModelError>(outcome.is_ok().then_some(recorded))
        };
        let [first, second] = inputs.map(pass);
        rng::set_state(Device::Cpu, &generator)?;
        match (first?, second?) {
            (Some(first), Some(second)) => check_order(&[first, second], samples),
            _ => Ok(()),
        }
    }
}

/// Returns values for an input; None if another length than that of the batch is unknown.
fn input(port: &Port, samples: i64, device: Device, changed: bool) -> Result<Option<Tensor>, TchError> {
    let mut shape = port.shape.clone();
    let has_batch = shape.first().is_some_and(Option::is_none);
    if has_batch {
        shape[0] = Some(samples);
    }
    let Some(shape) = shape.into_iter().collect::<Option<Vec<i64>>>() else { return Ok(None) };
    let is_real = matches!(port.kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
    let values = match is_real {
        true => Tensor::f_arange(shape.iter().product::<i64>(), (Kind::Float, device))?
            .f_sin()?
            .f_view(shape.as_slice())?,
        false => Tensor::f_zeros(shape.as_slice(), (Kind::Float, device))?,
    };
    if changed && has_batch {
        // Other values, and 1 for whole numbers.
        let mut last = values.f_narrow(0, samples - 1, 1)?;
        let _ = last.f_mul_scalar_(-0.7)?.f_add_scalar_(1.0)?;
    }
    Ok(Some(values.f_to_kind(port.kind)?))
}
