//! The samples of a run: what rank 0 finds, and the data sets that every rank makes of it.

mod extra;
mod files;
mod inputs;
mod labels;
mod listed;
mod masks;
mod numbers;
mod progress;
mod rest;
mod split;
mod survey;
pub(super) mod text;
mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;

use dtrain_recipe::{self as recipe, Recipe, Target};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::predict::Unlabelled;
use super::{Facts, TaskError};
use crate::data::generated_numbers::NUMBERS;
use crate::data::packed::Packed;
use crate::data::sampler::{self, Inputs};
use crate::data::{
    CacheBudget, DataError, Dataset, FileSet, Generated, GeneratedMaps, GeneratedMasks, GeneratedVectors,
    Groups, ImageOptions, Mixed, Mixing, Mixture, Moments, Samples, Sampling, Split, TokenizerFiles,
    Vocabulary,
};
use labels::Labels;
use listed::OtherSets;
use text::{Text, TextSets};

pub(super) use masks::rule as mask_rule;
pub(crate) use rest::{check_rest, unchanged_sets};
pub(crate) use split::{has_splits, split, split_names};
pub(super) use survey::survey;

/// The samples as found by rank 0, without unreadable ones.
#[derive(Debug, Serialize, Deserialize)]
pub enum Survey {
    /// Files of training and test, the statistics of the training targets by number, and the other sets.
    Files(
        Box<[Samples; 2]>,
        Vec<Moments>,
        #[serde(default, skip_serializing_if = "OtherSets::is_empty")] Box<OtherSets>,
    ),
    /// Generated samples.
    Generated,
    /// A text.
    Text(Text),
    /// The inputs of a prediction.
    Unlabelled(Box<Unlabelled>),
}

/// The data sets of a run.
pub(super) struct Sets {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    pub(super) val: Option<Arc<dyn Dataset>>,
    /// More test sets by name.
    pub(super) more_tests: BTreeMap<String, Arc<dyn Dataset>>,
    /// The training samples of a step.
    pub(super) sampling: Sampling,
    /// 0 without classes.
    pub(super) classes: usize,
    /// Names of the classes in the order of their numbers; empty for generated images and for masks of numbers.
    pub(super) class_names: Vec<String>,
    /// The names of the classes of other fields of a table, by field.
    pub(super) other_classes: BTreeMap<String, Vec<String>>,
    /// The names of the classes of masks that are not the target, by field.
    pub(super) mask_classes: BTreeMap<String, Vec<String>>,
    /// The first colour of each class of masks of colours, as `#RRGGBB`, by field.
    pub(super) colors: BTreeMap<String, Vec<String>>,
    /// The names of numbers as targets.
    pub(super) numbers: Vec<String>,
    /// Statistics of the training targets, by number; of generated ones only if they are normalised.
    pub(super) moments: Vec<Moments>,
    /// Width and height of the images.
    pub(super) size: (usize, usize),
    /// Whether the samples are those of a prediction, without targets.
    pub(super) predicts: bool,
    /// The vocabulary of a text.
    pub(super) vocabulary: Option<Vocabulary>,
    /// The tokenizer of its texts.
    pub(super) tokenizer: Option<TokenizerFiles>,
    /// The mean number of tokens in a training sample that the loss of a language model counts.
    pub(super) mean_targets: f64,
    pub(super) description: String,
}

