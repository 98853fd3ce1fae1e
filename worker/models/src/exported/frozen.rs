//! Weights of a program that are held in fewer bytes: operations that widen them take the places of the program's.

use std::collections::{HashMap, HashSet};

use dtrain_torch_shim::program::{Argument, Operand, Operation, Whole};

use super::adapters::{PRODUCTS, is_one};
use super::graph::{Action, Item, Program, Role};
use super::modes::given;
use super::schema::{Graph, GraphModule, InputSpec, Value};
use super::slots::operands;
use crate::error::ModelError;
use crate::registry::Registry;

/// A table of rows, by the name of its argument.
const TABLE: (&str, &str) = ("aten::embedding", "weight");

/// Returns the argument with the weight of an operation that can widen it.
fn weight_of(operation: &str) -> Option<&'static str> {
    let product = PRODUCTS.iter().find(|product| product.name == operation);
    product.map(|product| product.weight).or((operation == TABLE.0).then_some(TABLE.1))
}

/// Returns the parameters that are only weights of such operations, by their names in Python's module.
pub(super) fn weights(module: &GraphModule) -> HashSet<String> {
    let parameters = module.signature.input_specs.iter().filter_map(|spec| match spec {
        InputSpec::Parameter { arg, parameter_name } => Some((arg.name.as_str(), parameter_name.as_str())),
        _ => None,
    });
    let (mut used, mut others) = (HashSet::new(), HashSet::new());
    find(&module.graph, &parameters.collect(), &mut used, &mut others);
    used.difference(&others).map(|name| (*name).to_owned()).collect()
}

fn find<'a>(
    graph: &'a Graph,
    parameters: &HashMap<&'a str, &'a str>,
    used: &mut HashSet<&'a str>,
    others: &mut HashSet<&'a str>,
) {
    for node in &graph.nodes {
        let operation = node.target.strip_prefix("torch.ops.").map(|target| target.replacen('.', "::", 1));
        let operation = operation.as_deref().and_then(|target| target.strip_suffix(".default"));
        let weight = operation.and_then(weight_of);
        let mut inner = None;
        for input in &node.inputs {
            if let Value::AsGraph { graph } = &input.arg {
                inner = Some((graph, HashMap::new()));
                continue;
            }
            for name in names(&input.arg) {
                let parameter = parameters.get(name).copied();
                match &mut inner {
                    // The values behind a graph are its own, in order.
                    Some((graph, own)) => {
                        let position = node
                            .inputs
                            .iter()
                            .skip_while(|input| !matches!(input.arg, Value::AsGraph { .. }));
                        let position = position.skip(1).position(|other| std::ptr::eq(other, input));
                        let name = position.and_then(|at| names(graph.inputs.get(at)?).into_iter().next());
                        own.extend(name.zip(parameter));
                    }
                    None if weight == Some(input.name.as_str()) => used.extend(parameter),
                    None => others.extend(parameter),
                }
            }
        }
        if let Some((graph, own)) = inner {
            find(graph, &own, used, others);
        }
    }
    let returned = graph.outputs.iter().flat_map(names);
    others.extend(returned.filter_map(|name| parameters.get(name).copied()));
}

fn names(value: &Value) -> Vec<&str> {
    match value {
        Value::AsTensor(name) => vec![&name.name],
        Value::AsTensors(list) => list.iter().map(|name| name.name.as_str()).collect(),
        Value::AsOptionalTensor(maybe) => maybe.name().into_iter().collect(),
        Value::AsOptionalTensors(list) => list.iter().filter_map(|maybe| maybe.name()).collect(),
        _ => Vec::new(),
    }
}

/// Replaces the operations whose weights are held in fewer bytes.
///
/// # Errors
/// Such a weight is used by another operation.
pub(super) fn replace(program: &mut Program, registry: &Registry) -> Result<(), ModelError> {
    let mut held = HashMap::new();
    for number in 0..program.about.len() {
        let (name, role) = program.about[number].clone();
        let entry = registry.get_tied(&name).filter(|_| role == Role::Parameter);
        let Some(entry) = entry.filter(|entry| entry.frozen().is_some()) else { continue };
        let scale = entry.scale().map(|scale| {
            program.fixed.push(scale.shallow_clone());
            program.about.push((format!("{name}.scale"), Role::Constant));
            program.fixed.len() - 1
        });
        held.insert(number, scale);
    }
    if held.is_empty() {
        return Ok(());
    }
    let mut items = std::mem::take(&mut program.items);
    let replaced = replace_in(&mut items, &held);
    program.items = items;
    replaced.map_err(|(number, operation)| ModelError::NotFrozen {
        weight: program.about[number].0.clone(),
        operation,
    })
}

/// The numbers of weights that are held in fewer bytes, with those of their factors.
type Held = HashMap<usize, Option<usize>>;

fn replace_in(items: &mut [Item], held: &Held) -> Result<(), (usize, String)> {
    for item in items {
        match &mut item.action {
            Action::Region { body, .. } => replace_in(body, held)?,
            Action::Call { operation, arguments, .. } => {
                if let Some((new, given)) = replacement(operation, arguments, held) {
                    (*operation, *arguments) = (new, given);
                    continue;
                }
                let used = arguments.iter().flat_map(|(_, argument)| operands(argument));
                let is_held = |operand: &&Operand| matches!(operand, Operand::Fixed(number) if held.contains_key(number));
                if let Some(Operand::Fixed(number)) = used.clone().find(is_held) {
                    return Err((*number, operation.name.clone()));
                }
            }
        }
    }
    Ok(())
}

/// Returns the operation in place of one whose weight is held in fewer bytes.
fn replacement(
    operation: &Operation,
    arguments: &[(String, Argument)],
    held: &Held,
) -> Option<(Operation, Vec<(String, Argument)>)> {
    let given = |name: &str| given(arguments, name).cloned();
    let weight = weight_of(&operation.name)?;
    let Some(Argument::Value(Operand::Fixed(number))) = given(weight) else { return None };
    let scale = held.get(&number)?.map_or(Argument::None, |scale| Argument::Value(Operand::Fixed(scale)));
    let named = |name: &str, argument| (name.to_owned(), argument);
    let mut all = vec![named("weight", Argument::Value(Operand::Fixed(number))), named("scale", scale)];
    let new = if operation.name == TABLE.0 {
        all.push(named("indices", given("indices")?));
        "frozen_embedding"
    } else {
        let product = PRODUCTS.iter().find(|product| product.name == operation.name)?;
        // Other factors than 1 are not those of a layer.
        let is_plain = |name| given(name).is_none_or(|factor| is_one(&factor));
        if !is_plain("beta") || !is_plain("alpha") {
            return None;
        }
        all.push(named("input", given(product.input)?));
        let bias = if product.name == "aten::addmm" { given("self") } else { given("bias") };
        all.push(named("bias", bias.unwrap_or(Argument::None)));
        if product.is_convolution() {
            for (name, usual) in [("stride", 1), ("padding", 0), ("dilation", 1)] {
                let usual = || Argument::Ints(vec![Whole::Number(usual)]);
                all.push(named(name, given(name).unwrap_or_else(usual)));
            }
            all.push(named("groups", given("groups").unwrap_or(Argument::Int(Whole::Number(1)))));
            "frozen_convolution"
        } else {
            all.push(named("transposed", Argument::Bool(product.is_transposed)));
            "frozen_linear"
        }
    };
    Some((Operation { name: format!("dtrain::{new}"), overload: String::new() }, all))
}
