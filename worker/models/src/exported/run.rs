//! Runs the steps of a program.

use std::sync::{Arc, Mutex};

use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::grad_mode::GradMode;
use dtrain_torch_shim::program::{Call, Frame};
use tch::{Device, TchError, Tensor};

use super::draws::Draws;
use super::graph::{Meaning, Mode, Program};
use super::module_spans::ModuleSpans;
use super::place::Place;
use crate::error::ModelError;
use crate::layers::{BatchNorm, copy_of};
use crate::lock;
use crate::recompute::{Segment, is_recomputing};

pub(super) enum Step {
    /// A call; with `updates` it changes a buffer, so recomputing leaves it out.
    Call { call: Call, updates: bool, name: String, place: Place },
    /// Batch normalisation in training. `statistics` are values that stand for the running ones after it.
    Norm {
        norm: BatchNorm,
        input: usize,
        output: Option<usize>,
        statistics: Vec<(usize, Tensor)>,
        frees: Vec<i64>,
    },
    /// Steps under a setting of the thread.
    Region { mode: Mode, device: Device, body: Vec<Step> },
    /// Steps that backward may recompute. `dead` are values from outside that nothing after the segment uses.
    Segment { segment: Segment<Body>, dead: Vec<i64> },
}

/// The steps of a segment.
pub(super) struct Body {
    pub steps: Vec<Step>,
    /// The number of values of the whole program.
    pub values: usize,
    /// The tensors from outside.
    pub inputs: Vec<usize>,
    /// Values from outside that are not tensors.
    pub numbers: Vec<i64>,
    /// The one tensor that later steps use.
    pub output: usize,
    /// Other values that later steps use. Only the first pass gives them.
    pub results: Vec<i64>,
    /// Whether the first pass records gradients, too: an operation chooses its kernel by whether an argument needs one.
    pub records: bool,
}

/// A program that can be run.
pub(super) struct Runnable {
    values: usize,
    inputs: Vec<usize>,
    outputs: Vec<Meaning>,
    fixed: Vec<Tensor>,
    mutations: Vec<(usize, Meaning)>,
    copies: Vec<(usize, usize)>,
    /// Buffers whose values a run does not keep.
    restored: Vec<usize>,
    steps: Vec<Step>,
    pub draws: Draws,
}

impl Runnable {
    /// `restored` are the buffers that the steps change although they evaluate; None for training.
    pub(super) fn new(
        program: &Program,
        steps: Vec<Step>,
        draws: Draws,
        restored: Option<Vec<usize>>,
    ) -> Self {
        Self {
            values: program.is_tensor.len(),
            inputs: program.inputs.iter().map(|input| input.slot).collect(),
            outputs: program.returned.iter().filter_map(|returned| returned.operand).collect(),
            fixed: program.fixed.iter().map(Tensor::shallow_clone).collect(),
            mutations: if restored.is_none() { program.mutations.clone() } else { Vec::new() },
            copies: program.copies.clone(),
            restored: restored.unwrap_or_default(),
            steps,
            draws,
        }
    }

