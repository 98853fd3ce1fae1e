//! A user's own figure.

use dtrain_recipe::figures::Program as Settings;
use tch::{Kind, Tensor};

use super::{Given, OwnProgram, counted, fields};
use crate::models::Port;
use crate::tasks::network::{OutputAt, Ports};
use crate::tasks::samples::Sets;
use crate::tasks::{Batch, Mode, TaskError};
use crate::tensors::is_floating;

/// The program of a figure, bound to a network and its data.
pub(in crate::tasks) struct OwnFigure {
    program: OwnProgram,
    /// The number of the main output.
    main: usize,
    /// The sums: of all values, or with a weight for each sample.
    sums: usize,
    /// Whether the figure is a mean over the samples.
    is_mean: bool,
}

impl OwnFigure {
    /// Loads and binds the program of a figure; None in a prediction, which has no figures.
    ///
    /// # Errors
    /// As [`OwnProgram::load`] and [`OwnProgram::bind`], and outputs that are not numbers of each sample.
    pub(in crate::tasks) fn of(
        key: &str,
        settings: &Settings,
        ports: &Ports<'_>,
        sets: &Sets,
    ) -> Result<Option<Self>, TaskError> {
        let Some(file) = settings.program.as_ref().filter(|_| !sets.predicts) else { return Ok(None) };
        let program = OwnProgram::load(key, file, ports.device)?;
        let program = program.bind(ports, sets.train.fields(), &settings.inputs)?;
        let (sums, is_mean) = sums(program.ports(Mode::Evaluate)).map_err(|reason| program.error(reason))?;
        program.check_sizes()?;
        let main = ports.main_at(Mode::Evaluate);
        Ok(Some(Self { program, main, sums, is_mean }))
    }

    /// Returns the names of the outputs of the network that it takes.
    pub(in crate::tasks) fn outputs(&self) -> Vec<&str> {
        self.program.outputs()
    }

    pub(in crate::tasks) fn sums(&self) -> usize {
        self.sums
    }

    /// Returns the number of the main output.
    pub(in crate::tasks) fn main(&self) -> usize {
        self.main
    }

    /// Returns the sums of a batch, float64. Samples of weight 0 add nothing.
    pub(in crate::tasks) fn add(&self, output: OutputAt<'_>, batch: &Batch) -> Result<Tensor, TaskError> {
        let device = batch.weights.device();
        if batch.weight == 0.0 {
            return Ok(Tensor::f_zeros([self.sums as i64], (Kind::Double, device))?);
        }
        let detached = |at: usize| Ok(output(at)?.f_detach()?);
        let given = Given { output: &detached, field: &|name| fields(batch, name), mode: Mode::Evaluate };
        let rows = counted(batch)?;
        let values = tch::no_grad(|| self.program.run(&given, rows.as_ref(), false))?;
        let value = values[0].f_to_kind(Kind::Double)?;
        let sums = value.f_sum_dim_intlist([0i64].as_slice(), false, Kind::Double)?.f_reshape([-1])?;
        match self.is_mean {
            true => Ok(Tensor::f_cat(&[&sums, &batch.weights.f_sum(Kind::Double)?.f_reshape([1])?], 0)?),
            false => Ok(sums),
        }
    }
}

/// Returns the number of sums, and whether the figure is a mean, by the outputs for N samples.
fn sums(ports: &[Port]) -> Result<(usize, bool), String> {
    let wanted = "return one output of floating-point numbers: N for a mean over the samples, N x 2 for a numerator and a divisor, or \
                  N x 2 x K for the mean of K quotients";
    match ports {
        [port] if is_floating(port.kind) => match port.shape[..] {
            [None] | [None, Some(1)] => Ok((2, true)),
            [None, Some(2)] => Ok((2, false)),
            [None, Some(2), Some(count)] => Ok((2 * count as usize, false)),
            [] | [Some(1)] => {
                Err(format!("it returns `{}`, which is one number for the whole batch; {wanted}", port.name))
            }
            _ => Err(format!("it returns `{}` of another shape; {wanted}", port.name)),
        },
        [port] => Err(format!("it returns `{}` of whole numbers; {wanted}", port.name)),
        _ => Err(format!("it returns {} outputs; {wanted}", ports.len())),
    }
}
