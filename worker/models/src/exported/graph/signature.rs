//! The inputs and results of a program.

use std::collections::{HashMap, HashSet};

use tch::Tensor;

use super::super::schema::{self, InputSpec, OutputSpec, Value};
use super::{Input, Meaning, Names, Resolver, Returned, Role, shape};
use crate::exported_error::{Problem, Result};

impl Resolver<'_> {
    pub(super) fn inputs(&mut self, module: &schema::GraphModule, names: &mut Names) -> Result<()> {
        let metas = &module.graph.tensor_values;
        let changed = module.signature.output_specs.iter().filter_map(|spec| match spec {
            OutputSpec::BufferMutation { buffer_name, .. } => Some(buffer_name.as_str()),
            _ => None,
        });
        let changed: HashSet<&str> = changed.collect();
        for spec in &module.signature.input_specs {
            if let InputSpec::UserInput { arg: Value::AsTensor(schema::Name { name }) } = spec {
                metas.get(name).into_iter().for_each(|meta| self.program.symbols.add(&meta.sizes));
            }
        }
        for spec in &module.signature.input_specs {
            match spec {
                InputSpec::Parameter { arg, parameter_name: of } => {
                    self.fix(arg, of, metas, Role::Parameter, names)?;
                }
                InputSpec::Buffer { arg, buffer_name: of } => {
                    let number = self.fix(arg, of, metas, Role::Buffer, names)?;
                    self.buffers.insert(of.clone(), number);
                    if changed.contains(of.as_str()) {
                        let slot = self.new_slot(true);
                        self.program.copies.push((slot, number));
                        names.insert(arg.name.clone(), Meaning::Slot(slot));
                    }
                }
                InputSpec::TensorConstant { arg, tensor_constant_name: of } => {
                    self.fix(arg, of, metas, Role::Constant, names)?;
                }
                InputSpec::UserInput { arg: Value::AsTensor(schema::Name { name }) } => {
                    let slot = self.new_slot(true);
                    let meta = metas.get(name).cloned();
                    if let Some(meta) = &meta {
                        self.program.set_shape(slot, meta);
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

    /// Makes a parameter, buffer or constant a fixed tensor of the program. Returns its number.
    fn fix(
        &mut self,
        arg: &schema::Name,
        of: &str,
        metas: &HashMap<String, schema::TensorMeta>,
        role: Role,
        names: &mut Names,
    ) -> Result<usize> {
        let Some(tensor) = self.tensors.get(of) else {
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
        // Two names of one buffer are one: a write through either is seen through both.
        let same = |(known, other): (&(String, Role), &Tensor)| {
            known.1 == Role::Buffer && tensor.numel() > 0 && other.is_set_to(tensor)
        };
        let known = self.program.about.iter().zip(&self.program.fixed).position(same);
        if let Some(number) = known.filter(|_| role == Role::Buffer) {
            names.insert(arg.name.clone(), Meaning::Fixed(number));
            return Ok(number);
        }
        let number = self.program.fixed.len();
        names.insert(arg.name.clone(), Meaning::Fixed(number));
        self.program.fixed.push(tensor.shallow_clone());
        self.program.about.push((of.to_owned(), role));
        Ok(number)
    }

    pub(super) fn outputs(&mut self, module: &schema::GraphModule, names: &Names) -> Result<()> {
        for spec in &module.signature.output_specs {
            match spec {
                OutputSpec::UserOutput { arg } => {
                    let name = match arg {
                        Value::AsTensor(name) => Some(&name.name),
                        _ => None,
                    };
                    let operand = name.map(|name| self.meaning(name, names)).transpose()?;
                    let meta = name.and_then(|name| module.graph.tensor_values.get(name)).cloned();
                    self.program.returned.push(Returned { operand, meta });
                }
                OutputSpec::LossOutput { arg } => {
                    let operand = Some(self.meaning(&arg.name, names)?);
                    let meta = module.graph.tensor_values.get(&arg.name).cloned();
                    self.program.returned.push(Returned { operand, meta });
                }
                OutputSpec::BufferMutation { arg, buffer_name } => {
                    let Some(&buffer) = self.buffers.get(buffer_name) else {
                        return Err(self.invalid(format!("it changes the unknown buffer `{buffer_name}`")));
                    };
                    self.check_write(buffer, "the program")?;
                    let value = self.meaning(&arg.name, names)?;
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
