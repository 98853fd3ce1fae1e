//! The data of a prediction: inputs without targets, and what a checkpoint says of the data that its model was trained on.

use std::collections::BTreeMap;

use dtrain_common::manifest::{FieldType, Manifest, SampleField};
use dtrain_recipe::{FieldColumns, Recipe, Target};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data::encode::class_colours;
use crate::data::{
    Field, Hex, Moments, Samples, TextRules, TextTokenizer, Texting, TokenizerFiles, Vocabulary,
};

/// What a checkpoint says of the data.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Saved {
    /// The fields of a sample; of an earlier version those of its task, if the size of its images is known.
    pub fields: Vec<SampleField>,
    pub(in crate::tasks) classes: usize,
    /// May be empty.
    pub class_names: Vec<String>,
    extra: Value,
}

/// The data of a prediction, in place of a survey.
#[derive(Debug, Serialize, Deserialize)]
pub struct Unlabelled {
    pub(in crate::tasks) saved: Saved,
    /// The images, numbers and texts; None for prompts alone.
    pub(in crate::tasks) samples: Option<Samples>,
    /// The number of inputs.
    pub(in crate::tasks) count: usize,
    /// The sizes of the images, if they are cut into windows.
    pub(in crate::tasks) sizes: Vec<(u32, u32)>,
    /// The pixels that neighbouring windows share at least.
    pub(in crate::tasks) overlap: u32,
    /// The tokenizer's files, if texts are written.
    tokenizer: Option<TokenizerFiles>,
    /// The labelled images of a model of episodes.
    pub(in crate::tasks) support: Option<Support>,
}

/// Labelled images, which are the same in all episodes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Support {
    /// All images of the folder.
    pub samples: Samples,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// Those of `samples` that are used, class by class.
    pub members: Vec<u32>,
}

impl Saved {
    /// Returns what `manifest` says of the data of its `recipe`.
    pub fn of(manifest: &Manifest, recipe: &Recipe) -> Self {
        let mut saved = Self {
            fields: manifest.fields.clone(),
            classes: manifest.classes,
            class_names: manifest.class_names.clone(),
            extra: manifest.extra.clone(),
        };
        if saved.fields.is_empty() {
            saved.fields = fields_of(recipe, saved.numbers().len());
        }
        saved
    }

    /// Returns the width and height of the network's images; None without images.
    pub fn size(&self) -> Option<(u32, u32)> {
        let image = self.fields.iter().find(|field| field.shape.len() >= 3)?;
        let [.., height, width] = image.shape[..] else { return None };
        Some((width as u32, height as u32))
    }

    /// Returns the number of tokens of the texts in a field; 0 without it.
    pub fn context(&self, field: &str) -> usize {
        let field = self.fields.iter().find(|known| known.name == field);
        field.and_then(|field| field.shape.first().copied()).unwrap_or_default()
    }

    /// Sets width and height of all images, masks and maps.
    #[must_use]
    pub fn with_size(mut self, (width, height): (u32, u32)) -> Self {
        for field in self.fields.iter_mut().filter(|field| field.shape.len() >= 2) {
            let first = field.shape.len() - 2;
            field.shape[first..].copy_from_slice(&[height as usize, width as usize]);
        }
        self
    }

    /// Returns the fields of a sample.
    pub(in crate::tasks) fn fields(&self) -> impl Iterator<Item = Field> + '_ {
        self.fields.iter().map(|field| match field.dtype {
            FieldType::Float32 => Field::f32(field.name.clone(), field.shape.clone()),
            FieldType::Int64 => Field::i64(field.name.clone(), field.shape.clone()),
        })
    }

    /// Returns the fields of the single samples of an episode.
    pub(in crate::tasks) fn fields_of_singles(&self) -> Vec<Field> {
        let single = |field: Field| {
            let name = field.name.strip_prefix("support_")?.to_owned();
            let shape = field.shape.get(1..)?.to_vec();
            Some(Field { name: name.into(), shape, ..field })
        };
        self.fields().filter_map(single).collect()
    }

    /// Returns the names of the classes of other fields of a table, by field.
    pub(in crate::tasks) fn other_classes(&self) -> BTreeMap<String, Vec<String>> {
        serde_json::from_value(self.extra["classes"].clone()).unwrap_or_default()
    }

    /// Returns the stated colours of the classes of masks.
    fn colours(&self) -> Vec<[u8; 3]> {
        let all: BTreeMap<String, Vec<String>> =
            serde_json::from_value(self.extra["colors"].clone()).unwrap_or_default();
        // The task's own mask, if there are several.
        let first = all.get("mask").or(all.values().next()).cloned().unwrap_or_default();
        first.iter().map_while(|text| Hex::read(text)).map(|Hex(colour)| colour).collect()
    }

    /// Returns the names of numbers as targets.
    pub(in crate::tasks) fn numbers(&self) -> Vec<String> {
        serde_json::from_value(self.extra["targets"]["names"].clone()).unwrap_or_default()
    }

    /// Returns the statistics of the targets that the output is in units of.
    pub(in crate::tasks) fn moments(&self) -> Vec<Moments> {
        let list = |name: &str| -> Vec<f64> {
            serde_json::from_value(self.extra["targets"][name].clone()).unwrap_or_default()
        };
        let pairs = list("mean").into_iter().zip(list("deviation"));
        pairs.map(|(mean, deviation)| Moments::stated(mean, deviation)).collect()
    }

    /// Returns the vocabulary of a text.
    pub fn vocabulary(&self) -> Option<Vocabulary> {
        serde_json::from_value(self.extra["vocabulary"].clone()).ok()
    }
}

