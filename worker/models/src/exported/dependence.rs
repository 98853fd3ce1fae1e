//! Which inputs the results of a program depend on.

use std::collections::{BTreeSet, HashMap};

use dtrain_torch_shim::program::{Operand, Output};

use super::graph::{Program, for_calls};
use super::slots::{all_operands, slots};

/// Operations of `aten` that take the shape of a tensor, and none of its values.
const OF_SHAPES: [&str; 5] = ["new_ones", "new_zeros", "ones_like", "sym_size", "zeros_like"];

/// Returns the numbers of the inputs on whose values each result depends, in the order of the results that are tensors.
pub(super) fn inputs_of_results(program: &Program) -> Vec<BTreeSet<usize>> {
    let inputs = program.inputs.iter().enumerate();
    let mut known: HashMap<Operand, BTreeSet<usize>> =
        inputs.map(|(number, input)| (Operand::Slot(input.slot), BTreeSet::from([number]))).collect();
    // A view has what was written into its source.
    let of = |known: &HashMap<Operand, BTreeSet<usize>>, operand: &Operand| {
        let all = program.roots(operand).iter().chain([operand]);
        all.filter_map(|operand| known.get(operand)).flatten().copied().collect::<BTreeSet<usize>>()
    };
    for_calls(&program.items, &mut |operation, arguments, outputs, writes| {
        let name = operation.name.strip_prefix("aten::").unwrap_or_default();
        if OF_SHAPES.contains(&name) {
            return;
        }
        let values = slots(arguments).map(Operand::Slot);
        let taken = values.chain(all_operands(arguments).copied()).flat_map(|operand| of(&known, &operand));
        let taken: BTreeSet<usize> = taken.collect();
        let results = outputs.iter().flat_map(Output::slots).map(Operand::Slot);
        for result in results.chain(writes.iter().copied()).filter(|_| !taken.is_empty()) {
            known.entry(result).or_default().extend(&taken);
        }
    });
    let returned = program.returned.iter().filter_map(|returned| returned.operand);
    returned.map(|meaning| of(&known, &meaning.into())).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use dtrain_torch_shim::program::{Argument, Operation};

    use super::super::graph::{Action, Input, Item, Meaning, Returned};
    use super::super::place::Place;
    use super::*;

    /// Makes a program of inputs 0 and 1 and of calls: the name, the values that it takes, and those that it writes. The result of
    /// call n is value n + 2. The program returns these values.
    fn program(calls: &[(&str, &[usize], &[usize])], returned: &[usize]) -> Program {
        let mut program = Program::default();
        let input = |slot: usize| Input { slot, name: format!("input {slot}"), meta: None };
        program.inputs.extend([0, 1].map(input));
        for (number, (name, takes, writes)) in calls.iter().enumerate() {
            let operand = |slot: &usize| Operand::Slot(*slot);
            let arguments = takes.iter().map(|slot| ("x".to_owned(), Argument::Value(operand(slot))));
            program.items.push(Item {
                action: Action::Call {
                    operation: Operation { name: format!("aten::{name}"), overload: String::new() },
                    arguments: arguments.collect(),
                    outputs: vec![Output::One(Some(number + 2))],
                    writes: writes.iter().map(operand).collect(),
                },
                place: Place::of(&[], &BTreeMap::new()),
                modules: Vec::new(),
            });
        }
        let result = |slot: &usize| Returned { operand: Some(Meaning::Slot(*slot)), meta: None };
        program.returned.extend(returned.iter().map(result));
        program
    }

    #[test]
    fn results_depend_on_the_inputs_whose_values_reach_them() {
        let found = |program: &Program| {
            let all = inputs_of_results(program).into_iter();
            all.map(|inputs| inputs.into_iter().collect()).collect::<Vec<Vec<usize>>>()
        };
        let network: [(&str, &[usize], &[usize]); 4] =
            [("linear", &[0], &[]), ("sub", &[2, 1], &[]), ("sym_size", &[1], &[]), ("view", &[2, 4], &[])];
        assert_eq!(found(&program(&network, &[2, 3, 5])), [vec![0], vec![0, 1], vec![0]]);
        // A value that is written in place, and a view of it that was made before.
        let mut written =
            program(&[("zeros_like", &[1], &[]), ("select", &[2], &[]), ("copy_", &[2, 0], &[2])], &[3, 2]);
        written.bases.insert(3, vec![Operand::Slot(2)]);
        assert_eq!(found(&written), [vec![0], vec![0]]);
    }
}
