//! Refuses programs whose gradients would end at an operation without a derivative.

use std::collections::HashSet;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output};

use super::archive::Archive;
use super::graph::{Action, Item, Mode, Program};
use super::modes;
use super::place::Place;
use super::slots::all_operands;
use crate::exported_error::{Problem, Result};

/// Operations of `run_decompositions` that have no derivative, though those that they stand for have one.
const WITHOUT_DERIVATIVE: [&str; 14] = [
    "_batch_norm_with_update_functional",
    "_fused_moving_avg_obs_fq_helper_functional",
    "_native_batch_norm_legit_functional",
    "cauchy",
    "copy",
    "embedding_renorm",
    "exponential",
    "geometric",
    "log_normal",
    "normal_functional",
    "random",
    "resize",
    "uniform",
    "zero",
];

/// A call on the way of gradients.
struct Link<'a> {
    operation: &'a Operation,
    arguments: &'a [(String, Argument)],
    results: Vec<usize>,
    place: &'a Place,
}

/// Checks that gradients pass every operation between trained parameters and results.
pub(super) fn check(archive: &Archive, program: &Program) -> Result<()> {
    let (mut links, mut differentiable) = (Vec::new(), HashSet::new());
    collect(program, &program.items, &mut differentiable, &mut links);
    let returned = program.returned.iter().filter_map(|returned| returned.operand).map(Operand::from);
    let mut wanted: HashSet<usize> = returned.flat_map(|operand| program.with_roots(&operand)).collect();
    for Link { operation, arguments, results, place } in links.into_iter().rev() {
        if !results.iter().any(|slot| wanted.contains(slot)) {
            continue;
        }
        wanted.extend(all_operands(arguments).flat_map(|operand| program.with_roots(operand)));
        // The layer of batch normalisation has a derivative.
        let name = operation.name.strip_prefix("aten::").unwrap_or_default();
        let lacks =
            WITHOUT_DERIVATIVE.contains(&name) && !modes::is_training_norm(&operation.name, arguments);
        let traits = operation.traits("").map_err(|source| {
            let (operation, place) = (operation.name.clone(), place.to_string());
            archive.error(Problem::Operation { operation, place, source })
        })?;
        if lacks || traits.ends_gradients {
            return Err(archive.error(Problem::Derivative(operation.name.clone(), place.to_string())));
        }
    }
    Ok(())
}

/// Collects the calls whose float results depend on trained parameters, and the values that do.
fn collect<'a>(
    program: &Program,
    items: &'a [Item],
    differentiable: &mut HashSet<usize>,
    links: &mut Vec<Link<'a>>,
) {
    for item in items {
        match &item.action {
            Action::Region { mode: Mode::Gradients(false), .. } => {}
            Action::Region { body, .. } => collect(program, body, differentiable, links),
            Action::Call { operation, arguments, outputs, writes } => {
                let depends = |operand: &Operand| match operand {
                    Operand::Fixed(number) => program.fixed[*number].requires_grad(),
                    operand => program.with_roots(operand).iter().any(|slot| differentiable.contains(slot)),
                };
                if operation.name == "aten::detach" || !all_operands(arguments).any(depends) {
                    continue;
                }
                let own = outputs.iter().flat_map(Output::slots).map(Operand::Slot);
                let results =
                    own.chain(writes.iter().copied()).flat_map(|operand| program.with_roots(&operand));
                let results: Vec<usize> = results
                    .filter(|slot| program.is_tensor[*slot] && !program.whole.contains(slot))
                    .collect();
                differentiable.extend(&results);
                links.push(Link { operation, arguments, results, place: &item.place });
            }
        }
    }
}
