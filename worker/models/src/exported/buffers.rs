//! The buffers that a program changes.

use std::collections::BTreeMap;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output, Whole};
use tch::{Kind, Tensor};

use super::dtype::is_whole;
use super::graph::{Meaning, Program, for_calls};
use super::modes;

/// A buffer that the program for training changes.
#[derive(Debug)]
pub struct WrittenBuffer {
    /// Its name in Python's module, also if it is not persistent.
    pub name: String,
    /// The tensor that the program changes, not a copy.
    pub tensor: Tensor,
    /// Whether it is a running statistic of a normalisation, or a whole number to which the program only adds a
    /// constant, such as `num_batches_tracked`. A step of several micro-batches keeps the meaning of these.
    pub is_usual: bool,
}

/// Returns the buffers that a program changes.
pub(super) fn written(program: &Program) -> Vec<WrittenBuffer> {
    let mut found: BTreeMap<usize, bool> = BTreeMap::new();
    let mut note = |buffer: usize, is_usual: bool| *found.entry(buffer).or_insert(true) &= is_usual;
    let mut sums: Vec<(usize, usize)> = Vec::new();
    let mut statistics: Vec<usize> = Vec::new();
    for_calls(&program.items, &mut |operation, arguments, outputs, writes| {
        let is_norm = modes::is_training_norm(&operation.name, arguments)
            || modes::moved_statistics(&operation.name, arguments).next().is_some();
        let counted = counted(program, operation, arguments);
        for buffer in program.changed_buffers(operation, arguments, writes) {
            note(buffer, is_norm || counted == Some(Operand::Fixed(buffer)));
        }
        let results: Vec<usize> = outputs.iter().flat_map(Output::slots).collect();
        if let (Some(Operand::Slot(of)), [sum]) = (counted, results.as_slice()) {
            sums.push((*sum, of));
        }
        if is_norm {
            statistics.extend(results);
        }
    });
    for (buffer, value) in &program.mutations {
        let Meaning::Slot(value) = value else {
            note(*buffer, false);
            continue;
        };
        let copy = program.copies.iter().find(|(_, of)| of == buffer).map(|(copy, _)| *copy);
        let is_counter = is_counter(&program.fixed[*buffer])
            && sums.iter().any(|sum| Some(*sum) == copy.map(|copy| (*value, copy)));
        note(*buffer, is_counter || statistics.contains(value));
    }
    let found = found.into_iter().map(|(buffer, is_usual)| WrittenBuffer {
        name: program.about[buffer].0.clone(),
        tensor: program.fixed[buffer].shallow_clone(),
        is_usual,
    });
    found.collect()
}

/// Returns the value or whole buffer to which a call only adds a constant.
fn counted(program: &Program, operation: &Operation, arguments: &[(String, Argument)]) -> Option<Operand> {
    let is_sum = ["aten::add", "aten::add_"].contains(&operation.name.as_str());
    let is_constant = matches!(modes::given(arguments, "other"), Some(Argument::Int(Whole::Number(_))));
    match modes::given(arguments, "self") {
        Some(Argument::Value(Operand::Fixed(number))) if !is_counter(&program.fixed[*number]) => None,
        Some(Argument::Value(operand)) if is_sum && is_constant => Some(*operand),
        _ => None,
    }
}

fn is_counter(tensor: &Tensor) -> bool {
    tensor.kind() != Kind::Bool && is_whole(tensor.kind())
}
