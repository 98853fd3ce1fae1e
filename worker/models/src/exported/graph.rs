//! The operations of a program with their values as numbers: what [`super::segments`] and [`super::prepare`] work on.

mod signature;
mod values;

use std::collections::HashMap;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output};
use tch::{Kind, Tensor};

use self::values::name_of;
use super::archive::Archive;
use super::dtype::dtype;
use super::error::{Problem, Result};
use super::place::Place;
use super::schema::{self, Graph, Node, Value};
use super::slots::operands;
use super::tensors::Tensors;

/// Operations whose results are, or may be, views of their first argument.
const VIEWS: [&str; 27] = [
    "alias",
    "chunk",
    "contiguous",
    "detach",
    "diagonal",
    "expand",
    "expand_as",
    "flatten",
    "movedim",
    "narrow",
    "permute",
    "reshape",
    "select",
    "slice",
    "split",
    "split_with_sizes",
    "squeeze",
    "swapaxes",
    "swapdims",
    "t",
    "transpose",
    "unbind",
    "unflatten",
    "unfold",
    "unsqueeze",
    "view",
    "view_as",
];

/// A setting of the thread for a part of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// Whether operations are recorded for backward.
    Gradients(bool),
    /// Autocast in this dtype, or none.
    Autocast(Option<Kind>),
}

/// An operation, or a part under a setting.
pub(super) enum Action {
    /// `writes` are the values that the call changes in place.
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

/// What a name of the program stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Meaning {
    Slot(usize),
    Fixed(usize),
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
    /// The values and fixed tensors of which values are views.
    pub bases: HashMap<usize, Operand>,
    /// Parameters, buffers and constants that the program uses.
    pub fixed: Vec<Tensor>,
    /// Whether the tensor of this number is a buffer.
    pub is_buffer: Vec<bool>,
    /// Whether the value of this number is a tensor; otherwise it is a number.
    pub is_tensor: Vec<bool>,
    /// Shapes of values, by number; None for a length that depends on the batch.
    pub shapes: HashMap<usize, Vec<Option<i64>>>,
}

impl Program {
    /// Returns the values that the end of a run needs: results, and new values of buffers.
    pub(super) fn kept(&self) -> impl Iterator<Item = usize> + '_ {
        let returned = self.returned.iter().filter_map(|returned| returned.operand);
        let all = returned.chain(self.mutations.iter().map(|(_, value)| *value));
        all.filter_map(|meaning| match meaning {
            Meaning::Slot(slot) => Some(slot),
            Meaning::Fixed(_) => None,
        })
    }

    /// Returns what an operand is a view of, or itself.
    pub(super) fn base(&self, operand: Operand) -> Operand {
        match operand {
            Operand::Slot(slot) => self.bases.get(&slot).copied().unwrap_or(operand),
            _ => operand,
        }
    }

    /// Returns the buffer that an operand is or views.
    pub(super) fn buffer(&self, operand: Operand) -> Option<usize> {
        match self.base(operand) {
            Operand::Fixed(number) if self.is_buffer[number] => Some(number),
            _ => None,
        }
    }
}

pub(super) fn shape(meta: &schema::TensorMeta) -> Vec<Option<i64>> {
    meta.sizes.iter().map(schema::Size::constant).collect()
}

struct Resolver<'a> {
    archive: &'a Archive,
    program: Program,
    /// The numbers of buffers by name.
    buffers: HashMap<String, usize>,
}

/// The names of one graph.
type Names = HashMap<String, Meaning>;

/// Resolves the names of a program with these tensors.
pub(super) fn resolve(archive: &Archive, module: &schema::GraphModule, tensors: &Tensors) -> Result<Program> {
    let mut resolver = Resolver { archive, program: Program::default(), buffers: HashMap::new() };
    let mut names = Names::new();
    resolver.inputs(module, tensors, &mut names)?;
    resolver.program.items = resolver.items(&module.graph, &mut names)?;
    resolver.outputs(module, &names)?;
    Ok(resolver.program)
}

