//! Language modelling: cross-entropy of the next token, summed over tokens. The loss is in nats per token.

use dtrain_parts::Outputs;
use dtrain_parts::figures::perplexity;
use dtrain_parts::losses::tokens;
use dtrain_recipe::Recipe;
use serde::{Deserialize, Serialize};
use tch::{Device, Tensor};

use super::figures::{Figures, Given, Of};
use super::forward::Forward;
use super::network::{MAIN_OUTPUTS, Model, Network, Program, logits};
use super::predict::{Form, context_of};
use super::samples::text::{self, Text};
use super::samples::{self, Sets, Survey};
use super::{
    Batch, BuildContext, BuildTask, ByRows, BySums, Facts, Loss, Mode, Passed, Predict, RowFigures,
    SurveyContext, Task, TaskError, Totals, Unlabelled,
};
use crate::data::{CacheBudget, Vocabulary, token_bytes};
use crate::models::{Gpt, GptConfig};

/// The task `lm`. The loss is a sum over tokens; tokens of unreadable samples have weight 0.
pub struct Lm {
    model: Model<Gpt>,
    vocabulary: Vocabulary,
    /// Whether the samples are documents, so that not every token has a target.
    has_documents: bool,
    /// Whether the built-in network leaves out padding.
    trims: bool,
    figures: Figures,
    facts: Facts,
}

/// The text of a run, or a table of texts. A survey of a text has the form of earlier versions.
#[derive(Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum LmSurvey {
    /// Pieces of a long text.
    Text(Text),
    /// Samples with a text each.
    Samples(Survey),
}

impl LmSurvey {
    fn sets(self, recipe: &Recipe, context: usize, cache: CacheBudget) -> Result<Sets, TaskError> {
        let survey = match self {
            Self::Text(text) => Survey::Text(text),
            Self::Samples(survey) => survey,
        };
        samples::sets(recipe, survey, cache, || Ok(context))
    }
}

impl BuildTask for Lm {
    type Survey = LmSurvey;
    const DRAWS_ONLY_WEIGHTS: bool = true;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<LmSurvey, TaskError> {
        match recipe.is_text() {
            true => text::survey(recipe, context).map(LmSurvey::Text),
            false => samples::survey(recipe, 1, context).map(LmSurvey::Samples),
        }
    }

    fn inputs(inputs: Unlabelled) -> Result<LmSurvey, TaskError> {
        Ok(match inputs.samples() {
            None => LmSurvey::Text(Text::Unlabelled(Box::new(inputs))),
            Some(_) => LmSurvey::Samples(Survey::Unlabelled(Box::new(inputs))),
        })
    }

    fn build(
        recipe: &Recipe,
        survey: LmSurvey,
        BuildContext { registry, cache, .. }: BuildContext<'_>,
    ) -> Result<Self, TaskError> {
        if recipe.program().is_some() {
            let program = Program::load(recipe, registry)?;
            let context = program.context(recipe)?;
            let sets = survey.sets(recipe, context, cache)?;
            let model = Model::Exported(Box::new(exported(recipe, program, &sets, context)?));
            return Self::new(recipe, model, sets, registry.device());
        }
        let model = &recipe.model;
        // A loaded recipe has all sizes of its network.
        let context = model.context.unwrap_or(256);
        let sets = survey.sets(recipe, context, cache)?;
        let config = GptConfig {
            vocabulary: sets.classes_of_text(),
            context,
            width: model.width.unwrap_or(384),
            depth: model.depth.unwrap_or(6),
            heads: model.heads.unwrap_or(6),
        };
        let device = registry.device();
        Self::new(recipe, Model::Built(Gpt::new(config, registry)?), sets, device)
    }
}

fn exported(recipe: &Recipe, program: Program, sets: &Sets, context: usize) -> Result<Network, TaskError> {
    let network = program.bind(recipe, sets.train.fields(), &MAIN_OUTPUTS)?;
    let (context, vocabulary) = (context as i64, sets.classes_of_text() as i64);
    let expected = format!(
        "task = \"lm\" needs logits, N x {context} x V with V at least the vocabulary of {vocabulary} tokens; set model.output to \
         another output, name the tokenizer of the model, or import the model again with this vocabulary"
    );
    network.check_outputs(&expected, &|shape| match *shape {
        [None, t, v] => t.is_none_or(|t| t == context) && v.is_none_or(|v| v >= vocabulary),
        _ => false,
    })?;
    Ok(network)
}

/// Returns the figures of the recipe.
fn figures(recipe: &Recipe, model: &Model<Gpt>, sets: &Sets, device: Device) -> Result<Figures, TaskError> {
    let listed = &recipe.model.figures;
    if listed.is_empty() {
        return Ok(Figures::default());
    }
    let bytes =
        sets.vocabulary.as_ref().map_or(Err(String::new()), |of| token_bytes(of, sets.tokenizer.as_ref()));
    let bytes = bytes.map(|bytes| Tensor::f_from_slice(&bytes));
    let bytes = match bytes {
        Ok(bytes) => Ok(bytes?),
        Err(reason) => Err(reason),
    };
    let bytes = bytes.as_ref().map_err(String::clone);
    let logits = logits(vec![None, None, Some(sets.classes_of_text() as i64)]);
    let ports = model.ports(&logits, device);
    Figures::bind(listed, &Given { bytes, ..Given::of(ports, sets, Gpt::NO_TARGET) })
}

