//! The predictions of a program that returns its loss: those of the output that a figure or a loss compares with a field of the data,
//! else of an output with a usual name. Other outputs are written as they are.

use dtrain_parts::losses::regression::map_of;
use dtrain_recipe::{ColumnKind, Recipe, Target};
use tch::{Kind, TchError, Tensor};

use super::figures::{compared, known_classes, planes};
use super::network::{MAIN_OUTPUTS, enlarges};
use super::predict::{Form, class_names, columns, context_of, probabilities};
use super::samples::{Sets, mask_rule};
use crate::data::FieldKind;
use crate::models::Port;
use crate::tensors::is_floating;

/// Makes the values of a form from an output, with the height and width of the field.
type Values = fn(&Tensor, [i64; 2]) -> Result<Tensor, TchError>;

/// The output that is predicted.
pub(super) struct Predicted {
    /// Its number in evaluation.
    pub(super) at: usize,
    pub(super) form: Form,
    values: Values,
    size: [i64; 2],
}

/// The facts that decide which output is predicted.
struct Choice<'a> {
    recipe: &'a Recipe,
    /// The outputs in evaluation.
    ports: &'a [Port],
    sets: &'a Sets,
}

impl Predicted {
    /// Chooses an output; None if none has the shape of a target.
    pub(super) fn of(recipe: &Recipe, ports: &[Port], sets: &Sets) -> Option<Self> {
        let choice = Choice { recipe, ports, sets };
        if recipe.target() == Some(Target::Tokens) {
            return choice.tokens();
        }
        let of_figures = recipe.model.figures.iter().filter_map(compared);
        let mut stated: Vec<(String, String)> =
            of_figures.map(|(output, field)| (output.to_owned(), field.to_owned())).collect();
        for number in 0..recipe.stages() {
            let loss = recipe.of_stage(number).model.loss;
            let of_terms =
                loss.terms().iter().filter_map(|term| term.output.clone().zip(term.target.clone()));
            stated.extend(of_terms);
        }
        let targets = choice.targets();
        let usual = MAIN_OUTPUTS.iter().flat_map(|output| targets.iter().map(move |field| (*output, *field)));
        let stated = stated.iter().map(|(output, field)| (output.as_str(), field.as_str()));
        stated.chain(usual).find_map(|(output, field)| choice.of_field(output, field))
    }

    /// Returns the values of the form, from all outputs.
    pub(super) fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TchError> {
        (self.values)(&outputs[self.at], self.size)
    }
}

impl<'a> Choice<'a> {
    fn at(&self, output: &str) -> Option<usize> {
        self.ports.iter().position(|port| port.name == output && is_floating(port.kind))
    }

    /// Returns the logits of tokens.
    fn tokens(&self) -> Option<Predicted> {
        let vocabulary = self.sets.vocabulary.clone()?;
        let of_tokens = |at: &usize| matches!(self.ports[*at].shape[..], [None, _, _]);
        let at = MAIN_OUTPUTS.iter().filter_map(|output| self.at(output)).find(of_tokens)?;
        let context = context_of(self.sets.train.fields());
        let form = Form::Tokens { vocabulary, context, is_padded: true };
        Some(Predicted { at, form, values: as_it_is, size: [0, 0] })
    }

