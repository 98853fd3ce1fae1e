//! Finds the segments of a program that backward may recompute: modules of one class beside each other, such as the
//! blocks of a transformer, whose operations are together and have one tensor as a result.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use dtrain_torch_shim::program::{Argument, Operand, Output};

use super::graph::{Action, Item, Mode, Program, for_calls};
use super::modes;
use super::slots::{all_operands, slot_of, slots};

/// Modules of fewer operations are not worth a segment.
const FEWEST_OPERATIONS: usize = 4;

/// The modules inside a module become segments in its place if they have at least this share of its operations.
const INNER_SHARE: f64 = 0.7;

/// One segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Part {
    /// The module's path.
    pub name: String,
    /// Its operations.
    pub range: Range<usize>,
    /// Tensors from outside.
    pub inputs: Vec<usize>,
    /// Other values from outside, such as sizes.
    pub numbers: Vec<i64>,
    /// Parameters, buffers and constants that it uses.
    pub fixed: Vec<usize>,
    /// The one tensor that later operations use.
    pub output: usize,
    /// The other values that later operations use, such as sizes.
    pub results: Vec<i64>,
    /// Whether it has attention with a mask, whose kernel depends on whether the mask needs a gradient.
    pub records: bool,
}

/// A module with its operations.
#[derive(Default)]
struct Module {
    class: String,
    range: Option<Range<usize>>,
    operations: usize,
    /// Paths of the modules inside, in the order of their first operations.
    inner: Vec<String>,
}

/// Returns the segments of a program in the order of its operations.
pub(super) fn find(program: &Program) -> Vec<Part> {
    let modules = modules(&program.items);
    let search = Search { program, modules, uses: uses(program) };
    let mut parts = search.inside("");
    parts.sort_by_key(|part| part.range.start);
    parts
}

fn modules(items: &[Item]) -> BTreeMap<String, Module> {
    let mut modules: BTreeMap<String, Module> = BTreeMap::new();
    for (index, item) in items.iter().enumerate() {
        let mut outer = String::new();
        for (path, class) in &item.modules {
            if !modules.contains_key(path) && !path.is_empty() {
                modules.entry(outer.clone()).or_default().inner.push(path.clone());
            }
            let module = modules.entry(path.clone()).or_default();
            module.class.clone_from(class);
            module.operations += 1;
            let range = module.range.get_or_insert(index..index);
            range.end = index + 1;
            outer.clone_from(path);
        }
    }
    modules
}

/// The operations that define and use each value. Results of the program have a use behind all operations.
#[derive(Default)]
struct Uses {
    defined: HashMap<usize, usize>,
    last: HashMap<usize, usize>,
    /// Operations that change a value in place, in order.
    changed: HashMap<usize, Vec<usize>>,
    /// The uses of values through which gradients may pass, in order. An operation that uses a value twice is there twice.
    passed: HashMap<usize, Vec<usize>>,
    /// Tensors that have a gradient if all parameters are trained; of views, what they are views of.
    differentiable: HashSet<usize>,
}

fn uses(program: &Program) -> Uses {
    let mut uses = Uses::default();
    for (index, item) in program.items.iter().enumerate() {
        let one = std::slice::from_ref(item);
        let (used, own) = values(one);
        let mut written = Vec::new();
        for_calls(one, &mut |_, _, _, writes| written.extend(writes.iter().filter_map(slot_of)));
        if passes_gradients(item, program) {
            let is_differentiable = used.iter().any(|slot| uses.has_gradient(*slot, program))
                || fixed(one).iter().any(|number| program.fixed[*number].requires_grad());
            if is_differentiable {
                let changed =
                    own.iter().chain(&written).flat_map(|slot| program.with_roots(&Operand::Slot(*slot)));
                uses.differentiable.extend(changed);
            }
            used.iter().for_each(|slot| uses.passed.entry(*slot).or_default().push(index));
        }
        for slot in used {
            uses.last.insert(slot, index);
        }
        for slot in own {
            uses.defined.entry(slot).or_insert(index);
        }
        written.iter().for_each(|slot| uses.changed.entry(*slot).or_default().push(index));
    }
    for slot in program.kept() {
        uses.last.insert(slot, usize::MAX);
        uses.passed.entry(slot).or_default().push(usize::MAX);
    }
    uses
}

