//! Reductions (`ReduceOp`): sums and norms of whole small tensors; those of networks are zero.

use std::sync::Arc;

use super::elementwise::DIMENSIONS;
use super::values::Type;
use super::{Computation, Program, inside, is_large, split};
use crate::check::Use;
use crate::memory::View;

/// The bytes of the configuration and of the two offset calculators.
const CONFIGURATION: usize = 16 * 4;
const INPUT: usize = 4 + DIMENSIONS * 12 + DIMENSIONS * 4;
const OUTPUT: usize = 4 + DIMENSIONS * 12 + DIMENSIONS * 2 * 4;

/// Kernels of one parameter: operation, identity, configuration, calculators, source, destination.
pub(super) fn program(native: &str) -> Option<Program> {
    let (_, rest) = native.split_once("ReduceOp")?;
    let parts = split(inside(rest, '<')?);
    let [input, operation, _, output, ..] = parts[..] else { return None };
    let (input, output) = (Type::named(input)?, Type::named(output)?);
    let is_norm = operation.contains("NormTwoOps");
    let identity = if operation.contains("sum_functor") {
        input.computed()
    } else if is_norm {
        Type::named(split(inside(operation, '<')?).get(1)?)?
    } else {
        return None;
    };
    Some(Box::new(move |args| {
        let parameter = args.parameter(0);
        let configuration = (2 * identity.size()).next_multiple_of(4);
        let number = |index: usize| i32::from_ne_bytes(parameter.read(configuration + 4 * index));
        let pointers = (configuration + CONFIGURATION + INPUT + OUTPUT).next_multiple_of(8);
        let pointer = |index: usize| usize::from_ne_bytes(parameter.read(pointers + 8 * index));
        let (unit, inputs, outputs) = (number(0), number(1), number(2));
        let (from, to) = (pointer(0), pointer(1));
        if !(0..=16).contains(&unit) || inputs <= 0 || outputs <= 0 {
            return Err(format!("unknown layout: unit {unit}, {inputs} inputs, {outputs} outputs"));
        }
        let (inputs, outputs) = (inputs as usize, outputs as usize);
        let target =
            View::of_device(to, outputs * output.size()).ok_or("the result is not in device memory")?;
        let uses = vec![Use::write(to, target.size), Use::read(from, 1)];
        // Sums of integers are zero: trainers compare fingerprints of tensors whose values are not computed.
        let is_zero = outputs != 1 || is_large(inputs) || input == Type::I64 || is_norm && input != Type::F64;
        if is_zero {
            return Ok(Computation { uses, work: Some(Arc::new(move || target.fill(0))) });
        }
        let source =
            View::of_device(from, inputs * input.size()).ok_or("the tensor is not in device memory")?;
        let work = move || {
            let values = (0..inputs).map(|i| input.load(source, i * input.size()));
            let total = if is_norm { values.map(|x| x * x).sum::<f64>().sqrt() } else { values.sum() };
            output.store(target, 0, total);
        };
        Ok(Computation { uses, work: Some(Arc::new(work)) })
    }))
}
