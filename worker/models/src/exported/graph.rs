//! The operations of a program with their values as numbers: what [`super::segments`] and [`super::prepare`] work on.

use std::collections::HashMap;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output, Whole};
use tch::Tensor;

use super::archive::Archive;
use super::dtype::{dtype, layout, memory_format};
use super::error::{Problem, Result};
use super::place::Place;
use super::schema::{self, Graph, InputSpec, MaybeTensor, Node, OutputSpec, Value};
use super::tensors::Tensors;

/// A setting of the thread for a part of a program.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    /// Whether operations are recorded for backward.
    Gradients(bool),
    /// Autocast in this dtype, or none.
    Autocast(Option<tch::Kind>),
}

/// An operation, or a part under a setting.
pub(super) enum Action {
    Call { operation: Operation, arguments: Vec<(String, Argument)>, outputs: Vec<Output> },
    Region { mode: Mode, body: Vec<Item> },
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
    pub operand: Option<Operand>,
    pub meta: Option<schema::TensorMeta>,
}

/// A program whose names are resolved.
#[derive(Default)]
pub(super) struct Program {
    pub items: Vec<Item>,
    pub inputs: Vec<Input>,
    pub returned: Vec<Returned>,
    /// Buffers that take the value of a result, in programs without in-place operations.
    pub mutations: Vec<(usize, usize)>,
    /// Parameters, buffers and constants that the program uses.
    pub fixed: Vec<Tensor>,
    /// Whether the tensor of this number is a buffer.
    pub is_buffer: Vec<bool>,
    /// Whether the value of this number is a tensor; otherwise it is a number.
    pub is_tensor: Vec<bool>,
    /// Shapes of values, by number; None for a length that depends on the batch.
    pub shapes: HashMap<usize, Vec<Option<i64>>>,
}

pub(super) fn shape(meta: &schema::TensorMeta) -> Vec<Option<i64>> {
    meta.sizes.iter().map(schema::Size::constant).collect()
}

struct Resolver<'a> {
    archive: &'a Archive,
    program: Program,
}

/// The names of one graph.
type Names = HashMap<String, Meaning>;

