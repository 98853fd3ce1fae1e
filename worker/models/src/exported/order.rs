//! Whether a value has the order of the inputs' samples, and whether the rows of a sample, if it has several, are
//! neighbours: `[N, T, ...]` folded to `[N * T, ...]` and not `[T, N, ...]` to `[T * N, ...]`.

use std::collections::HashSet;

use dtrain_torch_shim::program::{Argument, Operand, Output, Whole};

use super::axis::Axis;
use super::graph::{self, Program};
use super::modes::given;
use super::slots::{all_operands, operands, slot_of};
use super::warnings::orders_batch;

/// Operations of `aten` that keep the elements in row-major order.
const RESHAPES: [&str; 5] = ["view", "reshape", "flatten", "_unsafe_view", "unflatten"];

/// Operations of `aten` whose rows come from the same rows of their arguments.
const BY_ROW: [&str; 56] = [
    "adaptive_avg_pool2d",
    "add",
    "add_",
    "addmm",
    "avg_pool2d",
    "baddbmm",
    "batch_norm",
    "bmm",
    "clamp",
    "clone",
    "contiguous",
    "conv1d",
    "conv2d",
    "conv3d",
    "div",
    "div_",
    "dropout",
    "dropout_",
    "embedding",
    "exp",
    "expand",
    "gelu",
    "group_norm",
    "hardswish",
    "hardtanh",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "masked_fill",
    "masked_fill_",
    "matmul",
    "max_pool2d",
    "mean",
    "mul",
    "mul_",
    "neg",
    "permute",
    "pow",
    "relu",
    "relu_",
    "rsqrt",
    "scaled_dot_product_attention",
    "select",
    "sigmoid",
    "silu",
    "silu_",
    "slice",
    "softmax",
    "sqrt",
    "squeeze",
    "sub",
    "sum",
    "tanh",
    "transpose",
    "unsqueeze",
];

/// The order of the samples in the values of a program.
#[derive(Debug, Default)]
pub(super) struct Orders {
    /// Values in which the rows of a sample are known to be neighbours.
    rows: HashSet<usize>,
    /// Values that may have another order of samples than the inputs.
    mixed: HashSet<usize>,
    /// The numbers from 0 on, also with further dimensions: as an index they keep the order.
    counted: HashSet<usize>,
}

impl Orders {
    /// Follows the values of a program.
    pub(super) fn of(program: &Program) -> Self {
        let mut orders = Self::default();
        graph::for_calls(&program.items, &mut |operation, arguments, outputs, _| {
            orders.add(program, operation.name.trim_start_matches("aten::"), arguments, outputs);
        });
        orders
    }

    /// Returns the axis of a value that has the order of the inputs' samples.
    pub(super) fn axis(&self, program: &Program, slot: usize) -> Axis {
        match program.axes.get(&slot) {
            None => Axis::Unknown,
            Some(Axis::Samples(_)) if self.mixed.contains(&slot) => Axis::Unknown,
            Some(Axis::Rows(_)) if self.mixed.contains(&slot) || !self.rows.contains(&slot) => Axis::Unknown,
            Some(axis) => *axis,
        }
    }

    fn add(&mut self, program: &Program, name: &str, arguments: &[(String, Argument)], outputs: &[Output]) {
        let takes: Vec<usize> = all_operands(arguments).filter_map(slot_of).collect();
        let keeps_count = KEEPS_COUNT.contains(&name) && takes.iter().all(|slot| self.counted.contains(slot));
        if begins_at_0(arguments) && (name == "arange" || keeps_count && !takes.is_empty()) {
            self.counted.extend(outputs.iter().flat_map(Output::slots));
        }
        if self.reorders(program, name, arguments) || takes.iter().any(|slot| self.mixed.contains(slot)) {
            self.mixed.extend(outputs.iter().flat_map(Output::slots));
            // Its result is the value that it changes.
            self.mixed.extend(takes.first().filter(|_| name.ends_with('_')));
        }
        let axis = |slot: &usize| program.axes.get(slot).copied();
        let is_reshape = RESHAPES.contains(&name);
        let folds = is_reshape && takes.first().and_then(axis) == Some(Axis::Samples(0));
        let mut of_rows = takes.iter().filter(|slot| axis(slot) == Some(Axis::Rows(0))).peekable();
        let keeps = (is_reshape || BY_ROW.contains(&name))
            && of_rows.peek().is_some()
            && of_rows.all(|slot| self.rows.contains(slot));
        if folds || keeps {
            let of_rows = |slot: &usize| axis(slot) == Some(Axis::Rows(0));
            self.rows.extend(outputs.iter().flat_map(Output::slots).filter(of_rows));
        }
    }

    /// Returns whether an operation may give the first dimension, that of the samples, another order.
    fn reorders(&self, program: &Program, name: &str, arguments: &[(String, Argument)]) -> bool {
        let source = arguments.first().and_then(|(_, argument)| operands(argument).first()).and_then(slot_of);
        let axis = source.and_then(|slot| program.axes.get(&slot));
        if !matches!(axis, Some(Axis::Samples(0) | Axis::Rows(0))) {
            return false;
        }
        match name {
            "index" | "index_put" | "index_put_" => match given(arguments, "indices") {
                Some(Argument::Values(indices)) => match indices.first() {
                    None | Some(Operand::None) => false,
                    Some(first) => !slot_of(first).is_some_and(|slot| self.counted.contains(&slot)),
                },
                _ => true,
            },
            "index_select" | "index_copy" | "index_copy_" | "gather" | "scatter" | "scatter_"
            | "take_along_dim" | "sort" => {
                matches!(given(arguments, "dim"), Some(Argument::Int(Whole::Number(0) | Whole::Slot(_))))
            }
            _ => orders_batch(program, name, arguments, &HashSet::new()),
        }
    }
}

