//! Makes the steps of a run from a program's operations: prepared calls, which drop values after their last use,
//! batch normalisation as a layer, and segments that backward may recompute.

use std::collections::{BTreeSet, HashSet};

use dtrain_torch_shim::program::{Argument, Call, Operand, Operation, Output, Whole};
use dtrain_torch_shim::symbolic::stands_for_gpu;
use tch::{Device, Tensor};

use super::archive::Archive;
use super::draws::{self, Draws, Replaced};
use super::graph::{self, Action, Item, Mode, Processor, Program};
use super::modes;
use super::order::Orders;
use super::run::{Body, Runnable, Step};
use super::segments::{self, Part};
use super::slots::slots;
use crate::exported_error::{Problem, Result};
use crate::layers::{BatchNorm, BatchNormOptions};
use crate::registry::Registry;

/// The purpose of the steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Training, as the program is.
    Train,
    /// Evaluation, by a program that was exported for it.
    Evaluate,
    /// Evaluation by the training program: dropout and batch normalisation change their mode.
    EvaluateTraining,
}

struct Preparation<'a> {
    archive: &'a Archive,
    registry: &'a mut Registry,
    program: &'a Program,
    purpose: Purpose,
    /// The position of the last use of each value; None without use.
    last: Vec<Option<usize>>,
    /// The number of calls so far.
    position: usize,
    draws: Draws,
    orders: Orders,
    /// Whether evaluation leaves out the call at each position.
    dropped: Vec<bool>,
    /// Buffers that the steps change, and that keep their values because the steps evaluate.
    restored: BTreeSet<usize>,
}

/// Prepares the steps of a program.
pub(super) fn prepare(
    archive: &Archive,
    registry: &mut Registry,
    program: &Program,
    purpose: Purpose,
) -> Result<Runnable, crate::ModelError> {
    let dropped = dropped(program, purpose);
    let mut last = vec![None; program.is_tensor.len()];
    let mut position = 0;
    graph::for_calls(&program.items, &mut |_, arguments, _, _| {
        for slot in slots(arguments).filter(|_| !dropped[position]) {
            last[slot] = Some(position);
        }
        position += 1;
    });
    for slot in program.kept() {
        last[slot] = Some(usize::MAX);
    }
    let mut preparation = Preparation {
        archive,
        registry,
        program,
        purpose,
        last,
        position: 0,
        draws: Draws::default(),
        orders: Orders::of(program),
        dropped,
        restored: BTreeSet::new(),
    };
    let steps = preparation.top_level()?;
    let Preparation { draws, restored, .. } = preparation;
    let restored = match purpose {
        Purpose::Train => None,
        Purpose::Evaluate | Purpose::EvaluateTraining => Some(restored.into_iter().collect()),
    };
    Ok(Runnable::new(program, steps, draws, restored))
}

/// Returns for each call whether the steps leave it out: in evaluation it would only change buffers whose values nothing takes
/// later, and no kept call needs them.
fn dropped(program: &Program, purpose: Purpose) -> Vec<bool> {
    let mut calls = Vec::new();
    graph::for_calls(&program.items, &mut |_, arguments, outputs, writes| {
        let written: Vec<usize> = writes.iter().flat_map(|written| program.buffers(written)).collect();
        let read: Vec<usize> = program.read_buffers(arguments, outputs).collect();
        calls.push((program.only_updates(outputs, writes), written, read));
    });
    let mut dropped = vec![false; calls.len()];
    if purpose == Purpose::Train {
        return dropped;
    }
    let returned = program.returned.iter().filter_map(|returned| returned.operand).map(Operand::from);
    let mut live = HashSet::new();
    returned.for_each(|operand| live.extend(program.buffers(&operand)));
    for (position, (only_updates, written, read)) in calls.iter().enumerate().rev() {
        if *only_updates && !written.iter().any(|buffer| live.contains(buffer)) {
            dropped[position] = true;
        } else {
            live.extend(written.iter().chain(read).copied());
        }
    }
    dropped
}

