//! The task of a check: a program on given inputs, whose loss is the sum of its outputs times given cotangents. So
//! its gradients are those of any loss with these derivatives.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use dtrain_recipe::Recipe;
use dtrain_torch_shim::rng::{self, BySample};
use tch::{Device, Kind, TchError, Tensor};

use super::network::Program;
use super::{Batch, Facts, Loss, Mode, Task, TaskError};
use crate::data::{Column, Dataset, Field, SampleError, SampleRng};
use crate::models::{Exported, Registry};

/// Torch's seed of a part is this plus the number of its first sample.
const SEED: i64 = 1000;

/// The field with the numbers of a batch's samples.
const ROWS: &str = "rows";

/// The outputs of the passes so far, detached.
pub(crate) type Passes = Rc<RefCell<Vec<Vec<Tensor>>>>;

/// Values for all samples of a check.
pub(crate) struct Given {
    /// In the order of the program's inputs.
    pub(crate) inputs: Vec<Tensor>,
    /// In the order of the results of training; None for those without gradient.
    pub(crate) cotangents: Vec<Option<Tensor>>,
    pub(crate) samples: usize,
}

/// A program with its inputs.
pub(crate) struct Replay {
    program: Program,
    given: Given,
    passes: Passes,
    facts: Facts,
}

impl Replay {
    /// Loads the program of the recipe's `model.file`, for which `given` reads the inputs.
    pub(crate) fn load<E: From<TaskError>>(
        recipe: &Recipe,
        registry: &mut Registry,
        given: impl FnOnce(&Exported) -> Result<Given, E>,
    ) -> Result<Self, E> {
        let program = Program::load(recipe, registry)?;
        let given = given(program.exported())?;
        let none = || Arc::new(NoData);
        let facts = Facts::new(none(), none(), "given inputs");
        Ok(Self { program, given, passes: Passes::default(), facts })
    }

    pub(crate) fn exported(&self) -> &Exported {
        self.program.exported()
    }

    /// Returns the handle with the outputs of all passes, whose reader takes them.
    pub(crate) fn passes(&self) -> Passes {
        self.passes.clone()
    }

    /// Returns these samples as a batch.
    pub(crate) fn batch_of(samples: &Range<usize>) -> Result<Batch, TchError> {
        let rows: Vec<i64> = samples.clone().map(|row| row as i64).collect();
        Ok(Batch {
            fields: vec![(ROWS.into(), Tensor::f_from_slice(&rows)?)],
            weights: Tensor::f_ones([samples.len() as i64], (Kind::Float, Device::Cpu))?,
            weight: samples.len() as f64,
            longest: None,
            blank: false,
            outputs: None,
        })
    }

    /// Returns the derivative-weighted sum of an output of the samples `rows`.
    fn term(&self, output: &Tensor, cotangent: &Tensor, rows: &Range<i64>) -> Result<Tensor, TchError> {
        let output = output.f_to_kind(Kind::Float)?;
        if output.dim() == 0 {
            return output.f_mul(cotangent)?.f_mul_scalar((rows.end - rows.start) as f64);
        }
        if cotangent.dim() != output.dim() {
            let (given, has) = (cotangent.size(), output.size());
            return Err(TchError::Shape(format!(
                "a cotangent has the shape {given:?}, and the output {has:?}"
            )));
        }
        // A sample may have several rows, such as the frames of a video.
        let each = cotangent.size()[0] / (self.given.samples as i64).max(1);
        let part = cotangent.f_narrow(0, each * rows.start, each * (rows.end - rows.start))?;
        output.f_mul(&part)?.f_sum(Kind::Float)
    }
}

impl Task for Replay {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let numbers = batch.field(ROWS)?;
        let count = batch.samples() as i64;
        let first = numbers.f_int64_value(&[0])?;
        let inputs = self.given.inputs.iter().map(|input| input.f_narrow(0, first, count));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        // PyTorch's own generator, as in the reference.
        let draws = BySample::off().and_then(|draws| rng::seed((SEED + first) as u64).map(|()| draws));
        let _draws = draws.map_err(|error| TchError::Torch(error.message))?;
        let outputs = self.exported().run(&inputs.iter().collect::<Vec<_>>(), mode == Mode::Train)?;
        let mut sum = Tensor::f_zeros([] as [i64; 0], (Kind::Float, Device::Cpu))?;
        if mode == Mode::Train {
            for (output, cotangent) in outputs.iter().zip(&self.given.cotangents) {
                if let Some(cotangent) = cotangent.as_ref().filter(|_| output.requires_grad()) {
                    sum = sum.f_add(&self.term(output, cotangent, &(first..first + count))?)?;
                }
            }
        }
        let detached = outputs.iter().map(Tensor::f_detach).collect::<Result<_, _>>()?;
        self.passes.borrow_mut().push(detached);
        let none = Tensor::f_zeros([0], (Kind::Double, Device::Cpu))?;
        Ok(Loss { sum, weight: batch.weights.f_sum(Kind::Double)?, sums: none })
    }
}

/// The data of a task that has its samples itself.
struct NoData;

impl Dataset for NoData {
    fn len(&self) -> usize {
        0
    }

    fn fields(&self) -> &[Field] {
        &[]
    }

    fn load(&self, _: usize, _: Option<&mut SampleRng>, _: &mut [Column]) -> Result<(), SampleError> {
        Ok(())
    }

    fn describe(&self, _: usize) -> String {
        String::new()
    }
}