/// Makes the data sets; `context` returns the tokens of a sample of text.
pub(super) fn sets(
    recipe: &Recipe,
    survey: Survey,
    cache: CacheBudget,
    context: impl FnOnce() -> Result<usize, TaskError>,
) -> Result<Sets, TaskError> {
    let target = recipe.target();
    let mut sets = match survey {
        Survey::Text(text) => {
            let TextSets { train, test, val, sampling, vocabulary, tokenizer, mean_targets, description } =
                text::sets(recipe, text, context()?)?;
            let (classes, vocabulary) = (vocabulary.size(), Some(vocabulary));
            return Ok(Sets {
                val,
                sampling,
                classes,
                vocabulary,
                tokenizer,
                mean_targets,
                description,
                ..Sets::of(train, test)
            });
        }
        Survey::Files(files, moments, others) => {
            // Other fields of a table are no targets.
            let of =
                |wanted, names: &[String]| if target == Some(wanted) { names.to_vec() } else { Vec::new() };
            let of_label = files[0].class_names();
            let of_label = of_label.get("label").map_or(&[][..], Vec::as_slice);
            let mut class_names = match target {
                Some(Target::Class | Target::Classes) => of_label.to_vec(),
                _ => Vec::new(),
            };
            let numbers = of(Target::Vector, files[0].numbers().0);
            let (_, size) = files::sizes(recipe, files[0].size);
            let labels = files.iter().chain(others.all()).map(Labels::of).collect();
            let parts = files[0].sources.iter().map(|part| (part.samples, part.weight));
            let mixture = mixture(parts.collect())?;
            let mut other_classes = files[0].class_names();
            if matches!(target, Some(Target::Class | Target::Classes)) {
                // `class_names` has them.
                other_classes.remove("label");
            }
            let texts = files[0].vocabulary();
            let vocabulary = texts.map(|(vocabulary, _)| vocabulary.clone());
            let tokenizer = texts.and_then(|(_, tokenizer)| tokenizer.cloned());
            let context = if vocabulary.is_some() { context()? } else { 0 };
            let counts = files[0].text_counts(context);
            let text = match (counts, &vocabulary) {
                (Some(counts), Some(vocabulary)) if target == Some(Target::Tokens) => {
                    texts::describe(&files[0], counts, context, vocabulary.size())?
                }
                _ => texts::describe_cut(&files[0], context),
            };
            let mut classes = class_names.len();
            let (mut mask_classes, colors) = (masks::names(&files[0]), masks::colors(&files[0]));
            if let (Some(Target::Mask), Some((field, rule))) = (target, files[0].mask_rules().next()) {
                classes = rule.classes;
                class_names = mask_classes.remove(field).unwrap_or_default();
            }
            let [train, test] = *files;
            let (own, _) = files::sizes(recipe, train.size);
            let (train_options, options) = files::options(recipe, own, cache, context);
            let set = |samples, options: &ImageOptions| -> Arc<dyn Dataset> {
                Arc::new(FileSet::new(samples, options.clone()))
            };
            let (train, test) = (set(train, &train_options), set(test, &options));
            let more = others.tests.into_iter().map(|(name, samples)| (name, set(samples, &options)));
            let mut sets = Sets {
                val: others.val.map(|samples| set(samples, &options)),
                more_tests: more.collect(),
                vocabulary,
                tokenizer,
                mean_targets: counts.map_or(1.0, |counts| counts.mean_targets),
                description: text,
                classes,
                class_names,
                other_classes,
                mask_classes,
                colors,
                numbers,
                moments,
                size,
                ..Sets::of(train, test)
            };
            if let Some(mixture) = mixture {
                sets.sampling.sampler = Arc::new(mixture);
            }
            sets.sampled(recipe, labels)?
        }
        Survey::Generated => generated(recipe, target)?,
        Survey::Unlabelled(inputs) => return inputs::sets(recipe, *inputs),
    };
    let (width, height) = sets.size;
    sets.description = match target {
        Some(Target::Tokens) => sets.description,
        Some(Target::Mask) => {
            format!("{} classes of pixels, {width} x {height} images{}", sets.classes, sets.description)
        }
        Some(Target::Map) => format!("maps of {width} x {height} pixels{}", sets.description),
        Some(Target::Vector) => format!("targets {}{}", sets.numbers.join(", "), sets.description),
        Some(Target::Class | Target::Classes) => {
            let episodes = recipe.data.episodes.as_ref().map(|shape| {
                let recipe::Episodes { n_way, k_shot, n_query, .. } = shape;
                format!(", episodes of {n_way} classes with {k_shot} support and {n_query} query images each")
            });
            format!("{} classes{}{}", sets.classes, episodes.unwrap_or_default(), sets.description)
        }
        None => {
            let names: Vec<_> = sets.train.fields().iter().map(|field| &*field.name).collect();
            format!("fields {}{}", names.join(", "), sets.description)
        }
    };
    Ok(sets)
}