impl Preparation<'_> {
    fn top_level(&mut self) -> Result<Vec<Step>, crate::ModelError> {
        let items = &self.program.items;
        let parts = match self.purpose {
            Purpose::Train => segments::find(self.program),
            Purpose::Evaluate | Purpose::EvaluateTraining => Vec::new(),
        };
        let (mut steps, mut next) = (Vec::new(), 0);
        for part in parts {
            steps.extend(self.steps(&items[next..part.range.start])?);
            next = part.range.end;
            steps.push(self.segment(part)?);
        }
        steps.extend(self.steps(&items[next..])?);
        Ok(steps)
    }

    fn segment(&mut self, part: Part) -> Result<Step, crate::ModelError> {
        let first = self.position;
        let steps = self.steps(&self.program.items[part.range.clone()])?;
        let calls = first..self.position;
        let is_dead = |slot: &&usize| self.last[**slot].is_some_and(|last| calls.contains(&last));
        let dead = part.inputs.iter().filter(is_dead).map(|slot| *slot as i64).collect();
        let parameters = part.fixed.iter().map(|number| self.program.fixed[*number].shallow_clone());
        let parameters = parameters.filter(|tensor| tensor.requires_grad()).collect();
        let Part { name, inputs, numbers, output, results, records, .. } = part;
        let values = self.program.is_tensor.len();
        let body = Body { steps, values, inputs, numbers, output, results, records };
        Ok(Step::Segment { segment: self.registry.segment_of(&name, body, parameters), dead })
    }

    fn steps(&mut self, items: &[Item]) -> Result<Vec<Step>, crate::ModelError> {
        let mut steps = Vec::with_capacity(items.len());
        for item in items {
            match &item.action {
                Action::Region { mode: Mode::Autocast(processor, _), body }
                    if *processor != self.processor() =>
                {
                    steps.extend(self.steps(body)?);
                }
                Action::Region { mode, body } => {
                    let (mode, device, body) = (*mode, self.registry.device(), self.steps(body)?);
                    steps.push(Step::Region { mode, device, body });
                }
                Action::Call { operation, arguments, outputs, writes } => {
                    if !self.dropped[self.position] {
                        steps.push(self.call(item, operation, arguments, outputs, writes)?);
                    }
                    self.position += 1;
                }
            }
        }
        Ok(steps)
    }

    /// Returns the processor of the model, or the one for which symbolic tensors stand.
    fn processor(&self) -> Processor {
        match self.registry.device() {
            Device::Cuda(_) => Processor::Gpu,
            _ if stands_for_gpu() => Processor::Gpu,
            _ => Processor::Cpu,
        }
    }

    fn call(
        &mut self,
        item: &Item,
        operation: &Operation,
        arguments: &[(String, Argument)],
        outputs: &[Output],
        writes: &[Operand],
    ) -> Result<Step, crate::ModelError> {
        let mut arguments = arguments.to_vec();
        if self.purpose == Purpose::EvaluateTraining {
            modes::evaluate(&operation.name, &mut arguments);
        }
        self.restored.extend(self.program.changed_buffers(operation, &arguments, writes));
        let by_sample = match self.draws(item, operation, &arguments)? {
            true => self.by_sample(item, operation, &arguments, outputs),
            false => None,
        };
        if self.purpose == Purpose::Train && modes::given(&arguments, "sparse") == Some(&Argument::Bool(true))
        {
            let reason = format!(
                "{}{} has sparse gradients, and dtrain reduces dense ones: build the embedding with sparse=False",
                full_name(operation),
                item.place
            );
            return Err(self.archive.error(Problem::Unfit(reason)).into());
        }
        let frees = self.frees(&arguments);
        if self.purpose == Purpose::Train && self.is_norm_of_batch(operation, &arguments) {
            return self.norm(item, &arguments, outputs, frees);
        }
        if operation.name == "aten::batch_norm" {
            // An export on a CPU states that there is no cuDNN.
            arguments.retain(|(name, _)| name != "cudnn_enabled");
            arguments.push(("cudnn_enabled".to_owned(), Argument::Bool(true)));
        }
        let operation = match &by_sample {
            Some((by_sample, given)) => {
                arguments.clone_from(given);
                by_sample
            }
            None => operation,
        };
        let used: Vec<Output> = outputs.iter().map(|output| self.used(output)).collect();
        let (fixed, device) = (&self.program.fixed, self.registry.device());
        let call = Call::new(operation, &arguments, fixed, device, &used, &frees);
        let call = call.map_err(|source| {
            let (operation, place) = (full_name(operation), item.place.to_string());
            self.archive.error(Problem::Operation { operation, place, source })
        })?;
        let updates = self.program.only_updates(outputs, writes);
        Ok(Step::Call { call, updates, name: full_name(operation), place: item.place.clone() })
    }

    /// Returns the values whose last use is the present call, each once.
    fn frees(&self, arguments: &[(String, Argument)]) -> Vec<i64> {
        let mut frees: Vec<i64> = Vec::new();
        for slot in slots(arguments) {
            if self.last[slot] == Some(self.position) && !frees.contains(&(slot as i64)) {
                frees.push(slot as i64);
            }
        }
        frees
    }

    fn used(&self, output: &Output) -> Output {
        let used = |slot: &Option<usize>| slot.filter(|slot| self.last[*slot].is_some());
        match output {
            Output::One(slot) => Output::One(used(slot)),
            Output::Many(slots) => Output::Many(slots.iter().map(used).collect()),
        }
    }

    /// Returns whether the call draws random numbers. Without a program for evaluation, that is an error there.
    fn draws(&self, item: &Item, operation: &Operation, arguments: &[(String, Argument)]) -> Result<bool> {
        let traits = operation.traits("").map_err(|source| {
            let (operation, place) = (full_name(operation), String::new());
            self.archive.error(Problem::Operation { operation, place, source })
        })?;
        if !traits.draws || modes::is_deterministic(&operation.name, arguments) {
            return Ok(false);
        }
        if self.purpose == Purpose::EvaluateTraining {
            let reason = format!(
                "the file has no program for evaluation, and {}{} would draw random numbers in it: write the file by `dtrain \
                 import`, which exports both",
                full_name(operation),
                item.place
            );
            return Err(self.archive.error(Problem::Unfit(reason)));
        }
        Ok(true)
    }

    /// Returns the operation by sample in place of a random one, or notes that it draws by micro-batch.
    fn by_sample(
        &mut self,
        item: &Item,
        operation: &Operation,
        arguments: &[(String, Argument)],
        outputs: &[Output],
    ) -> Option<Replaced> {
        self.draws.any = true;
        let number = self.registry.take_draw();
        let replaced = draws::by_sample(self.program, &self.orders, operation, arguments, outputs, number);
        if replaced.is_none() {
            self.draws.by_micro_batch.push(format!(
                "{}{}",
                operation.name.trim_start_matches("aten::"),
                item.place
            ));
        }
        replaced
    }

    fn norm(
        &mut self,
        item: &Item,
        arguments: &[(String, Argument)],
        outputs: &[Output],
        frees: Vec<i64>,
    ) -> Result<Step, crate::ModelError> {
        let given = |wanted: &str| modes::given(arguments, wanted);
        let fixed = |name: &str| match given(name) {
            Some(Argument::Value(operand)) => self.fixed(*operand).map(Tensor::shallow_clone),
            _ => None,
        };
        for name in ["weight", "bias", "running_mean", "running_var"] {
            if matches!(given(name), Some(Argument::Value(Operand::Slot(_)))) && fixed(name).is_none() {
                let reason = format!(
                    "the {name} of a batch normalisation{} is computed: use a parameter or buffer of the module",
                    item.place
                );
                return Err(self.archive.error(Problem::Unfit(reason)).into());
            }
        }
        let real = |name: &str, default: f64| match given(name) {
            Some(Argument::Float(real)) => Ok(*real),
            Some(Argument::Int(Whole::Number(number))) => Ok(*number as f64),
            None | Some(Argument::None) => Ok(default),
            Some(_) => {
                let reason =
                    format!("the {name} of a batch normalisation{} is computed: use a constant", item.place);
                Err(self.archive.error(Problem::Unfit(reason)))
            }
        };
        let input = match given("input") {
            Some(Argument::Value(Operand::Slot(slot))) => *slot,
            _ => {
                let reason = format!("a batch normalisation{} has no input", item.place);
                return Err(self.archive.error(Problem::Graph(reason)).into());
            }
        };
        let options = BatchNormOptions { momentum: real("momentum", 0.1)?, eps: real("eps", 1e-5)? };
        let running = fixed("running_mean").zip(fixed("running_var"));
        if self.registry.is_batch_frozen && running.is_none() {
            let reason = format!("a batch normalisation{} has no running statistics to freeze", item.place);
            return Err(self.archive.error(Problem::Unfit(reason)).into());
        }
        let name = item.modules.last().map_or("", |(path, _)| path.as_str());
        let norm =
            BatchNorm::of_tensors(self.registry, name, [fixed("weight"), fixed("bias")], running, options);
        let lengths = self.program.shapes.get(&input).map(Vec::as_slice).unwrap_or_default();
        let is_small = lengths.iter().skip(2).all(|length| *length == Some(1));
        let result = |number: usize| match outputs.get(number).map(|output| self.used(output)) {
            Some(Output::One(slot)) => slot,
            _ => None,
        };
        let output = result(0);
        // A program without in-place operations returns the statistics too.
        let statistics = [(3, fixed("running_mean")), (4, fixed("running_var"))];
        let statistics =
            statistics.into_iter().filter_map(|(number, tensor)| Some((result(number)?, tensor?)));
        let statistics = statistics.collect();
        self.registry.has_small_norms |= is_small;
        Ok(Step::Norm { norm, input, output, statistics, frees })
    }

    /// Returns the parameter, buffer or constant that an operand is; a changed buffer may have a copy.
    fn fixed(&self, operand: Operand) -> Option<&Tensor> {
        let number = match operand {
            Operand::Fixed(number) => number,
            Operand::Slot(slot) => self.program.copies.iter().find(|(copy, _)| *copy == slot)?.1,
            Operand::None => return None,
        };
        self.program.fixed.get(number)
    }

    /// Returns whether a call is a batch normalisation in training of the batch, not of a weight.
    fn is_norm_of_batch(&self, operation: &Operation, arguments: &[(String, Argument)]) -> bool {
        if !modes::is_training_norm(&operation.name, arguments) {
            return false;
        }
        let shape_of = |slot: &usize| self.program.shapes.get(slot).and_then(|shape| shape.first());
        let is_fixed = |length: Option<&Option<i64>>| matches!(length, Some(Some(_)));
        let has_dynamic_batch = self.program.inputs.iter().any(|input| !is_fixed(shape_of(&input.slot)));
        match modes::given(arguments, "input") {
            Some(Argument::Value(Operand::Slot(slot))) => {
                modes::has_statistics(arguments) || !has_dynamic_batch || !is_fixed(shape_of(slot))
            }
            _ => false,
        }
    }
}

fn full_name(operation: &Operation) -> String {
    match operation.overload.as_str() {
        "" => operation.name.clone(),
        overload => format!("{}.{overload}", operation.name),
    }
}
