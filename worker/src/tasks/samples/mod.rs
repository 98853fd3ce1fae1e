//! The samples of a run: what rank 0 finds, and the data sets that every rank makes of it.

mod files;
mod masks;
mod numbers;
pub(super) mod text;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use dtrain_recipe::{self as recipe, DataKind, Recipe, Target};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Facts, SurveyContext, TaskError};
use crate::data::generated_numbers::NUMBERS;
use crate::data::packed::Packed;
use crate::data::sampler::{self, Inputs};
use crate::data::sources::{self, Reading, Request};
use crate::data::{
    DataError, Dataset, EpisodeShape, Episodes, Generated, GeneratedMaps, GeneratedMasks, GeneratedVectors,
    Groups, Mixture, Moments, Samples, Sampling, Split, TooFew, Vocabulary,
};
use text::{Text, TextSets};

pub(super) use masks::rule as mask_rule;

/// The samples as found by rank 0, without unreadable ones.
#[derive(Debug, Serialize, Deserialize)]
pub enum Survey {
    /// Files of training and test, and the statistics of the training targets by number.
    Files(Box<[Samples; 2]>, Vec<Moments>),
    /// Generated samples.
    Generated,
    /// A text.
    Text(Text),
}

/// The data sets of a run.
pub(super) struct Sets {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    /// Which training samples stand in a step.
    pub(super) sampling: Sampling,
    /// 0 without classes.
    pub(super) classes: usize,
    /// Names of the classes in the order of their numbers; empty for generated images and for masks.
    pub(super) class_names: Vec<String>,
    /// The names of the classes of other fields of a table, by field.
    pub(super) other_classes: BTreeMap<String, Vec<String>>,
    /// The names of numbers as targets.
    pub(super) numbers: Vec<String>,
    /// Statistics of the training targets, by number; of generated ones only if they are normalised.
    pub(super) moments: Vec<Moments>,
    /// Width and height of the images.
    pub(super) size: (usize, usize),
    /// The vocabulary of a text.
    pub(super) vocabulary: Option<Vocabulary>,
    pub(super) description: String,
}

/// Scans and checks the samples. A set of one class is an error if `least_classes` is 2.
pub(super) fn survey(
    recipe: &Recipe,
    least_classes: usize,
    context: &mut SurveyContext<'_>,
) -> Result<Survey, TaskError> {
    let target = recipe.target();
    if target == Some(Target::Tokens) {
        return text::survey(recipe, context).map(Survey::Text);
    }
    if recipe.data.kind == DataKind::Generated {
        return Ok(Survey::Generated);
    }
    recipe.check_paths()?;
    let train = list(recipe, target, None)?;
    if let (Some(Target::Class), [class], true) = (target, train.classes().0, least_classes > 1) {
        let remedy = match train.table {
            Some(_) => "add training lines of other classes",
            None if !train.sources.is_empty() => "add samples of other classes to one of the sources",
            None => {
                "add a folder of images for each other class, or set data.root and data.train to the folder that holds the \
                 class folders"
            }
        };
        return Err(DataError::OneClass(train.place(&train.set), class.clone(), remedy).into());
    }
    let (train, moments) = match target {
        Some(Target::Mask) => (masks::check_training(train, recipe, context)?, Vec::new()),
        Some(Target::Map) => {
            let (train, moments) = numbers::check_maps(train, recipe, context)?;
            (train, vec![moments])
        }
        Some(Target::Vector) => {
            let train = usable(train, recipe, context)?;
            let moments = train.moments();
            (train, moments)
        }
        Some(Target::Class | Target::Tokens) | None => (usable(train, recipe, context)?, Vec::new()),
    };
    let test = Samples { size: train.size, ..list(recipe, target, Some(&train))? };
    let test = match target {
        Some(Target::Mask) => masks::check_test(test, recipe, context)?,
        Some(Target::Map) => numbers::check_maps(test, recipe, context)?.0,
        Some(Target::Vector | Target::Class | Target::Tokens) | None => usable(test, recipe, context)?,
    };
    let is_vector = target == Some(Target::Vector);
    if is_vector {
        numbers::report(&train, &moments, context);
    }
    let names = if is_vector { train.numbers().0 } else { &[] };
    numbers::check_moments(recipe, names, &moments)?;
    Ok(Survey::Files(Box::new([train, test]), moments))
}

