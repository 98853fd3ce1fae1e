//! Random operations of a program: those whose values have a dimension of the samples draw by sample, so that the
//! micro-batch does not matter.

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output, Whole};

use super::axis::Axis;
use super::graph::Program;
use super::modes::given;
use super::order::Orders;

/// Operations of `aten` for which the shim has one by sample, with their overloads.
const BY_SAMPLE: [(&str, &str); 17] = [
    ("dropout", ""),
    ("dropout_", ""),
    ("feature_dropout", ""),
    ("feature_dropout_", ""),
    ("bernoulli", ""),
    ("bernoulli", "p"),
    ("bernoulli_", "float"),
    ("uniform", ""),
    ("uniform_", ""),
    ("normal_functional", ""),
    ("normal_", ""),
    ("exponential_", ""),
    ("rand", ""),
    ("randn", ""),
    ("randperm", ""),
    ("rand_like", ""),
    ("randn_like", ""),
];

/// The random operations of a program.
#[derive(Debug, Default)]
pub(super) struct Draws {
    /// Whether there are any.
    pub any: bool,
    /// Those that draw by micro-batch, with their places in the model.
    pub by_micro_batch: Vec<String>,
}

/// An operation in place of a random one, and its arguments.
pub(super) type Replaced = (Operation, Vec<(String, Argument)>);

/// Returns the operation that draws by sample in place of a random one. None without such an operation, or if the samples of its values
/// are unknown. `number` is that of no other operation.
pub(super) fn by_sample(
    program: &Program,
    orders: &Orders,
    operation: &Operation,
    arguments: &[(String, Argument)],
    outputs: &[Output],
    number: u32,
) -> Option<Replaced> {
    let name = operation.name.strip_prefix("aten::")?;
    if !BY_SAMPLE.contains(&(name, operation.overload.as_str())) {
        return None;
    }
    let given = given(arguments, "input").or_else(|| given(arguments, "self"));
    let axis = match (given, outputs) {
        (Some(Argument::Value(Operand::Slot(slot))), _) => orders.axis(program, *slot),
        // A parameter or a buffer.
        (Some(Argument::Value(Operand::Fixed(number))), _) if !program.fixed[*number].is_complex() => {
            program.symbols.axis(&[])
        }
        (None, [Output::One(Some(slot))]) => orders.axis(program, *slot),
        _ => Axis::Unknown,
    };
    let dim = match axis {
        Axis::Samples(dim) | Axis::Rows(dim) => dim as i64,
        // With one large batch, too, all samples share what is drawn.
        Axis::Shared => -1,
        Axis::Unknown => return None,
    };
    // Each sample cannot have its own place in an order of samples.
    if name == "randperm" && dim >= 0 {
        return None;
    }
    // Of channels, the first two dimensions are drawn.
    if name.starts_with("feature_dropout") && dim > 1 {
        return None;
    }
    let mut arguments = arguments.to_vec();
    for (name, value) in [("number", i64::from(number)), ("dim", dim)] {
        arguments.push((name.to_owned(), Argument::Int(Whole::Number(value))));
    }
    let operation = Operation { name: format!("dtrain::{name}"), overload: operation.overload.clone() };
    Some((operation, arguments))
}
