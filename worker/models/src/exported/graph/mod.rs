//! The operations of a program with their values as numbers: what [`super::segments`] and [`super::prepare`] work on.

mod memory;
mod signature;
mod values;

use std::collections::{HashMap, HashSet};

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output};
use tch::{Kind, Tensor};

use self::memory::Effects;
#[cfg(test)]
pub(super) use self::memory::UNMARKED_VIEWS;
use self::values::name_of;
use super::archive::Archive;
use super::axis::{Axis, Symbols};
use super::dtype::dtype;
use super::place::Place;
use super::schema::{self, Graph, Node, Value};
use super::tensors::Tensors;
use crate::exported_error::{Problem, Result};

/// A setting of the thread for a part of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// Whether operations are recorded for backward.
    Gradients(bool),
    /// Autocast in this dtype, or none, for operations on this processor.
    Autocast(Processor, Option<Kind>),
}

/// The processors that autocast tells apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Processor {
    Cpu,
    Gpu,
    /// One that dtrain does not use.
    Other,
}

/// An operation, or a part under a setting.
pub(super) enum Action {
    /// `writes` are the values that the call changes in place; none is a view.
    Call {
        operation: Operation,
        arguments: Vec<(String, Argument)>,
        outputs: Vec<Output>,
        writes: Vec<Operand>,
    },
    Region {
        mode: Mode,
        body: Vec<Item>,
    },
}

/// One action with its place in the model.
pub(super) struct Item {
    pub action: Action,
    pub place: Place,
    /// The module that contains the operation: path and class of every level, outermost first.
    pub modules: Vec<(String, String)>,
}

/// Calls a function with the parts of every call of these items.
pub(super) fn for_calls(
    items: &[Item],
    each: &mut impl FnMut(&Operation, &[(String, Argument)], &[Output], &[Operand]),
) {
    for item in items {
        match &item.action {
            Action::Region { body, .. } => for_calls(body, each),
            Action::Call { operation, arguments, outputs, writes } => {
                each(operation, arguments, outputs, writes);
            }
        }
    }
}

/// What a name of the program stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Meaning {
    Slot(usize),
    Fixed(usize),
}

impl From<Meaning> for Operand {
    fn from(meaning: Meaning) -> Self {
        match meaning {
            Meaning::Slot(slot) => Self::Slot(slot),
            Meaning::Fixed(number) => Self::Fixed(number),
        }
    }
}

/// The role of a tensor that belongs to the model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Role {
    Parameter,
    Buffer,
    Constant,
}

/// A tensor that the program takes.
pub(super) struct Input {
    pub slot: usize,
    pub name: String,
    pub meta: Option<schema::TensorMeta>,
}

/// A tensor that the program returns.
pub(super) struct Returned {
    /// None if it is not a tensor.
    pub operand: Option<Meaning>,
    pub meta: Option<schema::TensorMeta>,
}

/// A program whose names are resolved.
#[derive(Default)]
pub(super) struct Program {
    pub items: Vec<Item>,
    pub inputs: Vec<Input>,
    pub returned: Vec<Returned>,
    /// Buffers that take a value at the end, in programs without in-place operations.
    pub mutations: Vec<(usize, Meaning)>,
    /// Values that stand for such buffers as they are at the beginning.
    pub copies: Vec<(usize, usize)>,
    /// The values and fixed tensors of which values may be views: none of them is a view itself.
    pub bases: HashMap<usize, Vec<Operand>>,
    /// Parameters, buffers and constants that the program uses.
    pub fixed: Vec<Tensor>,
    /// Their names and roles.
    pub about: Vec<(String, Role)>,
    /// Whether the value of this number is a tensor; otherwise it is a number.
    pub is_tensor: Vec<bool>,
    /// Values that are tensors of whole numbers or of truth values.
    pub whole: HashSet<usize>,
    /// Shapes of values, by number; None for a length that depends on the batch.
    pub shapes: HashMap<usize, Vec<Option<i64>>>,
    /// The dimensions of the samples in values, by number.
    pub axes: HashMap<usize, Axis>,
    /// The symbols of lengths.
    pub symbols: Symbols,
}

impl Program {
    fn set_shape(&mut self, slot: usize, meta: &schema::TensorMeta) {
        self.shapes.insert(slot, shape(meta));
        // Random operations on complex numbers draw both parts.
        let is_complex = dtype(meta.dtype)
            .is_some_and(|(kind, _)| matches!(kind, Kind::ComplexFloat | Kind::ComplexDouble));
        let axis = if is_complex { Axis::Unknown } else { self.symbols.axis(&meta.sizes) };
        self.axes.insert(slot, axis);
    }

    /// Returns the values that the end of a run needs: results, and new values of buffers.
    pub(super) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        let returned = self.returned.iter().filter_map(|returned| returned.operand);
        let all = returned.chain(self.mutations.iter().map(|(_, value)| *value));
        all.filter_map(|meaning| match meaning {
            Meaning::Slot(slot) => Some(slot),
            Meaning::Fixed(_) => None,
        })
    }
}

pub(super) fn shape(meta: &schema::TensorMeta) -> Vec<Option<i64>> {
    meta.sizes.iter().map(schema::Size::constant).collect()
}

struct Resolver<'a> {
    archive: &'a Archive,
    tensors: &'a Tensors,
    program: Program,
    /// The numbers of buffers by name.
    buffers: HashMap<String, usize>,
}

/// The names of one graph.
type Names = HashMap<String, Meaning>;

/// Resolves the names of a program with these tensors.
pub(super) fn resolve(archive: &Archive, module: &schema::GraphModule, tensors: &Tensors) -> Result<Program> {
    let mut resolver = Resolver { archive, tensors, program: Program::default(), buffers: HashMap::new() };
    let mut names = Names::new();
    resolver.inputs(module, &mut names)?;
    resolver.program.items = resolver.items(&module.graph, &mut names)?;
    resolver.outputs(module, &names)?;
    resolver.program.make_portable();
    Ok(resolver.program)
}

