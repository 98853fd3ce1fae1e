//! The values that the arguments of a call use.

use dtrain_torch_shim::program::{Argument, Operand, Whole};

/// Returns the number of a value.
pub(super) fn slot_of(operand: &Operand) -> Option<usize> {
    match operand {
        Operand::Slot(slot) => Some(*slot),
        Operand::None | Operand::Fixed(_) => None,
    }
}

/// Returns the tensors, and the values given as one, of an argument.
pub(super) fn operands(argument: &Argument) -> &[Operand] {
    match argument {
        Argument::Value(operand) => std::slice::from_ref(operand),
        Argument::Values(list) => list,
        _ => &[],
    }
}

/// Returns the tensors, and the values given as one, of a call's arguments.
pub(super) fn all_operands(arguments: &[(String, Argument)]) -> impl Iterator<Item = &Operand> {
    arguments.iter().flat_map(|(_, argument)| operands(argument))
}

/// Returns the values of a call's arguments.
pub(super) fn slots(arguments: &[(String, Argument)]) -> impl Iterator<Item = usize> + '_ {
    let of_whole = |whole: &Whole| match whole {
        Whole::Slot(slot) => Some(*slot),
        Whole::Number(_) => None,
    };
    arguments.iter().flat_map(move |(_, argument)| -> Vec<usize> {
        match argument {
            Argument::Int(whole) => of_whole(whole).into_iter().collect(),
            Argument::Ints(list) => list.iter().filter_map(of_whole).collect(),
            other => operands(other).iter().filter_map(slot_of).collect(),
        }
    })
}