impl Sets {
    /// Returns sets of which nothing else is known.
    fn of(train: Arc<dyn Dataset>, test: Arc<dyn Dataset>) -> Self {
        Self {
            sampling: Sampling::shuffled(train.len()),
            train,
            test,
            val: None,
            more_tests: BTreeMap::new(),
            classes: 0,
            class_names: Vec::new(),
            other_classes: BTreeMap::new(),
            mask_classes: BTreeMap::new(),
            colors: BTreeMap::new(),
            numbers: Vec::new(),
            moments: Vec::new(),
            size: (0, 0),
            predicts: false,
            vocabulary: None,
            tokenizer: None,
            mean_targets: 1.0,
            description: String::new(),
        }
    }

    /// Returns the size of the vocabulary of texts; 0 without texts.
    pub(super) fn classes_of_text(&self) -> usize {
        self.vocabulary.as_ref().map_or(0, Vocabulary::size)
    }

    /// Returns the facts that follow from the data.
    pub(super) fn facts(&self) -> Facts {
        Facts {
            sampling: Some(self.sampling.clone()),
            classes: self.classes,
            class_names: self.class_names.clone(),
            extra: self.extra(Value::Null),
            val: self.val.clone(),
            more_tests: self.more_tests.clone().into_iter().collect(),
            tokenizer: self.tokenizer.clone(),
            ..Facts::new(Arc::clone(&self.train), Arc::clone(&self.test), self.description.clone())
        }
    }

    /// Adds the recipe's order of the training samples, their partners or episodes. `labels` are the classes of the sets: of training,
    /// test, validation if there is one, and the other test sets.
    fn sampled(mut self, recipe: &Recipe, labels: Vec<Option<Labels>>) -> Result<Self, TaskError> {
        if let Some(episodes) = &recipe.data.episodes {
            let val = self.val.as_ref().map(|_| episodes.val.unwrap_or(episodes.test));
            let more = std::iter::repeat_n(episodes.test, self.more_tests.len());
            let counts = [episodes.train, episodes.test].into_iter().chain(val).chain(more);
            let drawn = labels.iter().flatten().zip(counts).map(|(of, count)| of.episodes(episodes, count));
            let drawn = drawn.collect::<Result<Vec<_>, _>>()?;
            if let Some(of_train) = drawn.first() {
                self.sampling.sampler = Arc::new(of_train.clone());
            }
            for (set, episodes) in self.all_mut().zip(drawn) {
                *set = Arc::new(Groups::episodes(Arc::clone(set), episodes));
            }
        }
        if recipe.data.sampler != recipe::Sampler::Shuffled {
            let (samples, step) = (self.train.len(), recipe.train.effective_batch);
            let classes = labels.into_iter().next().flatten().map(|labels| labels.numbers);
            self.sampling.sampler = sampler::named(
                recipe.data.sampler,
                Inputs { samples, classes, step, copies: recipe.data.copies, ..Inputs::default() },
            );
        }
        if recipe.data.pairs {
            if let Some(set) = self.all_mut().find(|set| set.len() == 1) {
                return Err(DataError::NoPartner(set.describe(0)).into());
            }
            self.all_mut().for_each(|set| *set = Arc::new(Groups::pairs(Arc::clone(set))));
            self.sampling.has_partners = true;
        }
        if let Some(mixing) = Mixing::of(&recipe.data.mix, recipe.data.mix_by) {
            self.all_mut().for_each(|set| *set = Arc::new(Mixed::new(Arc::clone(set))));
            self.sampling.has_partners = true;
            self.sampling.mixing = Some(Arc::new(mixing));
        }
        Ok(self)
    }