/// Resolves the names of a program with these tensors.
pub(super) fn resolve(archive: &Archive, module: &schema::GraphModule, tensors: &Tensors) -> Result<Program> {
    let mut resolver = Resolver { archive, program: Program::default() };
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

    fn inputs(&mut self, module: &schema::GraphModule, tensors: &Tensors, names: &mut Names) -> Result<()> {
        let metas = &module.graph.tensor_values;
        for spec in &module.signature.input_specs {
            match spec {
                InputSpec::Parameter { arg, parameter_name: of } => {
                    self.fix(arg, of, tensors, metas, false, names)?
                }
                InputSpec::Buffer { arg, buffer_name: of } => {
                    self.fix(arg, of, tensors, metas, true, names)?
                }
                InputSpec::TensorConstant { arg, tensor_constant_name: of } => {
                    self.fix(arg, of, tensors, metas, false, names)?;
                }
                InputSpec::UserInput { arg: Value::AsTensor(schema::Name { name }) } => {
                    let slot = self.new_slot(true);
                    let meta = metas.get(name).cloned();
                    if let Some(meta) = &meta {
                        self.program.shapes.insert(slot, shape(meta));
                    }
                    names.insert(name.clone(), Meaning::Slot(slot));
                    self.program.inputs.push(Input { slot, name: name.clone(), meta });
                }
                InputSpec::UserInput {
                    arg: Value::AsSymInt(_) | Value::AsSymFloat(_) | Value::AsSymBool(_),
                } => {
                    return Err(self.unfit(
                        "the program takes a number that changes, and dtrain gives tensors: make it a constant of the \
                         export, or a tensor",
                    ));
                }
                // Constants of the export are part of the graph.
                InputSpec::UserInput { .. } | InputSpec::ConstantInput(_) | InputSpec::Token(_) => {}
                InputSpec::CustomObj { custom_obj_name: name } => {
                    return Err(self.unfit(format!(
                        "the program uses the object `{name}` of a class that only Python knows: use plain tensors"
                    )));
                }
            }
        }
        Ok(())
    }

    /// Makes a parameter, buffer or constant a fixed tensor of the program.
    fn fix(
        &mut self,
        arg: &schema::Name,
        of: &str,
        tensors: &Tensors,
        metas: &HashMap<String, schema::TensorMeta>,
        is_buffer: bool,
        names: &mut Names,
    ) -> Result<()> {
        let Some(tensor) = tensors.get(of) else {
            return Err(self
                .archive
                .error(Problem::Tensor(of.to_owned(), "the archive has no data of it".to_owned())));
        };
        if let Some(meta) = metas.get(&arg.name) {
            let wanted: Option<Vec<i64>> = shape(meta).into_iter().collect();
            if wanted.as_ref().is_some_and(|wanted| *wanted != tensor.size()) {
                let (has, takes) = (tensor.size(), wanted.unwrap_or_default());
                let reason = format!("its data has the shape {has:?}, and the program takes {takes:?}");
                return Err(self.archive.error(Problem::Tensor(of.to_owned(), reason)));
            }
        }
        names.insert(arg.name.clone(), Meaning::Fixed(self.program.fixed.len()));
        self.program.fixed.push(tensor.shallow_clone());
        self.program.is_buffer.push(is_buffer);
        Ok(())
    }

    fn items(&mut self, graph: &Graph, names: &mut Names) -> Result<Vec<Item>> {
        let mut items = Vec::with_capacity(graph.nodes.len());
        for node in &graph.nodes {
            items.extend(self.item(graph, node, names)?);
        }
        Ok(items)
    }

    fn item(&mut self, graph: &Graph, node: &Node, names: &mut Names) -> Result<Option<Item>> {
        let place = Place::of(&node.metadata);
        let modules = super::place::modules(&node.metadata);
        let target = node.target.as_str();
        // It would compare dtypes and devices with those of the export.
        if target == "torch.ops.aten._assert_tensor_metadata.default" {
            return Ok(None);
        }
        if let Some(kind) = target.strip_prefix("torch.ops.higher_order.") {
            return self.region(kind, node, (place, modules), names).map(Some);
        }
        let Some(operation) = operation(target) else {
            return Err(self.archive.error(Problem::Unsupported(target.to_owned(), place.to_string())));
        };
        let arguments =
            node.inputs.iter().map(|input| Ok((input.name.clone(), self.argument(&input.arg, names)?)));
        let arguments = arguments.collect::<Result<Vec<_>>>()?;
        let (operation, arguments) = portable(operation, arguments);
        let outputs = node.outputs.iter().map(|output| self.output(graph, output, names));
        let outputs = outputs.collect::<Result<Vec<_>>>()?;
        Ok(Some(Item { action: Action::Call { operation, arguments, outputs }, place, modules }))
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
                let (_device, kind, enabled) = (values.next(), values.next(), values.next());
                let _cache = values.next();
                let kind = match kind {
                    Some(Value::AsScalarType(number)) => dtype(*number).map(|(kind, _)| kind),
                    _ => None,
                };
                Mode::Autocast(kind.filter(|_| matches!(enabled, Some(Value::AsBool(true)))))
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

    fn meaning(&self, name: &str, names: &Names) -> Result<Meaning> {
        names
            .get(name)
            .copied()
            .ok_or_else(|| self.invalid(format!("the value `{name}` is used before it is computed")))
    }

    fn operand(&self, name: &str, names: &Names) -> Result<Operand> {
        Ok(match self.meaning(name, names)? {
            Meaning::Slot(slot) => Operand::Slot(slot),
            Meaning::Fixed(number) => Operand::Fixed(number),
        })
    }

    fn slot(&self, name: &str, names: &Names) -> Result<usize> {
        match self.meaning(name, names)? {
            Meaning::Slot(slot) => Ok(slot),
            Meaning::Fixed(_) => {
                Err(self.invalid(format!("`{name}` is a tensor where a number is expected")))
            }
        }
    }

    fn argument(&self, value: &Value, names: &Names) -> Result<Argument> {
        let maybe = |maybe: &MaybeTensor| match maybe {
            MaybeTensor::AsTensor(name) => self.operand(&name.name, names),
            MaybeTensor::AsNone(_) => Ok(Operand::None),
        };
        let whole = |whole: &schema::Whole| {
            Ok(match whole {
                schema::Whole::AsInt(number) => Whole::Number(*number),
                schema::Whole::AsName(name) => Whole::Slot(self.slot(name, names)?),
            })
        };
        let number = |what: &str, number: Option<i64>| {
            let number = number
                .ok_or_else(|| self.unfit(format!("the program uses {what} that dtrain does not support")))?;
            Ok(Argument::Int(Whole::Number(number)))
        };
        Ok(match value {
            Value::AsNone(_) => Argument::None,
            Value::AsTensor(name) => Argument::Value(self.operand(&name.name, names)?),
            Value::AsTensors(list) => Argument::Values(
                list.iter().map(|name| self.operand(&name.name, names)).collect::<Result<_>>()?,
            ),
            Value::AsOptionalTensor(one) => Argument::Value(maybe(one)?),
            Value::AsOptionalTensors(list) => {
                Argument::Values(list.iter().map(maybe).collect::<Result<_>>()?)
            }
            Value::AsInt(number) => Argument::Int(Whole::Number(*number)),
            Value::AsInts(list) => Argument::Ints(list.iter().map(|number| Whole::Number(*number)).collect()),
            Value::AsFloat(real) => Argument::Float(real.0),
            Value::AsFloats(list) => Argument::Floats(list.iter().map(|real| real.0).collect()),
            Value::AsBool(value) | Value::AsSymBool(schema::Truth::AsBool(value)) => Argument::Bool(*value),
            Value::AsBools(list) => Argument::Bools(list.clone()),
            Value::AsString(text) => Argument::Text(text.clone()),
            Value::AsSymInt(one) => Argument::Int(whole(one)?),
            Value::AsSymInts(list) => Argument::Ints(list.iter().map(whole).collect::<Result<_>>()?),
            Value::AsSymFloat(schema::Real::AsFloat(real)) => Argument::Float(real.0),
            Value::AsSymFloat(schema::Real::AsName(name)) | Value::AsSymBool(schema::Truth::AsName(name)) => {
                Argument::Value(Operand::Slot(self.slot(name, names)?))
            }
            Value::AsScalarType(kind) => return number("a dtype", dtype(*kind).map(|(_, number)| number)),
            Value::AsMemoryFormat(format) => return number("a memory format", memory_format(*format)),
            Value::AsLayout(kind) => return number("a layout", layout(*kind)),
            Value::AsDevice(_) => Argument::Device,
            Value::AsGraph(_) => return Err(self.invalid("a graph is an argument of an operation")),
        })
    }

    fn output(&mut self, graph: &Graph, value: &Value, names: &mut Names) -> Result<Output> {
        let mut define = |name: &str, is_tensor: bool| {
            let slot = self.new_slot(is_tensor);
            if let Some(meta) = graph.tensor_values.get(name) {
                self.program.shapes.insert(slot, shape(meta));
            }
            names.insert(name.to_owned(), Meaning::Slot(slot));
            Some(slot)
        };
        Ok(match value {
            Value::AsNone(_) => Output::One(None),
            Value::AsTensors(list) => {
                Output::Many(list.iter().map(|name| define(&name.name, true)).collect())
            }
            Value::AsTensor(name) | Value::AsOptionalTensor(MaybeTensor::AsTensor(name)) => {
                Output::One(define(&name.name, true))
            }
            Value::AsOptionalTensor(MaybeTensor::AsNone(_)) => Output::One(None),
            Value::AsOptionalTensors(list) => Output::Many(
                list.iter()
                    .map(|one| match one {
                        MaybeTensor::AsTensor(name) => define(&name.name, true),
                        MaybeTensor::AsNone(_) => None,
                    })
                    .collect(),
            ),
            number => match name_of(number) {
                Some(name) => Output::One(define(name, false)),
                None => return Err(self.invalid("an operation returns a constant")),
            },
        })
    }

    fn outputs(&mut self, module: &schema::GraphModule, names: &Names) -> Result<()> {
        for spec in &module.signature.output_specs {
            match spec {
                OutputSpec::UserOutput { arg } => {
                    let name = match arg {
                        Value::AsTensor(name) => Some(&name.name),
                        _ => None,
                    };
                    let operand = name.map(|name| self.operand(name, names)).transpose()?;
                    let meta = name.and_then(|name| module.graph.tensor_values.get(name)).cloned();
                    self.program.returned.push(Returned { operand, meta });
                }
                OutputSpec::LossOutput { arg } => {
                    let operand = Some(self.operand(&arg.name, names)?);
                    let meta = module.graph.tensor_values.get(&arg.name).cloned();
                    self.program.returned.push(Returned { operand, meta });
                }
                OutputSpec::BufferMutation { arg, buffer_name } => {
                    let inputs = module.signature.input_specs.iter();
                    let mut placeholder = inputs.filter_map(|spec| match spec {
                        InputSpec::Buffer { arg, buffer_name: of } if of == buffer_name => Some(&arg.name),
                        _ => None,
                    });
                    let Some(Meaning::Fixed(buffer)) =
                        placeholder.next_back().and_then(|name| names.get(name).copied())
                    else {
                        return Err(self.invalid(format!("it changes the unknown buffer `{buffer_name}`")));
                    };
                    let value = self.slot(&arg.name, names)?;
                    self.program.mutations.push((buffer, value));
                }
                OutputSpec::Token(_) => {}
                OutputSpec::ParameterMutation { parameter_name: name } => {
                    return Err(self.unfit(format!(
                        "the program changes the parameter `{name}` itself: only the optimizer may change parameters"
                    )));
                }
                OutputSpec::UserInputMutation { user_input_name: name } => {
                    return Err(self.unfit(format!(
                        "the program changes its input `{name}` in place: change a copy instead"
                    )));
                }
                OutputSpec::GradientToParameter(_) | OutputSpec::GradientToUserInput(_) => {
                    return Err(self.unfit(
                        "the program contains its backward pass: export the forward pass by torch.export.export",
                    ));
                }
            }
        }
        Ok(())
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

/// Returns the name of a value, if it has one.
fn name_of(value: &Value) -> Option<&str> {
    match value {
        Value::AsTensor(name) | Value::AsOptionalTensor(MaybeTensor::AsTensor(name)) => Some(&name.name),
        Value::AsSymInt(schema::Whole::AsName(name))
        | Value::AsSymFloat(schema::Real::AsName(name))
        | Value::AsSymBool(schema::Truth::AsName(name)) => Some(name),
        _ => None,
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
