//! Adapters of a program's weights: operations that [`super::graph`] would resolve if the model had them itself. Recomputation,
//! dropout by sample, autocast and predictions of memory treat them as any other.

use std::collections::HashMap;

use dtrain_torch_shim::program::{Argument, Operand, Operation, Output, Whole};

use super::graph::{Action, Item, Program, Role};
use super::modes::given;
use super::slots::operands;
use crate::error::ModelError;
use crate::layers::adapt;
use crate::lora::{Adapted, Lora};
use crate::registry::Registry;

/// An operation that applies a weight to an input.
pub(super) struct Product {
    pub(super) name: &'static str,
    /// The argument with the input.
    pub(super) input: &'static str,
    /// The argument with the weight.
    pub(super) weight: &'static str,
    /// Whether the weight is input x output.
    pub(super) is_transposed: bool,
}

impl Product {
    pub(super) fn is_convolution(&self) -> bool {
        self.name.starts_with("aten::conv")
    }
}

const fn product_of(name: &'static str, [input, weight]: [&'static str; 2], is_transposed: bool) -> Product {
    Product { name, input, weight, is_transposed }
}

/// Operations that apply a weight to an input.
pub(super) const PRODUCTS: [Product; 6] = [
    product_of("aten::linear", ["input", "weight"], false),
    product_of("aten::conv1d", ["input", "weight"], false),
    product_of("aten::conv2d", ["input", "weight"], false),
    product_of("aten::addmm", ["mat1", "mat2"], true),
    product_of("aten::mm", ["self", "mat2"], true),
    product_of("aten::matmul", ["self", "other"], true),
];

/// Adds adapters to the weights that the registry's settings choose. Those of a second program of the model are the same. Adapters
/// drop elements if the program `trains`.
///
/// # Errors
/// A weight that other operations use too, in any program of the model, or one of groups of channels or of a product with a factor.
pub(super) fn insert(program: &mut Program, registry: &mut Registry, trains: bool) -> Result<(), ModelError> {
    let Some(mut lora) = registry.lora.clone() else { return Ok(()) };
    if !trains {
        lora.dropout = 0.0;
    }
    let items = std::mem::take(&mut program.items);
    let mut insertion =
        Insertion { program, registry, lora, trains, fixed: HashMap::new(), others: Vec::new() };
    let items = insertion.items(items)?;
    let Insertion { others, registry, program, .. } = insertion;
    program.items = items;
    match others
        .into_iter()
        .find(|(weight, _)| registry.adapted().iter().any(|adapted| adapted.weight == *weight))
    {
        Some((weight, operation)) => {
            let reason = format!("{operation} uses it too, without an adapter");
            Err(ModelError::NotAdaptable { weight, reason })
        }
        None => Ok(()),
    }
}

struct Insertion<'a> {
    program: &'a mut Program,
    registry: &'a mut Registry,
    lora: Lora,
    trains: bool,
    /// The numbers of A and B by weight.
    fixed: HashMap<String, [usize; 2]>,
    /// Chosen weights that other operations use.
    others: Vec<(String, String)>,
}