/// Operations of `aten` that give the numbers from 0 on further dimensions.
const KEEPS_COUNT: [&str; 8] =
    ["unsqueeze", "view", "reshape", "expand", "to", "clone", "contiguous", "slice"];

/// Returns whether the start and the step of an operation, such as `arange` and `slice`, are 0 and 1.
fn begins_at_0(arguments: &[(String, Argument)]) -> bool {
    let is = |name, number| match given(arguments, name) {
        None | Some(Argument::None) => true,
        Some(argument) => argument == &Argument::Int(Whole::Number(number)),
    };
    is("start", 0) && is("step", 1)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dtrain_torch_shim::program::{Operand, Operation};

    use super::super::graph::{Action, Item};
    use super::super::place::Place;
    use super::*;

    /// Makes a program of calls: the name, the values that it takes, and the axis of its result. Value 0 is an input with this
    /// axis, and the result of call n is value n + 1.
    fn program(input: Axis, calls: &[(&str, &[usize], Axis)]) -> Program {
        let mut program = Program::default();
        program.axes.insert(0, input);
        for (number, (name, takes, axis)) in calls.iter().enumerate() {
            let arguments = takes.iter().map(|slot| ("x".to_owned(), Argument::Value(Operand::Slot(*slot))));
            let operation = Operation { name: format!("aten::{name}"), overload: String::new() };
            program.items.push(Item {
                action: Action::Call {
                    operation,
                    arguments: arguments.collect(),
                    outputs: vec![Output::One(Some(number + 1))],
                    writes: Vec::new(),
                },
                place: Place::of(&[], &BTreeMap::new()),
                modules: Vec::new(),
            });
            program.axes.insert(number + 1, *axis);
        }
        program
    }

    #[test]
    fn rows_are_neighbours_if_the_samples_came_first() {
        const ROWS: Axis = Axis::Rows(0);
        let fold: (&str, &[usize], Axis) = ("reshape", &[0], ROWS);
        let is_known = |input, calls: &[(&str, &[usize], Axis)]| {
            let program = program(input, calls);
            Orders::of(&program).axis(&program, calls.len()) == ROWS
        };
        let first = |calls: &[(&str, &[usize], Axis)]| is_known(Axis::Samples(0), calls);
        assert!(first(&[fold]));
        assert!(first(&[fold, ("linear", &[1], ROWS), ("view", &[2], ROWS), ("add", &[3, 1], ROWS)]));
        assert!(!first(&[fold, ("flip", &[1], ROWS)]), "it may change the order");
        assert!(!first(&[("cat", &[0], ROWS)]), "two batches after each other");
        assert!(!first(&[fold, ("cat", &[0], ROWS), ("add", &[1, 2], ROWS)]));
        assert!(!first(&[("expand", &[0], ROWS)]), "nothing says whose rows these are");
        assert!(!is_known(Axis::Samples(1), &[fold]), "the frames of all samples came first");
        assert!(!is_known(ROWS, &[]), "an input of rows");
    }

    #[test]
    fn samples_in_another_order_are_not_known() {
        const SAMPLES: Axis = Axis::Samples(0);
        let axis = |name: &str, arguments: &[(&str, Argument)]| {
            let mut program = program(SAMPLES, &[("x", &[0], SAMPLES), ("linear", &[1], SAMPLES)]);
            program.shapes.insert(0, vec![None, Some(4)]);
            let Action::Call { operation, arguments: given, .. } = &mut program.items[0].action else {
                unreachable!()
            };
            operation.name = format!("aten::{name}");
            given.extend(arguments.iter().map(|(name, argument)| ((*name).to_owned(), argument.clone())));
            Orders::of(&program).axis(&program, 2)
        };
        let dim = |dim| ("dim", Argument::Int(Whole::Number(dim)));
        let dims = |dim| ("dims", Argument::Ints(vec![Whole::Number(dim)]));
        let indices = |first| ("indices", Argument::Values(vec![first, Operand::Slot(0)]));
        for (name, argument) in [
            ("index_select", dim(0)),
            ("gather", dim(0)),
            ("flip", dims(0)),
            ("roll", dims(-2)),
            ("index", indices(Operand::Slot(0))),
            ("index_put", indices(Operand::Slot(0))),
            ("scatter", dim(0)),
        ] {
            assert_eq!(axis(name, &[argument]), Axis::Unknown, "{name}");
        }
        for (name, argument) in [
            ("index_select", dim(1)),
            ("gather", dim(1)),
            ("flip", dims(1)),
            ("index", indices(Operand::None)),
            ("softmax", dim(0)),
        ] {
            assert_eq!(axis(name, &[argument]), SAMPLES, "{name}");
        }
        // The samples by their numbers, as for the token that each has chosen.
        for (start, expected) in [(0, SAMPLES), (1, Axis::Unknown)] {
            let calls = [
                ("arange", &[][..], SAMPLES),
                ("unsqueeze", &[1][..], SAMPLES),
                ("index", &[0][..], SAMPLES),
            ];
            let mut program = program(SAMPLES, &calls);
            let add = |item: &mut Item, name: &str, argument| {
                let Action::Call { arguments, .. } = &mut item.action else { unreachable!() };
                arguments.push((name.to_owned(), argument));
            };
            add(&mut program.items[0], "start", Argument::Int(Whole::Number(start)));
            add(&mut program.items[2], "indices", Argument::Values(vec![Operand::Slot(2), Operand::Slot(2)]));
            assert_eq!(Orders::of(&program).axis(&program, 3), expected, "from {start}");
        }
    }
}