    /// Returns all sets: training, test, validation if there is one, and the other test sets.
    fn all_mut(&mut self) -> impl Iterator<Item = &mut Arc<dyn Dataset>> {
        [&mut self.train, &mut self.test].into_iter().chain(&mut self.val).chain(self.more_tests.values_mut())
    }
}

/// Returns the order of sources with these numbers of samples and weights; None without weights.
fn mixture(sources: Vec<(usize, Option<f64>)>) -> Result<Option<Mixture>, DataError> {
    let (samples, weights): (Vec<usize>, Vec<Option<f64>>) = sources.into_iter().unzip();
    let Some(weights) = weights.into_iter().collect::<Option<Vec<f64>>>().filter(|all| !all.is_empty())
    else {
        return Ok(None);
    };
    let mixture = Mixture { samples, weights };
    match mixture.shares().iter().position(|share| *share == 0) {
        Some(number) => Err(DataError::NoPlace(number, mixture.samples.iter().sum())),
        None => Ok(Some(mixture)),
    }
}

fn generated(recipe: &Recipe, target: Option<Target>) -> Result<Sets, TaskError> {
    let (data, seed) = (&recipe.data, recipe.train.seed);
    let (classes, side) = (data.classes, data.image_size);
    let set = |samples, split| -> Arc<dyn Dataset> {
        match target {
            Some(Target::Mask) => {
                let set = GeneratedMasks::new(classes, samples, side, seed, split);
                Arc::new(files::prepared(set, recipe).with_ignore(mask_rule(recipe).ignore))
            }
            Some(Target::Map) => {
                Arc::new(files::prepared(GeneratedMaps::new(samples, side, seed, split), recipe))
            }
            Some(Target::Vector) => {
                Arc::new(files::prepared(GeneratedVectors::new(samples, side, seed, split), recipe))
            }
            Some(Target::Class | Target::Classes | Target::Tokens) | None => {
                Arc::new(files::prepared(Generated::new(classes, samples, side, seed, split), recipe))
            }
        }
    };
    let (train, test) = (set(data.train_samples, Split::Train), set(data.test_samples, Split::Test));
    let val = data.val_of_generated().map(|samples| set(samples, Split::Val));
    let numbers =
        if target == Some(Target::Vector) { NUMBERS.map(String::from).to_vec() } else { Vec::new() };
    let is_number = matches!(target, Some(Target::Vector | Target::Map));
    let moments = match is_number && data.normalize_targets {
        true => numbers::first_moments(train.as_ref(), numbers.len().max(1)),
        false => Vec::new(),
    };
    numbers::check_moments(recipe, &numbers, &moments)?;
    let classes = if matches!(target, Some(Target::Class | Target::Mask)) { classes } else { 0 };
    // A list in shared memory, which a host may lack, only if it is used.
    let needs_labels = data.sampler == recipe::Sampler::Balanced || data.episodes.is_some();
    let labels = |set: &Arc<dyn Dataset>, key: &str| match needs_labels {
        false => Ok(None),
        true => {
            let label = |sample| (sample % data.classes) as u32;
            let numbers = Packed::write((0..set.len()).map(label)).map_err(DataError::from)?;
            let place = format!("the generated data ({key})");
            Ok::<_, TaskError>(Some(Labels { place, names: Vec::new(), numbers }))
        }
    };
    let mut of_sets = vec![labels(&train, "data.train_samples")?, labels(&test, "data.test_samples")?];
    if let Some(val) = &val {
        of_sets.push(labels(val, "data.val")?);
    }
    let sets = Sets { val, classes, numbers, moments, size: (side, side), ..Sets::of(train, test) };
    sets.sampled(recipe, of_sets)
}

#[cfg(test)]
mod tests;
