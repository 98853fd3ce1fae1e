//! Which values share memory, and which ones an operation changes in place.

use std::collections::HashMap;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output};

use super::super::modes;
use super::super::place::Place;
use super::super::slots::{all_operands, operands, slot_of};
use super::{Action, Item, Meaning, Program, Resolver, Role, for_calls};
use crate::exported_error::{Problem, Result};

/// Operations that may return an argument or a view of it although their schemas mark no alias: each does in some
/// cases, such as a dropout of probability 0. The test `results_share_memory_only_as_known` calls libtorch's operations.
pub(in super::super) const UNMARKED_VIEWS: [&str; 40] = [
    "_cast_Byte",
    "_cast_Char",
    "_cast_Double",
    "_cast_Float",
    "_cast_Half",
    "_cast_Int",
    "_cast_Long",
    "_cast_Short",
    "_remove_batch_dim",
    "_saturate_weight_to_fp16",
    "_to_cpu",
    "_unsafe_view",
    "align_as",
    "align_tensors",
    "alpha_dropout",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_tensors",
    "cartesian_prod",
    "conj_physical",
    "data",
    "dequantize",
    "dropout",
    "einsum",
    "feature_alpha_dropout",
    "feature_dropout",
    "flatten_dense_tensors",
    "lift",
    "meshgrid",
    "native_dropout",
    "set",
    "slice_inverse",
    "sum_to_size",
    "to_dense",
    "type_as",
    "unflatten_dense_tensors",
    "unsafe_chunk",
    "unsafe_split",
    "unsafe_split_with_sizes",
];

/// The effects of a call on the memory of its arguments.
#[derive(Default)]
pub(super) struct Effects {
    /// What the call changes in place, as roots.
    pub writes: Vec<Operand>,
    /// The argument that is its only result, too.
    pub result: Option<Meaning>,
    /// What its results may be views of, as roots.
    pub shared: Vec<Operand>,
}

impl Resolver<'_> {
    /// Returns the effects of a call.
    pub(super) fn effects(
        &self,
        operation: &Operation,
        arguments: &[(String, Argument)],
        place: &Place,
    ) -> Result<Effects> {
        let mut effects = Effects::default();
        let mut unmarked =
            UNMARKED_VIEWS.contains(&operation.name.strip_prefix("aten::").unwrap_or_default());
        for (name, argument) in arguments {
            let operands = operands(argument);
            if operands.is_empty() {
                continue;
            }
            let traits = operation.traits(name).map_err(|source| {
                let (operation, place) = (operation.name.clone(), place.to_string());
                self.archive.error(Problem::Operation { operation, place, source })
            })?;
            let roots = operands.iter().flat_map(|operand| self.program.roots(operand));
            if traits.shares || unmarked {
                effects.shared.extend(roots.clone());
            }
            // Only the first tensors.
            unmarked = false;
            if !traits.writes {
                continue;
            }
            effects.writes.extend(roots);
            effects.result = match argument {
                Argument::Value(Operand::Slot(slot)) if traits.returns_it => Some(Meaning::Slot(*slot)),
                Argument::Value(Operand::Fixed(number)) if traits.returns_it => Some(Meaning::Fixed(*number)),
                _ => effects.result,
            };
        }
        for written in &effects.writes {
            if let Operand::Fixed(number) = written {
                self.check_write(*number, &format!("{}{place}", operation.name))?;
            }
        }
        Ok(effects)
    }

    /// Refuses changes of a tensor that only the optimizer may change, or that checkpoints lack. `by` is what changes it.
    pub(super) fn check_write(&self, number: usize, by: &str) -> Result<()> {
        let (name, role) = &self.program.about[number];
        let (what, remedy) = match role {
            Role::Buffer if self.program.fixed[number].is_complex() => {
                ("complex buffer", "make it real by torch.view_as_real")
            }
            Role::Buffer => {
                return match self.tensors.overlapping(name) {
                    Some(other) => Err(self.archive.error(Problem::Overlap(name.clone(), other.to_owned()))),
                    None => Ok(()),
                };
            }
            Role::Parameter => ("parameter", "only the optimizer may change parameters, so change a copy"),
            Role::Constant => {
                ("tensor", "register it by register_buffer, so that it belongs to the model's state")
            }
        };
        Err(self.unfit(format!("{by} changes the {what} `{name}` in place: {remedy}")))
    }

    /// Records what the results of a call may be views of.
    pub(super) fn note_views(&mut self, shared: &[Operand], outputs: &[Output]) {
        for slot in outputs.iter().flat_map(Output::slots).filter(|_| !shared.is_empty()) {
            self.program.bases.insert(slot, shared.to_vec());
        }
    }
}