/// Lists the training samples or, with `train`, the test samples, of all sources.
fn list(recipe: &Recipe, target: Option<Target>, train: Option<&Samples>) -> Result<Samples, TaskError> {
    // Few-shot learning is tested on other classes.
    let novel = train.filter(|_| recipe.data.episodes.is_some()).map(|train| train.clone().without_labels());
    let train = novel.as_ref().or(train);
    let weights = recipe.data.source.iter().map(|source| source.weight).chain([None]);
    let all = recipe.by_source();
    let list = |(number, (alone, weight)): (usize, (&Cow<'_, Recipe>, Option<f64>))| {
        let listed = list_source(alone, target, train);
        Ok((listed.map_err(|error| error.in_source(number, all.len()))?, weight))
    };
    let listed = all.iter().zip(weights).enumerate().map(list).collect::<Result<_, DataError>>()?;
    Ok(Samples::join(listed)?)
}

fn list_source(
    recipe: &Recipe,
    target: Option<Target>,
    train: Option<&Samples>,
) -> Result<Samples, DataError> {
    let (root, data) = (files::root(recipe), &recipe.data);
    let (set, targets) = match train {
        None => (&data.train, &data.train_masks),
        Some(_) => (&data.test, &data.test_masks),
    };
    // A loaded recipe has no problems.
    let fields = recipe.fields().unwrap_or_default();
    let reading = Reading { mask: mask_rule(recipe), map: numbers::map_rule(recipe), train };
    let listed = sources::list(data.kind, &Request { root, set, targets, target, fields: &fields, reading })?;
    // The checks of a recipe exclude other kinds.
    listed.ok_or(DataError::NotListed(data.kind.as_str()))
}

/// Returns the samples that can be read.
fn usable(samples: Samples, recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Samples, TaskError> {
    let report = files::check(&samples, recipe, context);
    Ok(samples.without_bad(&report)?)
}

/// Makes the data sets; `context` returns the tokens of a sample of text.
pub(super) fn sets(
    recipe: &Recipe,
    survey: Survey,
    local_ranks: usize,
    context: impl FnOnce() -> Result<usize, TaskError>,
) -> Result<Sets, TaskError> {
    let target = recipe.target();
    let mut sets = match survey {
        Survey::Text(text) => {
            let TextSets { train, test, sampling, vocabulary, description, .. } =
                text::sets(recipe, text, context()?)?;
            let (classes, vocabulary) = (vocabulary.size(), Some(vocabulary));
            return Ok(Sets { sampling, classes, vocabulary, description, ..Sets::of(train, test) });
        }
        Survey::Files(files, moments) => {
            // Other fields of a table are no targets.
            let of =
                |wanted, names: &[String]| if target == Some(wanted) { names.to_vec() } else { Vec::new() };
            let class_names = of(Target::Class, files[0].classes().0);
            let numbers = of(Target::Vector, files[0].numbers().0);
            let (_, size) = files::sizes(recipe, files[0].size);
            let labels = [0, 1].map(|set| Labels::of(&files[set]));
            let parts = files[0].sources.iter().map(|part| (part.samples, part.weight));
            let mixture = mixture(parts.collect())?;
            let mut other_classes = files[0].class_names();
            if target == Some(Target::Class) {
                // `class_names` has them.
                other_classes.remove("label");
            }
            let [train, test] = files::sets(recipe, *files, local_ranks);
            let mut sets = Sets {
                classes: class_names.len(),
                class_names,
                other_classes,
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
    };
    let (width, height) = sets.size;
    if target == Some(Target::Mask) {
        (sets.classes, sets.class_names) = (recipe.data.classes, Vec::new());
    }
    sets.description = match target {
        Some(Target::Mask) => format!("{} classes of pixels, {width} x {height} images", sets.classes),
        Some(Target::Map) => format!("maps of {width} x {height} pixels"),
        Some(Target::Vector) => format!("targets {}", sets.numbers.join(", ")),
        Some(Target::Class | Target::Tokens) => {
            let episodes = recipe.data.episodes.as_ref().map(|shape| {
                let recipe::Episodes { n_way, k_shot, n_query, .. } = shape;
                format!(", episodes of {n_way} classes with {k_shot} support and {n_query} query images each")
            });
            format!("{} classes{}", sets.classes, episodes.unwrap_or_default())
        }
        None => {
            let names: Vec<_> = sets.train.fields().iter().map(|field| &*field.name).collect();
            format!("fields {}", names.join(", "))
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
            classes: 0,
            class_names: Vec::new(),
            other_classes: BTreeMap::new(),
            numbers: Vec::new(),
            moments: Vec::new(),
            size: (0, 0),
            vocabulary: None,
            description: String::new(),
        }
    }

    /// Returns the facts that follow from the data.
    pub(super) fn facts(&self) -> Facts {
        Facts {
            sampling: Some(self.sampling.clone()),
            classes: self.classes,
            class_names: self.class_names.clone(),
            extra: self.extra(Value::Null),
            ..Facts::new(Arc::clone(&self.train), Arc::clone(&self.test), self.description.clone())
        }
    }

    /// Returns what a saved model needs: `own` with the names of the classes of other fields, which number them.
    pub(super) fn extra(&self, own: Value) -> Value {
        if self.other_classes.is_empty() {
            return own;
        }
        let mut all =
            serde_json::Map::from_iter([("classes".to_owned(), serde_json::json!(self.other_classes))]);
        if let Value::Object(own) = own {
            all.extend(own);
        }
        Value::Object(all)
    }

    /// Adds the recipe's order of the training samples, their partners or episodes. `labels` are the classes of both sets.
    fn sampled(self, recipe: &Recipe, [labels, of_test]: [Option<Labels>; 2]) -> Result<Self, TaskError> {
        let Self { mut train, mut test, mut sampling, .. } = self;
        if let (Some(episodes), Some(labels), Some(of_test)) = (&recipe.data.episodes, &labels, &of_test) {
            let episodes =
                [labels.episodes(episodes, episodes.train)?, of_test.episodes(episodes, episodes.test)?];
            let [of_train, of_test] = episodes;
            sampling.sampler = Arc::new(of_train.clone());
            (train, test) =
                (Arc::new(Groups::episodes(train, of_train)), Arc::new(Groups::episodes(test, of_test)));
        }
        if recipe.data.sampler != recipe::Sampler::Shuffled {
            let (samples, step) = (train.len(), recipe.train.effective_batch);
            let classes = labels.map(|labels| labels.numbers);
            sampling.sampler =
                sampler::named(recipe.data.sampler, Inputs { samples, classes, step, ..Inputs::default() });
        }
        if recipe.data.pairs {
            if let Some(set) = [&train, &test].into_iter().find(|set| set.len() == 1) {
                return Err(DataError::NoPartner(set.describe(0)).into());
            }
            (train, test) = (Arc::new(Groups::pairs(train)), Arc::new(Groups::pairs(test)));
            sampling.has_partners = true;
        }
        Ok(Self { train, test, sampling, ..self })
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

/// The classes of a set's samples.
struct Labels {
    /// The set in messages.
    place: String,
    /// May be empty.
    names: Vec<String>,
    numbers: Packed<u32>,
}

impl Labels {
    fn of(samples: &Samples) -> Option<Self> {
        let (names, numbers) = samples.labels()?;
        let place = samples.place(&samples.set).display().to_string();
        let place = match samples.table {
            Some(_) => format!("{place} ({})", samples.set),
            None => place,
        };
        Some(Self { place, names: names.to_vec(), numbers: numbers.clone() })
    }

    /// Returns `count` episodes of a recipe's shape.
    fn episodes(&self, shape: &recipe::Episodes, count: usize) -> Result<Episodes, DataError> {
        let &recipe::Episodes { n_way: ways, k_shot: shots, n_query: queries, .. } = shape;
        let shape = EpisodeShape { ways, shots, queries };
        Episodes::new(shape, count, &self.numbers).map_err(|too_few| match too_few {
            TooFew::Classes(found) => DataError::FewClasses(self.place.clone(), found, ways),
            TooFew::Samples { class, found } => {
                let name =
                    self.names.get(class).map_or_else(|| class.to_string(), |name| format!("{name:?}"));
                let (place, needed) = (self.place.clone(), shape.of_class());
                DataError::SmallClass { place, class: name, found, needed }
            }
        })
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
            Some(Target::Class | Target::Tokens) | None => {
                Arc::new(files::prepared(Generated::new(classes, samples, side, seed, split), recipe))
            }
        }
    };
    let (train, test) = (set(data.train_samples, Split::Train), set(data.test_samples, Split::Test));
    let numbers =
        if target == Some(Target::Vector) { NUMBERS.map(String::from).to_vec() } else { Vec::new() };
    let is_number = matches!(target, Some(Target::Vector | Target::Map));
    let moments = match is_number && data.normalize_targets {
        true => numbers::first_moments(train.as_ref(), numbers.len().max(1)),
        false => Vec::new(),
    };
    numbers::check_moments(recipe, &numbers, &moments)?;
    let classes = if target == Some(Target::Class) { classes } else { 0 };
    // A list in shared memory, which a host may lack, only if it is used.
    let needs_labels = data.sampler != recipe::Sampler::Shuffled || data.episodes.is_some();
    let labels = |set: &Arc<dyn Dataset>, key: &str| match needs_labels {
        false => Ok(None),
        true => {
            let label = |sample| (sample % data.classes) as u32;
            let numbers = Packed::write((0..set.len()).map(label)).map_err(DataError::from)?;
            let place = format!("the generated data ({key})");
            Ok::<_, TaskError>(Some(Labels { place, names: Vec::new(), numbers }))
        }
    };
    let labels = [labels(&train, "data.train_samples")?, labels(&test, "data.test_samples")?];
    let sets = Sets { classes, numbers, moments, size: (side, side), ..Sets::of(train, test) };
    sets.sampled(recipe, labels)
}

#[cfg(test)]
mod tests;