    /// Returns the field of the target; without one, `label`, the only mask and the only map.
    fn targets(&self) -> Vec<&'a str> {
        let only = |kind: FieldKind| {
            let mut all = self.sets.train.fields().iter();
            let mut next = || all.find(|field| field.kind == kind && field.shape.len() == 2);
            let first = next()?;
            next().is_none().then_some(&*first.name)
        };
        match self.recipe.target() {
            _ if self.recipe.data.episodes.is_some() => vec!["query_label"],
            Some(Target::Class | Target::Classes) => vec!["label"],
            Some(Target::Mask) => vec!["mask"],
            Some(Target::Map) => vec!["map"],
            Some(Target::Vector) => vec!["targets"],
            Some(Target::Tokens) | None => {
                ["label"].into_iter().chain(only(FieldKind::I64)).chain(only(FieldKind::F32)).collect()
            }
        }
    }

    /// Returns what this output predicts of a field; None if it has not the shape for it.
    fn of_field(&self, output: &str, field: &str) -> Option<Predicted> {
        let at = self.at(output)?;
        let field = self.sets.train.fields().iter().find(|known| known.name == field)?;
        let known = known_classes(&field.name, self.sets);
        let enough = |k: i64| known.is_none_or(|known| k >= known as i64);
        let data = &self.recipe.data;
        let (shape, size) = (&self.ports[at].shape[..], field.shape.as_slice());
        let (form, values): (_, Values) = match (field.kind, size, shape) {
            (FieldKind::I64, &[queries], &[None, q, Some(ways)])
                if data.episodes.as_ref().is_some_and(|shape| shape.n_way as i64 == ways)
                    && q.is_none_or(|q| q == queries as i64) =>
            {
                (Form::Classes(class_names(&self.sets.class_names, ways as usize)), of_queries)
            }
            (FieldKind::I64, [], &[None, k]) if known.is_some() && k.is_none_or(enough) => {
                let outputs = k.map_or(known.unwrap_or(0), |k| k as usize);
                (Form::Classes(class_names(self.classes(&field.name), outputs)), of_classes)
            }
            (kind, &[height, width], &[None, h, w] | &[None, _, h, w])
                if enlarges(h, height) && enlarges(w, width) =>
            {
                let planes_of_each = if shape.len() == 3 { Some(1) } else { shape[1] };
                match (kind, planes_of_each) {
                    (FieldKind::F32, Some(1)) => {
                        let [black, white] = [data.target_offset, data.target_scale].map(|of| of as f32);
                        (Form::Maps { black, white }, of_maps)
                    }
                    (FieldKind::I64, k) if k.is_none_or(|k| k == 1 || enough(k)) => {
                        let classes = k.map_or(known.unwrap_or(0), |k| k as usize).max(2);
                        let ignore = mask_rule(self.recipe).ignore as u16;
                        (Form::Masks { classes, ignore }, of_masks)
                    }
                    _ => return None,
                }
            }
            (FieldKind::F32, &[count], &[None] | &[None, _])
                if shape.get(1).copied().unwrap_or(Some(1)).is_none_or(|k| k == count as i64) =>
            {
                let values = if known.is_some() { of_sets } else { of_numbers };
                (Form::Numbers(self.numbers(&field.name, count)), values)
            }
            _ => return None,
        };
        let size = if let [height, width] = *size { [height as i64, width as i64] } else { [0, 0] };
        Some(Predicted { at, form, values, size })
    }

    /// Returns the names of the classes of a field.
    fn classes(&self, field: &str) -> &'a [String] {
        self.sets.other_classes.get(field).unwrap_or(&self.sets.class_names)
    }

    /// Returns the names of the numbers, or classes, of a field: those of its columns, else their numbers.
    fn numbers(&self, field: &str, count: usize) -> Vec<String> {
        let of_table = columns(self.recipe).into_iter().find(|columns| columns.field == field);
        let of_table = of_table.filter(|columns| columns.kind == ColumnKind::Numbers);
        let names = match (of_table, known_classes(field, self.sets)) {
            (_, Some(_)) => self.classes(field).to_vec(),
            (Some(columns), None) if columns.columns.len() == count => columns.columns,
            (_, None) => Vec::new(),
        };
        class_names(&names, count)
    }
}

fn as_it_is(output: &Tensor, _: [i64; 2]) -> Result<Tensor, TchError> {
    Ok(output.shallow_clone())
}

fn of_classes(logits: &Tensor, _: [i64; 2]) -> Result<Tensor, TchError> {
    probabilities(logits)
}

/// The classes of an episode's queries, N x Q x n.
fn of_queries(logits: &Tensor, _: [i64; 2]) -> Result<Tensor, TchError> {
    logits.f_softmax(-1, Kind::Float)
}