impl Unlabelled {
    /// Takes `count` inputs. Prompts, which the engine encodes, may have nothing else.
    pub fn new(saved: Saved, count: usize, samples: Option<Samples>) -> Self {
        Self { saved, count, samples, sizes: Vec::new(), overlap: 0, tokenizer: None, support: None }
    }

    /// Adds the labelled images of a model of episodes.
    #[must_use]
    pub fn with_support(self, support: Option<Support>) -> Self {
        Self { support, ..self }
    }

    /// Returns the labelled images of episodes by their numbers in the data set, where they follow the inputs; None without episodes.
    pub fn support_members(&self) -> Option<Vec<u32>> {
        let first = self.count as u32;
        self.support.as_ref().map(|support| support.members.iter().map(|at| first + at).collect())
    }

    /// Adds the files of the tokenizer of prompts.
    #[must_use]
    pub fn with_tokenizer(self, tokenizer: Option<TokenizerFiles>) -> Self {
        Self { tokenizer, ..self }
    }

    /// Returns the files of the tokenizer of prompts.
    pub fn tokenizer(&self) -> Option<&TokenizerFiles> {
        self.tokenizer.as_ref()
    }

    /// Returns the images, numbers and texts.
    pub fn into_samples(self) -> Option<Samples> {
        self.samples
    }

    /// Returns the sizes of the images, if they are cut into windows, and the pixels that neighbouring windows share at least.
    pub fn windows(&self) -> (&[(u32, u32)], u32) {
        (&self.sizes, self.overlap)
    }

    /// Returns the width and height of the network's images.
    pub fn size(&self) -> Option<(u32, u32)> {
        self.saved.size()
    }

    /// Returns the colours of this number of classes: those of the checkpoint, else of Pascal VOC.
    pub fn class_colours(&self, classes: usize) -> Vec<[u8; 3]> {
        let mut all = class_colours(classes);
        all.iter_mut().zip(self.saved.colours()).for_each(|(colour, stated)| *colour = stated);
        all
    }

    /// Returns the images, numbers and texts.
    pub fn samples(&self) -> Option<&Samples> {
        self.samples.as_ref()
    }

    /// Cuts images of these sizes into windows of the network's size, which share at least `overlap` pixels.
    #[must_use]
    pub fn in_windows(self, sizes: Vec<(u32, u32)>, overlap: u32) -> Self {
        Self { sizes, overlap, ..self }
    }
}

/// Returns how the texts of samples become tokens, in training and prediction.
pub fn text_rules<'a>(recipe: &'a Recipe, tokenizer: Option<&'a TextTokenizer>) -> TextRules<'a> {
    TextRules {
        texting: tokenizer.map_or(Texting::Bytes, Texting::Tokenizer),
        repeat: &recipe.data.repeat,
        ends: recipe.target() != Some(Target::Class) && recipe.target() != Some(Target::Vector),
    }
}

/// Returns the fields of a sample, if the data has one source or all have the same.
pub fn columns(recipe: &Recipe) -> Vec<FieldColumns> {
    let sources = recipe.by_source();
    // A loaded recipe has no problems.
    let fields = sources.first().and_then(|alone| alone.fields().ok()).unwrap_or_default();
    match fields.is_empty() {
        true => FieldColumns::parse("image", "image").into_iter().collect(),
        false => fields,
    }
}

/// Returns the fields of a sample by the recipe alone, for checkpoints of earlier versions.
fn fields_of(recipe: &Recipe, numbers: usize) -> Vec<SampleField> {
    use FieldType::{Float32, Int64};
    let (side, data) = (recipe.data.image_size, &recipe.data);
    let field = |name: &str, dtype, shape: &[usize]| SampleField {
        name: name.to_owned(),
        dtype,
        shape: shape.to_vec(),
    };
    let image = field("image", Float32, &[data.channels, side, side]);
    let target = match recipe.target() {
        Some(Target::Class) => Some(field("label", Int64, &[])),
        // No earlier version had this target.
        Some(Target::Classes) => Some(field("label", Float32, &[numbers])),
        Some(Target::Mask) => Some(field("mask", Int64, &[side, side])),
        Some(Target::Map) => Some(field("map", Float32, &[side, side])),
        Some(Target::Vector) => Some(field("targets", Float32, &[numbers])),
        Some(Target::Tokens) => return Vec::new(),
        None => None,
    };
    [image].into_iter().chain(target).collect()
}