impl Resolver<'_> {
    fn invalid(&self, reason: impl Into<String>) -> crate::exported_error::ExportedError {
        self.archive.error(Problem::Graph(reason.into()))
    }

    fn unfit(&self, reason: impl Into<String>) -> crate::exported_error::ExportedError {
        self.archive.error(Problem::Unfit(reason.into()))
    }

    fn new_slot(&mut self, is_tensor: bool) -> usize {
        self.program.is_tensor.push(is_tensor);
        self.program.is_tensor.len() - 1
    }

    fn items(&mut self, graph: &Graph, names: &mut Names) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            items.extend(self.item(graph, node, names)?);
        }
        Ok(items)
    }

    fn item(&mut self, graph: &Graph, node: &Node, names: &mut Names) -> Result<Option<Item>> {
        let target = node.target.as_str();
        // It would compare dtypes and devices with those of the export.
        if target == "torch.ops.aten._assert_tensor_metadata.default" {
            return Ok(None);
        }
        let modules = super::place::modules(&node.metadata);
        let place = Place::of(&modules, &node.metadata);
        if let Some(kind) = target.strip_prefix("torch.ops.higher_order.") {
            return self.region(kind, node, (place, modules), names).map(Some);
        }
        let Some(operation) = operation(target) else {
            return Err(self.archive.error(Problem::Unsupported(target.to_owned(), place.to_string())));
        };
        let arguments =
            node.inputs.iter().map(|input| Ok((input.name.clone(), self.argument(&input.arg, names)?)));
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let Effects { writes, result, shared } = self.effects(&operation, &arguments, &place)?;
        let outputs = match (result, node.outputs.as_slice()) {
            (Some(meaning), [Value::AsTensor(name)]) => {
                names.insert(name.name.clone(), meaning);
                vec![Output::One(None)]
            }
            _ => {
                let outputs = node.outputs.iter().map(|output| self.output(graph, output, names));
                outputs.collect::<Result<Vec<_>>>()?
            }
        };
        self.note_views(&shared, &outputs);
        Ok(Some(Item { action: Action::Call { operation, arguments, outputs, writes }, place, modules }))
    }

    /// Resolves a part under a setting. Its graph has its own names.
    fn region(
        &mut self,
        kind: &str,
        node: &Node,
        (place, modules): (Place, Vec<(String, String)>),
        names: &mut Names,
    ) -> Result<Item> {
        let mut values = node.inputs.iter().map(|input| &input.arg);
        let mode = match kind {
            "wrap_with_set_grad_enabled" => match values.next() {
                Some(Value::AsBool(enabled)) => Mode::Gradients(*enabled),
                _ => return Err(self.invalid(format!("{kind} has no truth value"))),
            },
            "wrap_with_autocast" => {
                let (device, kind, enabled) = (values.next(), values.next(), values.next());
                let _cache = values.next();
                // The defaults are PyTorch's.
                let (processor, default) = match device {
                    Some(Value::AsString(device)) if device == "cpu" => (Processor::Cpu, Kind::BFloat16),
                    Some(Value::AsString(device)) if device == "cuda" => (Processor::Gpu, Kind::Half),
                    _ => (Processor::Other, Kind::Half),
                };
                let kind = match kind {
                    Some(Value::AsScalarType(number)) => dtype(*number).map(|(kind, _)| kind),
                    _ => Some(default),
                };
                let is_half = |kind: &Kind| matches!(kind, Kind::Half | Kind::BFloat16);
                let is_enabled = matches!(enabled, Some(Value::AsBool(true)));
                Mode::Autocast(processor, kind.filter(|kind| is_enabled && is_half(kind)))
            }
            _ => return Err(self.archive.error(Problem::Unsupported(kind.to_owned(), place.to_string()))),
        };
        let Some(Value::AsGraph { graph }) = values.next() else {
            return Err(self.invalid(format!("{kind} has no graph")));
        };
        let mut inner = Names::new();
        for (own, outer) in graph.inputs.iter().zip(values) {
            if let (Some(own), Some(outer)) = (name_of(own), name_of(outer)) {
                inner.insert(own.to_owned(), self.meaning(outer, names)?);
            }
        }
        let body = self.items(graph, &mut inner)?;
        let results = node.outputs.iter().flat_map(|output| match output {
            Value::AsTensors(list) => list.iter().map(|name| Some(name.name.as_str())).collect(),
            single => vec![name_of(single)],
        });
        for (own, outer) in graph.outputs.iter().zip(results) {
            if let (Some(own), Some(outer)) = (name_of(own), outer) {
                let meaning = self.meaning(own, &inner)?;
                names.insert(outer.to_owned(), meaning);
            }
        }
        Ok(Item { action: Action::Region { mode, body }, place, modules })
    }
}

/// Returns the operation of a target such as `torch.ops.aten.add.Tensor`, or of Python's on numbers.
fn operation(target: &str) -> Option<Operation> {
    let builtin = ["_operator.", "math.", "torch.sym_", "torch._sym_"];
    if let Some(path) = target.strip_prefix("torch.ops.") {
        let mut parts = path.splitn(3, '.');
        let (namespace, name) = (parts.next()?, parts.next()?);
        let overload = parts.next().filter(|overload| *overload != "default").unwrap_or_default();
        return Some(Operation { name: format!("{namespace}::{name}"), overload: overload.to_owned() });
    }
    let is_builtin = builtin.iter().any(|prefix| target.starts_with(prefix));
    is_builtin.then(|| Operation { name: target.to_owned(), overload: String::new() })
}