impl Program {
    /// Returns what an operand may be a view of, or itself.
    pub(in super::super) fn roots<'a>(&'a self, operand: &'a Operand) -> &'a [Operand] {
        let bases = match operand {
            Operand::Slot(slot) => self.bases.get(slot),
            _ => None,
        };
        bases.map_or(std::slice::from_ref(operand), Vec::as_slice)
    }

    /// Returns the buffers that a call changes: by its schema, and the statistics of a normalisation.
    pub(in super::super) fn changed_buffers(
        &self,
        operation: &Operation,
        arguments: &[(String, Argument)],
        writes: &[Operand],
    ) -> Vec<usize> {
        let statistics = modes::moved_statistics(&operation.name, arguments);
        writes.iter().chain(statistics).flat_map(|written| self.buffers(written)).collect()
    }

    /// Returns whether a call does nothing but change buffers.
    pub(in super::super) fn only_updates(&self, outputs: &[Output], writes: &[Operand]) -> bool {
        let is_buffer = |written: &Operand| self.buffers(written).next().is_some();
        !writes.is_empty()
            && writes.iter().all(is_buffer)
            && outputs.iter().all(|output| output.slots().is_empty())
    }

    /// Returns the buffers whose values a call takes; a view takes none.
    pub(in super::super) fn read_buffers<'a>(
        &'a self,
        arguments: &'a [(String, Argument)],
        outputs: &[Output],
    ) -> impl Iterator<Item = usize> + 'a {
        let is_view = outputs.iter().flat_map(Output::slots).any(|slot| self.bases.contains_key(&slot));
        all_operands(arguments).filter(move |_| !is_view).flat_map(|operand| self.buffers(operand))
    }

    /// Returns the value of an operand, and those of which it may be a view.
    pub(in super::super) fn with_roots(&self, operand: &Operand) -> Vec<usize> {
        self.roots(operand).iter().chain([operand]).filter_map(slot_of).collect()
    }

    /// Returns the buffers that an operand may be or view.
    pub(in super::super) fn buffers<'a>(&'a self, operand: &'a Operand) -> impl Iterator<Item = usize> + 'a {
        self.roots(operand).iter().filter_map(|root| match root {
            Operand::Fixed(number) if self.about[*number].1 == Role::Buffer => Some(*number),
            _ => None,
        })
    }

    /// Makes views independent of the memory layouts on the device of the export: another device may have computed a
    /// view's source in another order, and `reshape` then copies it. A view stays if later operations change its
    /// memory.
    pub(super) fn make_portable(&mut self) {
        let mut written = HashMap::new();
        let mut position = 0;
        for_calls(&self.items, &mut |_, _, _, writes| {
            written.extend(writes.iter().map(|root| (*root, position)));
            position += 1;
        });
        let mut items = std::mem::take(&mut self.items);
        position = 0;
        for_calls_mut(&mut items, &mut |operation, arguments, outputs| {
            let slots = outputs.iter().flat_map(Output::slots).map(Operand::Slot);
            let is_last = |root: &Operand| written.get(root).is_none_or(|last| *last < position);
            if operation.name == "aten::view"
                && operation.overload.is_empty()
                && slots.flat_map(|slot| self.roots(&slot).to_vec()).all(|root| is_last(&root))
            {
                operation.name = "aten::reshape".to_owned();
                arguments
                    .iter_mut()
                    .filter(|(name, _)| name == "size")
                    .for_each(|(name, _)| *name = "shape".to_owned());
            }
            position += 1;
        });
        self.items = items;
    }
}

fn for_calls_mut(
    items: &mut [Item],
    each: &mut impl FnMut(&mut Operation, &mut Vec<(String, Argument)>, &[Output]),
) {
    for item in items {
        match &mut item.action {
            Action::Call { operation, arguments, outputs, .. } => each(operation, arguments, outputs),
            Action::Region { body, .. } => for_calls_mut(body, each),
        }
    }
}
