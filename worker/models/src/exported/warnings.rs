//! Warnings about a program that runs as it is, although its author may have meant something else.

use std::collections::HashSet;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output, Whole};

use super::graph::{Action, Item, Program};
use super::modes;
use super::slots::{slot_of, slots};

/// Operations that fill a tensor with random numbers.
const DRAWS: [&str; 9] = [
    "rand",
    "rand_like",
    "randn",
    "randn_like",
    "randint",
    "randint_like",
    "uniform",
    "normal_functional",
    "bernoulli",
];
/// Operations that order numbers.
const ORDERS: [&str; 5] = ["argsort", "sort", "topk", "argmax", "argmin"];

/// Returns the warnings about a program for training, in sentences.
pub(super) fn of_training(program: &Program, has_evaluation: bool) -> Vec<String> {
    let (mut found, mut drawn) = (Vec::new(), HashSet::new());
    let (mut flagged, mut training) = (0, 0);
    visit(&program.items, &mut |item, operation, arguments, outputs| {
        if let Some(trains) = modes::trains(&operation.name, arguments) {
            flagged += 1;
            training += usize::from(trains);
        }
        let name = operation.name.trim_start_matches("aten::").trim_end_matches('_');
        if orders_batch(program, name, arguments, &drawn) {
            let sentence = format!(
                "{name}{} orders the samples of a batch: dtrain orders each micro-batch by itself, and a single sample is paired with \
                 itself; results depend on the micro-batch",
                item.place
            );
            if !found.contains(&sentence) {
                found.push(sentence);
            }
        }
        let mut sources = slots(arguments).filter(|slot| program.is_tensor[*slot]).peekable();
        if DRAWS.contains(&name) || sources.peek().is_some() && sources.all(|slot| drawn.contains(&slot)) {
            drawn.extend(outputs.iter().flat_map(Output::slots));
        }
    });
    // `dtrain import` writes both programs, and warns itself.
    if flagged > 0 && training == 0 && !has_evaluation {
        let sentence = "the program was exported in eval() mode: in training, too, dropout does nothing, and batch normalisations use \
                        their running statistics; export model.train(), or write the file by `dtrain import`";
        found.push(sentence.to_owned());
    }
    found
}

/// Calls `each` for every operation, in order.
fn visit(items: &[Item], each: &mut impl FnMut(&Item, &Operation, &[(String, Argument)], &[Output])) {
    for item in items {
        match &item.action {
            Action::Region { body, .. } => visit(body, each),
            Action::Call { operation, arguments, outputs, .. } => each(item, operation, arguments, outputs),
        }
    }
}

/// Returns whether an operation makes an order of the first dimension, which is the batch or has it folded in.
pub(super) fn orders_batch(
    program: &Program,
    name: &str,
    arguments: &[(String, Argument)],
    drawn: &HashSet<usize>,
) -> bool {
    if let "randperm" | "randint" = name {
        let most = modes::given(arguments, if name == "randperm" { "n" } else { "high" });
        return matches!(most, Some(Argument::Int(Whole::Slot(_))));
    }
    let source = match arguments.first() {
        Some((_, Argument::Value(operand @ Operand::Slot(_)))) => slot_of(operand),
        _ => None,
    };
    let shape = source.and_then(|slot| program.shapes.get(&slot)).map(Vec::as_slice).unwrap_or_default();
    if shape.first() != Some(&None) {
        return false;
    }
    let is_first = |dim: &Whole| [Whole::Number(0), Whole::Number(-(shape.len() as i64))].contains(dim);
    match (name, modes::given(arguments, "dims"), modes::given(arguments, "dim")) {
        ("flip" | "roll", Some(Argument::Ints(dims)), _) => dims.is_empty() || dims.iter().any(is_first),
        ("roll", None, _) => true,
        (_, _, dim) if ORDERS.contains(&name) && source.is_some_and(|slot| drawn.contains(&slot)) => {
            match dim {
                Some(Argument::Int(dim)) => is_first(dim),
                _ => shape.len() == 1 || name.starts_with("arg") && name != "argsort",
            }
        }
        _ => false,
    }
}