impl Resolver<'_> {
    fn invalid(&self, reason: impl Into<String>) -> super::error::ExportedError {
        self.archive.error(Problem::Graph(reason.into()))
    }

    fn unfit(&self, reason: impl Into<String>) -> super::error::ExportedError {
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
        let is_view = VIEWS.contains(&operation.name.strip_prefix("aten::").unwrap_or_default());
        let (operation, arguments) = portable(operation, arguments);
        let (writes, is_result) = self.writes(&operation, &arguments, &place)?;
        let outputs = match (is_result, node.outputs.as_slice()) {
            (Some(meaning), [Value::AsTensor(name)]) => {
                names.insert(name.name.clone(), meaning);
                vec![Output::One(None)]
            }
            _ => {
                let outputs = node.outputs.iter().map(|output| self.output(graph, output, names));
                outputs.collect::<Result<Vec<_>>>()?
            }
        };
        if is_view {
            self.note_views(&arguments, &outputs);
        }
        Ok(Some(Item { action: Action::Call { operation, arguments, outputs, writes }, place, modules }))
    }

    /// Returns the values that a call changes in place, without views, and the one that is its result too.
    fn writes(
        &self,
        operation: &Operation,
        arguments: &[(String, Argument)],
        place: &Place,
    ) -> Result<(Vec<Operand>, Option<Meaning>)> {
        let (mut writes, mut is_result) = (Vec::new(), None);
        for (name, argument) in arguments {
            let operands = operands(argument);
            if operands.is_empty() {
                continue;
            }
            let traits = operation.traits(name).map_err(|source| {
                let (operation, place) = (operation.name.clone(), place.to_string());
                self.archive.error(Problem::Operation { operation, place, source })
            })?;
            if !traits.writes {
                continue;
            }
            writes.extend(operands.iter().map(|operand| self.program.base(*operand)));
            is_result = match argument {
                Argument::Value(Operand::Slot(slot)) if traits.returns_it => Some(Meaning::Slot(*slot)),
                Argument::Value(Operand::Fixed(number)) if traits.returns_it => Some(Meaning::Fixed(*number)),
                _ => is_result,
            };
        }
        Ok((writes, is_result))
    }

    /// Records of what the results are views.
    fn note_views(&mut self, arguments: &[(String, Argument)], outputs: &[Output]) {
        let Some((_, Argument::Value(viewed))) = arguments.first() else { return };
        let base = self.program.base(*viewed);
        for slot in outputs.iter().flat_map(Output::slots) {
            self.program.bases.insert(slot, base);
        }
    }

    /// Resolves a part under a setting. Its graph has names of its own.
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
                let kind = match (kind, device) {
                    (Some(Value::AsScalarType(number)), _) => dtype(*number).map(|(kind, _)| kind),
                    // PyTorch's defaults.
                    (_, Some(Value::AsString(device))) if device == "cpu" => Some(Kind::BFloat16),
                    _ => Some(Kind::Half),
                };
                let is_half = |kind: &Kind| matches!(kind, Kind::Half | Kind::BFloat16);
                let is_enabled = matches!(enabled, Some(Value::AsBool(true)));
                Mode::Autocast(kind.filter(|kind| is_enabled && is_half(kind)))
            }
            _ => return Err(self.archive.error(Problem::Unsupported(kind.to_owned(), place.to_string()))),
        };
        let Some(Value::AsGraph(schema::GraphValue { graph })) = values.next() else {
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

/// Replaces an operation that depends on the memory layouts of the device of the export: another device may have
/// computed a view's source in another order, and `reshape` then copies it.
fn portable(
    operation: Operation,
    arguments: Vec<(String, Argument)>,
) -> (Operation, Vec<(String, Argument)>) {
    if operation.name != "aten::view" || !operation.overload.is_empty() {
        return (operation, arguments);
    }
    let rename = |(name, argument)| (if name == "size" { "shape".to_owned() } else { name }, argument);
    let reshape = Operation { name: "aten::reshape".to_owned(), overload: String::new() };
    (reshape, arguments.into_iter().map(rename).collect())
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