    /// Runs the program. Returns its results that are tensors. Evaluation leaves every buffer as it was, also if it
    /// fails.
    pub(super) fn run(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ModelError> {
        if self.restored.is_empty() {
            return self.compute(inputs);
        }
        let before = self.restored.iter().map(|buffer| copy_of(&self.fixed[*buffer]));
        let before = before.collect::<Result<Vec<_>, _>>()?;
        // A result may be a view of a buffer.
        let outputs = self.compute(inputs).and_then(|outputs| outputs.iter().map(copy_of).collect());
        for (buffer, before) in self.restored.iter().zip(before) {
            tch::no_grad(|| self.fixed[*buffer].shallow_clone().f_copy_(&before))?;
        }
        outputs
    }

    fn compute(&self, inputs: &[&Tensor]) -> Result<Vec<Tensor>, ModelError> {
        let mut frame = Frame::new(self.values)?;
        for (&slot, tensor) in self.inputs.iter().zip(inputs) {
            frame.set(slot, tensor)?;
        }
        for &(slot, buffer) in &self.copies {
            // Backward needs the values of before.
            frame.set(slot, &copy_of(&self.fixed[buffer])?)?;
        }
        run(&self.steps, &mut frame)?;
        for (buffer, value) in &self.mutations {
            let buffer = &self.fixed[*buffer];
            let value = self.value(&frame, value)?;
            if !buffer.is_set_to(&value) {
                tch::no_grad(|| buffer.shallow_clone().f_copy_(&value))?;
            }
        }
        self.outputs.iter().map(|operand| self.value(&frame, operand)).collect()
    }

    fn value(&self, frame: &Frame, operand: &Meaning) -> Result<Tensor, ModelError> {
        Ok(match operand {
            Meaning::Slot(slot) => frame.get(*slot)?,
            Meaning::Fixed(number) => self.fixed[*number].shallow_clone(),
        })
    }
}

impl Body {
    /// Computes the segment of these inputs. `outside` has the values that are not tensors, and gets those that later
    /// steps use.
    fn compute(&self, outside: &Mutex<Frame>, inputs: &[&Tensor]) -> Result<Tensor, ModelError> {
        let mut frame = Frame::new(self.values)?;
        let mut outside = lock(outside);
        frame.copy_from(&outside, &self.numbers)?;
        for (&slot, tensor) in self.inputs.iter().zip(inputs) {
            frame.set(slot, tensor)?;
        }
        // Drops what the first pass records: the output alone stays.
        let records = self.records && !is_recomputing();
        let _mode = records.then(|| GradMode::set(true));
        run(&self.steps, &mut frame)?;
        if !is_recomputing() {
            outside.copy_from(&frame, &self.results)?;
        }
        let output = frame.get(self.output)?;
        Ok(if records { output.f_detach()? } else { output })
    }
}

fn run(steps: &[Step], frame: &mut Frame) -> Result<(), ModelError> {
    let mut modules = ModuleSpans::default();
    for step in steps {
        match step {
            Step::Call { updates: true, .. } if is_recomputing() => {}
            Step::Call { call, name, place, .. } => {
                modules.enter(place.module());
                call.run(frame).map_err(|source| {
                    // tch's errors are texts, whose words tell the kind.
                    let text = format!("{name}{place}: {}", source.message);
                    match name == "aten::view" && source.message.contains("view size is not compatible") {
                        true => ModelError::View(text),
                        false => TchError::Torch(text).into(),
                    }
                })?;
            }
            Step::Norm { norm, input, output, statistics, frees } => {
                let x = frame.get(*input)?;
                frame.clear(frees)?;
                let y = norm.forward(&x, true)?;
                if let Some(slot) = output {
                    frame.set(*slot, &y)?;
                }
                for (slot, tensor) in statistics {
                    frame.set(*slot, tensor)?;
                }
            }
            Step::Region { mode, device, body } => {
                modules.leave();
                under(*mode, *device, || run(body, frame))?;
            }
            Step::Segment { segment, dead } => {
                modules.leave();
                run_segment(segment, dead, frame)?;
            }
        }
    }
    Ok(())
}

fn run_segment(segment: &Segment<Body>, dead: &[i64], frame: &mut Frame) -> Result<(), ModelError> {
    let body = segment.layers();
    let inputs = body.inputs.iter().map(|slot| frame.get(*slot)).collect::<Result<Vec<_>, _>>()?;
    let borrowed: Vec<&Tensor> = inputs.iter().collect();
    if !segment.is_recomputed(&borrowed) {
        drop(inputs);
        // The steps drop the values themselves.
        return run(&body.steps, frame);
    }
    let mut outside = Frame::new(body.values)?;
    outside.copy_from(frame, &body.numbers)?;
    let outside = Arc::new(Mutex::new(outside));
    let given = outside.clone();
    let (output, results) = (body.output, body.results.clone());
    // The segment takes its layers itself.
    drop(body);
    let result = segment.run_slice(&borrowed, move |body, inputs| body.compute(&outside, inputs))?;
    frame.copy_from(&lock(&given), &results)?;
    frame.clear(dead)?;
    frame.set(output, &result)?;
    Ok(())
}

/// Runs steps under a setting of the thread.
fn under(
    mode: Mode,
    device: Device,
    steps: impl FnOnce() -> Result<(), ModelError>,
) -> Result<(), ModelError> {
    match mode {
        Mode::Gradients(enabled) => {
            let _region = GradMode::set(enabled);
            steps()
        }
        Mode::Autocast(_, kind) => {
            let _region = match kind {
                Some(kind) => Autocast::enter(device, kind)?,
                None => Autocast::disable(device)?,
            };
            steps()
        }
    }
}
