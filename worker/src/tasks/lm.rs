//! Language modelling: cross-entropy of the next token, summed over tokens. The loss is in nats per token.

use std::path::Path;
use std::sync::Arc;

use dtrain_common::recipe::{DataKind, Recipe};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use super::{Batch, BuildTask, Console, Loss, Mode, Site, Task, TaskError, Totals};
use crate::data::{Corpus, Dataset, Split, TextIndex, TextWindows, Vocabulary};
use crate::models::{Gpt, GptConfig};

/// The text of a run.
#[derive(Debug, Serialize, Deserialize)]
pub enum Text {
    /// Of files, which every rank reads.
    Files(TextIndex),
    /// Made by a grammar.
    Generated,
}

/// The task `lm`. The loss is a sum over tokens; those of unreadable samples weigh nothing.
pub struct Lm {
    model: Gpt,
    train: Arc<TextWindows>,
    test: Arc<TextWindows>,
}

impl BuildTask for Lm {
    type Survey = Text;
    const DRAWS_WEIGHTS_ALONE: bool = true;

    fn survey(recipe: &Recipe, _: &mut Console<'_>) -> Result<Text, TaskError> {
        if recipe.data.kind == DataKind::Generated {
            return Ok(Text::Generated);
        }
        recipe.check_paths()?;
        let root = recipe.data.root.as_deref().unwrap_or(Path::new("."));
        let (index, _) = TextIndex::scan(root, recipe.data.tokenizer)?;
        Ok(Text::Files(index))
    }

    fn build(recipe: &Recipe, text: Text, site: Site<'_>) -> Result<Self, TaskError> {
        let (data, model) = (&recipe.data, &recipe.model);
        // A loaded recipe has the sizes of its network.
        let context = model.context.unwrap_or(256);
        let (corpus, test_fraction) = match text {
            Text::Files(index) => (index.load()?, data.test_fraction),
            Text::Generated => {
                // As many windows as the recipe asks for; the last target of each part is one character more.
                let (train, test) = (data.train_samples * context + 1, data.test_samples * context + 1);
                let corpus = Corpus::generated(data.tokenizer, train + test, recipe.train.seed)?;
                (corpus, test as f64 / (train + test) as f64)
            }
        };
        let windows = |split| {
            let windows = TextWindows::new(corpus.clone(), split, test_fraction, context)?;
            Ok::<_, TaskError>(Arc::new(windows))
        };
        let (train, test) = (windows(Split::Train)?, windows(Split::Test)?);
        let config = GptConfig {
            vocabulary: corpus.vocabulary.size(),
            context,
            width: model.width.unwrap_or(384),
            depth: model.depth.unwrap_or(6),
            heads: model.heads.unwrap_or(6),
        };
        Ok(Self { model: Gpt::new(config, site.registry)?, train, test })
    }
}

impl Task for Lm {
    fn train_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.train) as Arc<dyn Dataset>
    }

    fn test_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.test) as Arc<dyn Dataset>
    }

    fn keeps_parameters(&self) -> bool {
        true
    }

    fn repeats(&self) -> bool {
        true
    }

    fn loss(&self, batch: &Batch, _: Mode) -> Result<Loss, TaskError> {
        let targets = batch.field("targets")?;
        let unreadable = batch.weights.f_eq(0.0)?.f_view([-1, 1])?;
        let readable = targets.f_masked_fill(&unreadable, Gpt::NO_TARGET)?;
        let samples = batch.weights.f_ne(0.0)?.f_sum(Kind::Double)?;
        Ok(Loss {
            sum: self.model.loss(batch.field("tokens")?, &readable)?,
            weight: samples.f_mul_scalar(targets.size2()?.1)?,
            sums: Tensor::f_zeros([0], (Kind::Double, targets.device()))?,
        })
    }

    /// The perplexity, which is e to the loss, and the loss in bits.
    fn metrics(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        let bits = match self.vocabulary() {
            Vocabulary::Chars(_) => "bits_per_char",
            Vocabulary::Bytes => "bits_per_byte",
        };
        let loss = totals.loss();
        vec![("perplexity", loss.exp()), (bits, loss / std::f64::consts::LN_2)]
    }

    fn weight_per_sample(&self) -> f64 {
        self.train.context() as f64
    }

    fn describe(&self) -> String {
        let (corpus, context) = (self.train.corpus(), self.train.context());
        format!(
            "windows of {context} tokens of a text of {}, {} different",
            corpus.tokens.count(),
            corpus.vocabulary.size()
        )
    }

    fn classes(&self) -> usize {
        self.vocabulary().size()
    }

    fn extra(&self) -> serde_json::Value {
        serde_json::json!({ "vocabulary": self.vocabulary() })
    }
}

impl Lm {
    /// What the model's tokens mean.
    pub fn vocabulary(&self) -> &Vocabulary {
        &self.train.corpus().vocabulary
    }
}

#[cfg(test)]
mod tests;