impl Insertion<'_> {
    fn items(&mut self, items: Vec<Item>) -> Result<Vec<Item>, ModelError> {
        let mut all = Vec::with_capacity(items.len());
        for item in items {
            match item.action {
                Action::Region { mode, body } => {
                    let body = self.items(body)?;
                    all.push(Item { action: Action::Region { mode, body }, ..item });
                }
                Action::Call { .. } => self.call(item, &mut all)?,
            }
        }
        Ok(all)
    }

    /// Returns the name of a parameter that gets an adapter, if the operand is one.
    fn chosen(&self, argument: Option<&Argument>) -> Option<String> {
        let Some(Argument::Value(Operand::Fixed(number))) = argument else { return None };
        let (name, role) = self.program.about.get(*number)?;
        let is_weight = *role == Role::Parameter && self.program.fixed[*number].dim() >= 2;
        let entry = self.registry.get_tied(name).filter(|_| is_weight)?;
        (self.lora.chooses)(entry.name()).then(|| entry.name().to_owned())
    }

    fn call(&mut self, item: Item, all: &mut Vec<Item>) -> Result<(), ModelError> {
        let Action::Call { operation, arguments, .. } = &item.action else {
            all.push(item);
            return Ok(());
        };
        let product = PRODUCTS.iter().find(|product| product.name == operation.name);
        let adapted = product.and_then(|product| {
            let name = self.chosen(given(arguments, product.weight))?;
            let Some(Argument::Value(Operand::Slot(x))) = given(arguments, product.input) else {
                return None;
            };
            Some((name, *x, product.weight, product.is_transposed))
        });
        let Some((name, x, weight, is_transposed)) = adapted else {
            let operands = arguments.iter().flat_map(|(_, argument)| operands(argument));
            let chosen = operands.filter_map(|operand| self.chosen(Some(&Argument::Value(*operand))));
            let others: Vec<_> = chosen.map(|name| (name, operation.name.clone())).collect();
            self.others.extend(others);
            all.push(item);
            return Ok(());
        };
        if given(arguments, "alpha").is_some_and(|alpha| !is_one(alpha)) {
            let reason = "its product has a factor".to_owned();
            return Err(ModelError::NotAdaptable { weight: name, reason });
        }
        let groups = given(arguments, "groups");
        if groups.is_some_and(|groups| *groups != Argument::Int(Whole::Number(1))) {
            let reason = "its convolution has groups of channels".to_owned();
            return Err(ModelError::NotAdaptable { weight: name, reason });
        }
        let fixed = self.adapter(&name, is_transposed)?;
        self.insert(item, x, weight, fixed, all);
        Ok(())
    }

    /// Returns the numbers of A and B among the fixed tensors of the program.
    fn adapter(&mut self, name: &str, is_transposed: bool) -> Result<[usize; 2], ModelError> {
        if let Some(known) = self.fixed.get(name) {
            return Ok(*known);
        }
        let adapted = Adapted { weight: name.to_owned(), is_transposed };
        let names = adapted.names();
        if self.registry.get(&names[0]).is_none() {
            if !self.trains {
                let reason = "the program for training has no such product".to_owned();
                return Err(ModelError::NotAdaptable { weight: name.to_owned(), reason });
            }
            adapt(self.registry, adapted, self.lora.rank)?;
        }
        let mut number = |name: &String| {
            let tensor = self.registry.get(name).map(|entry| entry.tensor().shallow_clone())?;
            self.program.fixed.push(tensor);
            self.program.about.push((name.clone(), Role::Parameter));
            Some(self.program.fixed.len() - 1)
        };
        let missing = || ModelError::DuplicateName(name.to_owned());
        let numbers = [number(&names[0]).ok_or_else(missing)?, number(&names[1]).ok_or_else(missing)?];
        self.fixed.insert(name.to_owned(), numbers);
        Ok(numbers)
    }

    /// Adds the item of a product and its adapter: the product's result becomes that of their sum.
    fn insert(&mut self, mut item: Item, x: usize, weight: &str, [a, b]: [usize; 2], all: &mut Vec<Item>) {
        let (place, modules) = (item.place.clone(), item.modules.clone());
        let Action::Call { operation, arguments, outputs, .. } = &mut item.action else { return };
        let Some(Output::One(Some(sum))) = outputs.first().cloned() else { return };
        let is_convolution = operation.name.starts_with("aten::conv");
        let y = self.slot_like(sum);
        outputs[0] = Output::One(Some(y));
        let down = match is_convolution {
            true => {
                let mut down = arguments.clone();
                for (name, argument) in &mut down {
                    match name.as_str() {
                        "bias" => *argument = Argument::None,
                        name if name == weight => *argument = Argument::Value(Operand::Fixed(a)),
                        _ => {}
                    }
                }
                (operation.clone(), down)
            }
            false => product("linear", Operand::Slot(x), a),
        };
        let up_name = if is_convolution { &operation.name["aten::".len()..] } else { "linear" };
        let up_name = up_name.to_owned();
        all.push(item);
        let call = |(operation, arguments): Call, output| Item {
            action: Action::Call {
                operation,
                arguments,
                outputs: vec![Output::One(Some(output))],
                writes: Vec::new(),
            },
            place: place.clone(),
            modules: modules.clone(),
        };
        let (rank, dim) = (self.lora.rank, if is_convolution { Some(1) } else { None });
        let mut down = down;
        if self.lora.dropout > 0.0 {
            let dropped = self.slot_like(x);
            let arguments = vec![
                ("input".to_owned(), Argument::Value(Operand::Slot(x))),
                ("p".to_owned(), Argument::Float(self.lora.dropout)),
                ("train".to_owned(), Argument::Bool(true)),
            ];
            all.push(call((operation_of("dropout", ""), arguments), dropped));
            let is_input = |argument: &Argument| *argument == Argument::Value(Operand::Slot(x));
            down.1.iter_mut().filter(|(_, argument)| is_input(argument)).for_each(|(_, argument)| {
                *argument = Argument::Value(Operand::Slot(dropped));
            });
        }
        let low = self.slot_like(y);
        self.set_length(low, dim, rank);
        all.push(call(down, low));
        let high = self.slot_like(y);
        all.push(call(product(&up_name, Operand::Slot(low), b), high));
        let mut arguments = vec![
            ("self".to_owned(), Argument::Value(Operand::Slot(y))),
            ("other".to_owned(), Argument::Value(Operand::Slot(high))),
        ];
        arguments.push(("alpha".to_owned(), Argument::Float(self.lora.scale())));
        all.push(call((operation_of("add", "Tensor"), arguments), sum));
    }

    /// Adds a value of the shape and the samples of another.
    fn slot_like(&mut self, other: usize) -> usize {
        let slot = self.program.is_tensor.len();
        self.program.is_tensor.push(true);
        if let Some(shape) = self.program.shapes.get(&other).cloned() {
            self.program.shapes.insert(slot, shape);
        }
        if let Some(axis) = self.program.axes.get(&other).copied() {
            self.program.axes.insert(slot, axis);
        }
        slot
    }

    /// Sets the length of a dimension, by default the last, in a value's shape.
    fn set_length(&mut self, slot: usize, dim: Option<usize>, length: i64) {
        if let Some(shape) = self.program.shapes.get_mut(&slot)
            && let Some(own) =
                shape.len().checked_sub(1).map(|last| dim.unwrap_or(last)).and_then(|dim| shape.get_mut(dim))
        {
            *own = Some(length);
        }
    }
}

/// An operation and its arguments.
type Call = (Operation, Vec<(String, Argument)>);

fn operation_of(name: &str, overload: &str) -> Operation {
    Operation { name: format!("aten::{name}"), overload: overload.to_owned() }
}

/// Returns a product with a fixed tensor and without a bias.
fn product(name: &str, input: Operand, weight: usize) -> Call {
    let arguments = [("input", input), ("weight", Operand::Fixed(weight))];
    let arguments = arguments.map(|(name, operand)| (name.to_owned(), Argument::Value(operand)));
    (operation_of(name, ""), arguments.to_vec())
}

/// Returns whether a factor is 1.
pub(super) fn is_one(argument: &Argument) -> bool {
    matches!(argument, Argument::Int(Whole::Number(1))) || *argument == Argument::Float(1.0)
}