impl Task for Lm {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let readable = self.readable(batch)?;
        let sum = match &self.model {
            Model::Built(model) => {
                let [tokens, targets] = self.without_padding(batch, [batch.field("tokens")?, &readable])?;
                model.loss(&tokens, &targets, mode == Mode::Train)?
            }
            Model::Exported(network) => self.of_outputs(&network.outputs(batch, mode)?, &readable)?,
        };
        self.of_sum(sum, &readable, batch)
    }

    fn row_figures(&self) -> Option<&dyn RowFigures> {
        (!self.figures.is_empty()).then_some(self)
    }

    fn predict(&self) -> Option<&dyn Predict> {
        Some(self)
    }

    /// Returns the perplexity, exp(loss), and the loss in bits.
    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        let bits = match self.vocabulary {
            Vocabulary::Chars(_) => "bits_per_char",
            Vocabulary::Bytes => "bits_per_byte",
            Vocabulary::Tokenizer(_) | Vocabulary::Numbers(_) => "bits_per_token",
        };
        let [perplexity, of_token] = perplexity::metrics(totals.loss());
        vec![("perplexity", perplexity), (bits, of_token)]
    }
}

impl RowFigures for Lm {
    fn figures(&self) -> Vec<(&str, &dyn ByRows)> {
        self.figures.by_rows()
    }

    fn forward(&self, batch: &Batch) -> Result<Passed, TaskError> {
        let readable = self.readable(batch)?;
        let (outputs, sum) = match &self.model {
            Model::Built(_) if !self.figures.takes_outputs() => {
                (Vec::new(), self.loss(batch, Mode::Evaluate)?.sum)
            }
            Model::Built(model) => {
                let logits = model.forward(batch.field("tokens")?, false)?;
                let sum = tokens::cross_entropy(&logits, &readable, Gpt::NO_TARGET)?;
                (vec![logits], sum)
            }
            Model::Exported(network) => {
                let outputs = network.run_batch(batch, Mode::Evaluate)?;
                let sum = self.of_outputs(&network.chosen_of(&outputs, Mode::Evaluate), &readable)?;
                (outputs, sum)
            }
        };
        let of = Of { output: &|at| Ok(outputs[at].shallow_clone()), in_unit: None, nats: Some(&sum), batch };
        let (sums, rows) = (self.figures.add(&of)?, self.figures.rows(&of)?);
        let mut loss = self.of_sum(sum.shallow_clone(), &readable, batch)?;
        loss.sums = Tensor::f_cat(&[&loss.sums, &sums], 0)?;
        Ok(Passed { loss, values: Vec::new(), rows })
    }

    fn by_sums(&self) -> Option<BySums<'_>> {
        Some(BySums(&self.figures))
    }
}

impl Predict for Lm {
    fn form(&self) -> Form {
        Form::Tokens {
            vocabulary: self.vocabulary.clone(),
            context: context_of(self.facts.train.fields()),
            is_padded: matches!(self.model, Model::Exported(_)),
        }
    }

    fn network(&self) -> &dyn Forward {
        &self.model
    }

    fn output(&self) -> usize {
        match &self.model {
            Model::Built(_) => 0,
            Model::Exported(network) => network.main_at(Mode::Evaluate),
        }
    }

    fn values(&self, outputs: &[Tensor]) -> Result<Tensor, TaskError> {
        Ok(outputs[self.output()].shallow_clone())
    }
}

impl Lm {
    /// Returns the targets of the samples that could be read.
    fn readable(&self, batch: &Batch) -> Result<Tensor, TaskError> {
        Ok(tokens::readable(batch.field("targets")?, &batch.weights, Gpt::NO_TARGET)?)
    }

    fn of_outputs(&self, outputs: &Outputs, readable: &Tensor) -> Result<Tensor, TaskError> {
        Ok(outputs.loss(|logits| tokens::cross_entropy(logits, readable, Gpt::NO_TARGET))?)
    }

    fn of_sum(&self, sum: Tensor, readable: &Tensor, batch: &Batch) -> Result<Loss, TaskError> {
        match self.has_documents {
            true => Ok(tokens::loss_of_targets(sum, readable)?),
            false => Ok(tokens::loss(sum, &batch.weights, readable.size2()?.1)?),
        }
    }

    fn new(recipe: &Recipe, model: Model<Gpt>, sets: Sets, device: Device) -> Result<Self, TaskError> {
        let figures = figures(recipe, &model, &sets, device)?;
        let (classes, weight_per_sample) = (sets.classes_of_text(), sets.mean_targets);
        let facts = Facts { classes, weight_per_sample, ..sets.facts() };
        let mut facts = facts.with_model(&model, &figures.outputs(), |_| 1);
        let has_documents = recipe.has_documents() || recipe.has_texts();
        // A set of texts has a vocabulary.
        let vocabulary = sets.vocabulary.unwrap_or(Vocabulary::Bytes);
        // Packed samples have little padding, and the same work for every batch can be captured.
        let trims = has_documents && !recipe.data.pack && matches!(model, Model::Built(_));
        facts.is_capturable &= !trims;
        Ok(Self { model, vocabulary, has_documents, trims, figures, facts })
    }

    /// Returns the first columns of N x T values, up to the last token of the batch's longest document, and to a multiple of
    /// 8, which GPUs compute fastest. A token attends to none after it and draws by its own place, so the loss stays the same.
    fn without_padding(&self, batch: &Batch, values: [&Tensor; 2]) -> Result<[Tensor; 2], TaskError> {
        const MULTIPLE: usize = 8;
        let [tokens, targets] = values;
        let columns = match batch.longest.filter(|_| self.trims) {
            Some(longest) => longest.max(1).next_multiple_of(MULTIPLE) as i64,
            None => return Ok([tokens.shallow_clone(), targets.shallow_clone()]),
        };
        let columns = columns.min(tokens.size2()?.1);
        Ok([tokens.f_narrow(1, 0, columns)?, targets.f_narrow(1, 0, columns)?])
    }

    /// Returns the vocabulary of the model's tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.vocabulary
    }
}

#[cfg(test)]
mod tests;
