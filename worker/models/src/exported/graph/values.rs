//! The values of a program as arguments and results of its operations.

use dtrain_torch_shim::program::{Argument, Operand, Output, Whole};

use super::super::dtype::{dtype, is_whole, layout, memory_format};
use super::super::schema::{self, Graph, MaybeTensor, Value};
use super::{Meaning, Names, Resolver};
use crate::exported_error::Result;

impl Resolver<'_> {
    pub(super) fn meaning(&self, name: &str, names: &Names) -> Result<Meaning> {
        names
            .get(name)
            .copied()
            .ok_or_else(|| self.invalid(format!("the value `{name}` is used before it is computed")))
    }

    pub(super) fn operand(&self, name: &str, names: &Names) -> Result<Operand> {
        self.meaning(name, names).map(Operand::from)
    }

    fn slot(&self, name: &str, names: &Names) -> Result<usize> {
        match self.meaning(name, names)? {
            Meaning::Slot(slot) => Ok(slot),
            Meaning::Fixed(_) => {
                Err(self.invalid(format!("`{name}` is a tensor where a number is expected")))
            }
        }
    }

    pub(super) fn argument(&self, value: &Value, names: &Names) -> Result<Argument> {
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
            Value::AsGraph { .. } => return Err(self.invalid("a graph is an argument of an operation")),
        })
    }

    pub(super) fn output(&mut self, graph: &Graph, value: &Value, names: &mut Names) -> Result<Output> {
        let mut define = |name: &str, is_tensor: bool| {
            let slot = self.new_slot(is_tensor);
            if let Some(meta) = graph.tensor_values.get(name) {
                self.program.set_shape(slot, meta);
                if dtype(meta.dtype).is_some_and(|(kind, _)| is_whole(kind)) {
                    self.program.whole.insert(slot);
                }
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
}

/// Returns the name of a value, if it has one.
pub(super) fn name_of(value: &Value) -> Option<&str> {
    match value {
        Value::AsTensor(name) | Value::AsOptionalTensor(MaybeTensor::AsTensor(name)) => Some(&name.name),
        Value::AsSymInt(schema::Whole::AsName(name))
        | Value::AsSymFloat(schema::Real::AsName(name))
        | Value::AsSymBool(schema::Truth::AsName(name)) => Some(name),
        _ => None,
    }
}