/// Operations whose results have no gradient.
const WITHOUT_GRADIENT: [&str; 17] = [
    "argmax",
    "argmin",
    "detach",
    "eq",
    "ge",
    "gt",
    "isinf",
    "isnan",
    "le",
    "logical_and",
    "logical_not",
    "logical_or",
    "lt",
    "ne",
    "new_zeros",
    "ones_like",
    "zeros_like",
];

/// Returns whether gradients may pass an item from its results to its arguments.
fn passes_gradients(item: &Item, program: &Program) -> bool {
    if matches!(item.action, Action::Region { mode: Mode::Gradients(false), .. }) {
        return false;
    }
    let mut passes = false;
    for_calls(std::slice::from_ref(item), &mut |operation, _, outputs, writes| {
        let name = operation.name.strip_prefix("aten::").unwrap_or_default();
        let gives_tensor = outputs.iter().flat_map(Output::slots).any(|slot| program.is_tensor[slot]);
        passes |= !WITHOUT_GRADIENT.contains(&name) && (gives_tensor || !writes.is_empty());
    });
    passes
}

impl Uses {
    fn is_used_from(&self, slot: usize, index: usize) -> bool {
        self.last.get(&slot).is_some_and(|last| *last >= index)
    }

    fn has_gradient(&self, slot: usize, program: &Program) -> bool {
        program.with_roots(&Operand::Slot(slot)).iter().any(|slot| self.differentiable.contains(slot))
    }

    /// Returns whether a segment would add the gradients of a value in another order: it uses it several times, and
    /// other operations use it too, since the last change before it.
    fn regroups(&self, slot: usize, range: &Range<usize>, program: &Program) -> bool {
        let Some(used) = self.passed.get(&slot).filter(|_| self.has_gradient(slot, program)) else {
            return false;
        };
        let changes = self.changed.get(&slot).into_iter().flatten();
        let last = changes.filter(|index| **index < range.start).max();
        let inside = used.iter().filter(|index| range.contains(index)).count();
        let all = used.iter().filter(|index| last.is_none_or(|last| *index > last)).count();
        inside > 1 && inside < all
    }
}

/// Returns the values that items use and define.
fn values(items: &[Item]) -> (Vec<usize>, Vec<usize>) {
    let (mut used, mut own) = (Vec::new(), Vec::new());
    for_calls(items, &mut |_, arguments, outputs, _| {
        used.extend(slots(arguments));
        own.extend(outputs.iter().flat_map(Output::slots));
    });
    (used, own)
}

/// Returns the fixed tensors that items use, each once.
fn fixed(items: &[Item]) -> Vec<usize> {
    let mut found = Vec::new();
    for_calls(items, &mut |_, arguments, _, _| {
        for operand in all_operands(arguments) {
            if let Operand::Fixed(number) = operand
                && !found.contains(number)
            {
                found.push(*number);
            }
        }
    });
    found
}

struct Search<'a> {
    program: &'a Program,
    modules: BTreeMap<String, Module>,
    uses: Uses,
}