fn of_masks(logits: &Tensor, size: [i64; 2]) -> Result<Tensor, TchError> {
    probabilities(&planes(logits, size)?)
}

fn of_maps(output: &Tensor, [height, width]: [i64; 2]) -> Result<Tensor, TchError> {
    map_of(output, (height, width))
}

fn of_numbers(output: &Tensor, _: [i64; 2]) -> Result<Tensor, TchError> {
    output.f_to_kind(Kind::Float)?.f_reshape([output.size()[0], -1])
}

/// Each class of a set has its own probability.
fn of_sets(logits: &Tensor, size: [i64; 2]) -> Result<Tensor, TchError> {
    of_numbers(logits, size)?.f_sigmoid()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::samples::{Survey, sets};
    use super::*;
    use crate::data::CacheBudget;

    /// Returns the name of the output that is predicted, and its form. `outputs`: the shapes after N.
    fn found(data: &str, model: &str, outputs: &[(&str, &[i64])]) -> Option<(String, Form)> {
        let text = format!(
            "task = \"program\"\n[data]\nkind = \"generated\"\nimage_size = 8\ntrain_samples = 4\ntest_samples = 4\n{data}\n\
             [model]\nfile = \"model.pt2\"\n{model}\n[train]\nsteps = 1\n"
        );
        let recipe = Recipe::parse("test", &text, &[]).unwrap();
        let sets = sets(&recipe, Survey::Generated, CacheBudget::default(), || Ok(0)).unwrap();
        let shape = |lengths: &[i64]| [None].into_iter().chain(lengths.iter().map(|of| Some(*of))).collect();
        let port = |(name, lengths): &(&str, &[i64])| Port {
            name: (*name).to_owned(),
            kind: Kind::Float,
            shape: shape(lengths),
        };
        let ports: Vec<Port> = outputs.iter().map(port).collect();
        Predicted::of(&recipe, &ports, &sets).map(|found| (ports[found.at].name.clone(), found.form))
    }

    #[test]
    fn an_output_is_predicted_in_the_form_of_its_target() {
        let masks = |classes| Form::Masks { classes, ignore: 255 };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let iou = "figures = [{ name = \"iou\", output = \"drawn\", classes = \"mask\" }]";
        let mae = "figures = [{ name = \"mae\", output = \"height\", target = \"map\" }]";
        let mse = "loss = { mse = { output = \"sizes\", target = \"targets\" } }";
        let (mask, class) = ("target = \"mask\"\nclasses = 3", "classes = 3");
        let (map, vector) = ("target = \"map\"", "target = \"vector\"");
        let loss: (&str, &[i64]) = ("loss", &[]);
        for (data, model, outputs, expected) in [
            (mask, "", [loss, ("logits", &[3, 4, 4])], Some(("logits", masks(3)))),
            (mask, "", [loss, ("out", &[8, 8])], Some(("out", masks(2)))),
            (mask, iou, [("logits", &[3, 8, 8]), ("drawn", &[1, 8, 8])], Some(("drawn", masks(2)))),
            (mask, "", [loss, ("logits", &[2, 8, 8])], None),
            (mask, "", [loss, ("logits", &[3, 16, 16])], None),
            (
                map,
                mae,
                [loss, ("height", &[1, 4, 4])],
                Some(("height", Form::Maps { black: 0.0, white: 1.0 })),
            ),
            (map, "", [loss, ("height", &[1, 4, 4])], None),
            (vector, mse, [loss, ("sizes", &[2])], Some(("sizes", Form::Numbers(names(&["0", "1"]))))),
            (class, "", [loss, ("logits", &[3])], Some(("logits", Form::Classes(names(&["0", "1", "2"]))))),
            (class, "", [loss, ("logits", &[2])], None),
        ] {
            let expected = expected.map(|(name, form)| (name.to_owned(), form));
            assert_eq!(found(data, model, &outputs), expected, "{data} {model} {outputs:?}");
        }
    }
}
