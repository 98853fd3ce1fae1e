//! Language modelling: cross-entropy of the next token, summed over tokens. The loss is in nats per token.

use std::sync::Arc;

use dtrain_recipe::Recipe;
use tch::{Kind, Reduction, TchError, Tensor};

use super::network::{MAIN_OUTPUTS, Model, Network, Program};
use super::samples::text::{self, Text, windows};
use super::{Batch, BuildContext, BuildTask, Facts, Loss, Mode, SurveyContext, Task, TaskError, Totals};
use crate::data::{Dataset, TextWindows, Vocabulary};
use crate::models::{Gpt, GptConfig};

/// The task `lm`. The loss is a sum over tokens; tokens of unreadable samples have weight 0.
pub struct Lm {
    model: Model<Gpt>,
    text: Arc<TextWindows>,
    facts: Facts,
}

impl BuildTask for Lm {
    type Survey = Text;
    const DRAWS_ONLY_WEIGHTS: bool = true;

    fn survey(recipe: &Recipe, _: &mut SurveyContext<'_>) -> Result<Text, TaskError> {
        text::survey(recipe)
    }

    fn build(
        recipe: &Recipe,
        text: Text,
        BuildContext { registry, .. }: BuildContext<'_>,
    ) -> Result<Self, TaskError> {
        if recipe.program().is_some() {
            let program = Program::load(recipe, registry)?;
            let (train, test) = windows(recipe, text, program.context(recipe)?)?;
            let model = Model::Exported(Box::new(exported(recipe, program, &train)?));
            return Ok(Self::new(model, train, test));
        }
        let model = &recipe.model;
        // A loaded recipe has all sizes of its network.
        let context = model.context.unwrap_or(256);
        let (train, test) = windows(recipe, text, context)?;
        let config = GptConfig {
            vocabulary: train.corpus().vocabulary.size(),
            context,
            width: model.width.unwrap_or(384),
            depth: model.depth.unwrap_or(6),
            heads: model.heads.unwrap_or(6),
        };
        Ok(Self::new(Model::Built(Gpt::new(config, registry)?), train, test))
    }
}

fn exported(recipe: &Recipe, program: Program, train: &TextWindows) -> Result<Network, TaskError> {
    let network = program.bind(recipe, train.fields(), &MAIN_OUTPUTS)?;
    let (context, vocabulary) = (train.context() as i64, train.corpus().vocabulary.size() as i64);
    let expected = format!(
        "task = \"lm\" needs logits, N x {context} x V with V at least the vocabulary of {vocabulary} tokens; set model.output to \
         another output, or import the model again with this vocabulary"
    );
    network.check_outputs(&expected, &|shape| match *shape {
        [None, t, v] => t.is_none_or(|t| t == context) && v.is_none_or(|v| v >= vocabulary),
        _ => false,
    })?;
    Ok(network)
}

/// Returns the sum of the cross-entropies of `targets`, N x T, in `logits`, N x T x V.
fn cross_entropy(logits: &Tensor, targets: &Tensor) -> Result<Tensor, TchError> {
    let (logits, targets) = (logits.f_flatten(0, 1)?, targets.f_flatten(0, 1)?);
    logits.f_cross_entropy_loss(&targets, None::<Tensor>, Reduction::Sum, Gpt::NO_TARGET, 0.0)
}

impl Task for Lm {
    fn facts(&self) -> &Facts {
        &self.facts
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let targets = batch.field("targets")?;
        let unreadable = batch.weights.f_eq(0.0)?.f_view([-1, 1])?;
        let readable = targets.f_masked_fill(&unreadable, Gpt::NO_TARGET)?;
        let samples = batch.weights.f_ne(0.0)?.f_sum(Kind::Double)?;
        let sum = match &self.model {
            Model::Built(model) => model.loss(batch.field("tokens")?, &readable, mode == Mode::Train)?,
            Model::Exported(network) => {
                network.outputs(batch, mode)?.loss(|logits| cross_entropy(logits, &readable))?
            }
        };
        Ok(Loss {
            sum,
            weight: samples.f_mul_scalar(targets.size2()?.1)?,
            sums: Tensor::f_zeros([0], (Kind::Double, targets.device()))?,
        })
    }

    /// Returns the perplexity, exp(loss), and the loss in bits.
    fn figures(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        let bits = match self.vocabulary() {
            Vocabulary::Chars(_) => "bits_per_char",
            Vocabulary::Bytes => "bits_per_byte",
        };
        let loss = totals.loss();
        vec![("perplexity", loss.exp()), (bits, loss / std::f64::consts::LN_2)]
    }
}

impl Lm {
    fn new(model: Model<Gpt>, train: Arc<TextWindows>, test: Arc<TextWindows>) -> Self {
        let vocabulary = &train.corpus().vocabulary;
        let facts = Facts {
            classes: vocabulary.size(),
            weight_per_sample: train.context() as f64,
            extra: serde_json::json!({ "vocabulary": vocabulary }),
            ..Facts::new(train.clone(), test, text::describe(&train))
        };
        Self { facts: facts.with_model(&model, |_| 1), model, text: train }
    }

    /// Returns the vocabulary of the model's tokens.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.text.corpus().vocabulary
    }
}

#[cfg(test)]
mod tests;