impl Search<'_> {
    /// Returns the segments inside a module.
    fn inside(&self, path: &str) -> Vec<Part> {
        let Some(module) = self.modules.get(path) else { return Vec::new() };
        let mut of_class: HashMap<&str, usize> = HashMap::new();
        for inner in &module.inner {
            *of_class.entry(self.modules[inner].class.as_str()).or_default() += 1;
        }
        let mut parts = Vec::new();
        for inner in &module.inner {
            let within = self.inside(inner);
            let one = &self.modules[inner];
            let repeated = of_class[one.class.as_str()] > 1 && one.operations >= FEWEST_OPERATIONS;
            let covered: usize = within.iter().map(|part| part.range.len()).sum();
            let prefers_inner = within.len() > 1 && covered as f64 >= INNER_SHARE * one.operations as f64;
            match self.part(inner).filter(|_| repeated && !prefers_inner) {
                Some(part) => parts.push(part),
                None => parts.extend(within),
            }
        }
        parts
    }

    /// Returns a module as a segment, if its operations are together, change nothing outside and have one tensor as
    /// a result, and if recomputing them adds the gradients of values in the same order. Those of parameters that other
    /// operations use too may be added in another order.
    fn part(&self, path: &str) -> Option<Part> {
        let module = &self.modules[path];
        let range = module.range.clone()?;
        if range.len() != module.operations {
            return None;
        }
        let items = &self.program.items[range.clone()];
        let (used, own) = values(items);
        let (mut inputs, mut numbers, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
        for slot in used.into_iter().filter(|slot| !self.is_inside(*slot, &range)) {
            if !seen.insert(slot) {
                continue;
            }
            match self.program.is_tensor[slot] {
                true => inputs.push(slot),
                false => numbers.push(slot as i64),
            }
        }
        let outputs = own.into_iter().filter(|slot| self.uses.is_used_from(*slot, range.end));
        let (outputs, results): (Vec<usize>, Vec<usize>) =
            outputs.partition(|slot| self.program.is_tensor[*slot]);
        let [output] = outputs.as_slice() else { return None };
        let is_own = self.is_own(Operand::Slot(*output), &range);
        let regroups = inputs.iter().any(|slot| self.uses.regroups(*slot, &range, self.program));
        // Recomputing leaves out calls that only change a buffer, so nothing else may read that buffer.
        let (changed, read) = self.buffers(&range);
        let is_same = self.is_repeatable(&range)
            && changed.is_disjoint(&read)
            && !self.is_changed_later(&inputs, &read, &range);
        if !is_own || regroups || !is_same {
            return None;
        }
        let (fixed, records) = (fixed(items), has_masked_attention(items));
        let results = results.into_iter().map(|slot| slot as i64).collect();
        let name = path.to_owned();
        Some(Part { name, range, inputs, numbers, fixed, output: *output, results, records })
    }

    fn is_inside(&self, slot: usize, range: &Range<usize>) -> bool {
        self.uses.defined.get(&slot).is_some_and(|defined| range.contains(defined))
    }

    /// Returns whether a value is computed inside, and no view of one from outside.
    fn is_own(&self, operand: Operand, range: &Range<usize>) -> bool {
        let is_inside = |root: &Operand| slot_of(root).is_some_and(|slot| self.is_inside(slot, range));
        self.program.roots(&operand).iter().all(is_inside)
    }

    /// Returns whether later operations change one of these values, or one of the buffers that the segment `read`s:
    /// backward would compute the segment of other values than forward did.
    fn is_changed_later(&self, inputs: &[usize], read: &HashSet<usize>, range: &Range<usize>) -> bool {
        let program = self.program;
        let bases: HashSet<usize> =
            inputs.iter().flat_map(|slot| program.with_roots(&Operand::Slot(*slot))).collect();
        let mut is_changed = false;
        for_calls(&program.items[range.end..], &mut |operation, arguments, _, writes| {
            is_changed |= writes.iter().filter_map(slot_of).any(|slot| bases.contains(&slot));
            let changed = program.changed_buffers(operation, arguments, writes);
            is_changed |= changed.iter().any(|buffer| read.contains(buffer));
        });
        is_changed
    }

    /// Returns the buffers that operations change, and those that they read without changing them in the same call.
    fn buffers(&self, range: &Range<usize>) -> (HashSet<usize>, HashSet<usize>) {
        let (mut changed, mut read) = (HashSet::new(), HashSet::new());
        for_calls(&self.program.items[range.clone()], &mut |operation, arguments, outputs, writes| {
            let own = self.program.changed_buffers(operation, arguments, writes);
            let read_here = self.program.read_buffers(arguments, outputs);
            read.extend(read_here.filter(|buffer| !own.contains(buffer)));
            changed.extend(own);
        });
        (changed, read)
    }

    /// Returns whether computing the operations again changes nothing outside but buffers, by calls without a result.
    fn is_repeatable(&self, range: &Range<usize>) -> bool {
        let mut is_repeatable = true;
        for_calls(&self.program.items[range.clone()], &mut |operation, arguments, outputs, writes| {
            let changes_value =
                |written: &Operand| matches!(written, Operand::Slot(_)) && !self.is_own(*written, range);
            let changes_buffer = writes.iter().any(|written| self.program.buffers(written).next().is_some());
            is_repeatable &= !writes.iter().any(changes_value);
            is_repeatable &= !changes_buffer || self.program.only_updates(outputs, writes);
            // The layer of batch normalisation moves statistics once.
            is_repeatable &= modes::is_training_norm(&operation.name, arguments)
                || modes::moved_statistics(&operation.name, arguments).next().is_none();
        });
        is_repeatable
    }
}

fn has_masked_attention(items: &[Item]) -> bool {
    let mut found = false;
    for_calls(items, &mut |operation, arguments, _, _| {
        let is_masked = modes::given(arguments, "attn_mask").is_some_and(|mask| *mask != Argument::None);
        found |= is_masked && operation.name == "aten::scaled_dot_product_attention";
    });
    found
}
