//! Rank 0's part before a prediction: the checkpoint, the inputs, and what is left to do.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use dtrain_common::files;
use dtrain_common::manifest::Manifest;
use dtrain_recipe::{Recipe, Resize};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::inputs::{self, Found, Noun};
use super::parts::{Partial, failed};
use super::support;
use crate::data::packed::Packed;
use crate::data::{Pictures, Samples};
use crate::planning::{Input, PredictQuestion};
use crate::setup::error::{Result, WorkerError};
use crate::setup::predict_error::PredictError;
use crate::setup::survey::Surveyed;
use crate::tasks::predict::{Saved, Support, Unlabelled};
use crate::train::evaluation::find_checkpoint;

/// The message of rank 0 to the other ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) checkpoint: PathBuf,
    /// The [`Unlabelled`] data.
    pub(super) inputs: Value,
    /// The lists to which it refers, in this rank's memory.
    #[serde(skip)]
    pub(super) lists: Vec<Packed<u8>>,
    /// The prompts of the inputs, if texts are written.
    pub(super) prompts: Option<Vec<String>>,
    pub(super) count: usize,
    pub(super) noun: Noun,
    /// Why inputs cannot be used.
    pub(super) failed: BTreeMap<u32, String>,
    /// The fields that inputs have.
    known: Vec<String>,
    /// The names of the inputs in order. Rank 0 alone has them.
    #[serde(skip)]
    pub(super) names: Vec<String>,
    /// What identifies weights and inputs.
    identity: Map<String, Value>,
}

/// What is left to do.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Begun {
    /// The number of this attempt.
    pub(super) attempt: usize,
    /// The inputs without a row, in order.
    pub(super) missing: Vec<u32>,
}

impl Opening {
    pub(super) fn open(recipe: &Recipe, question: &PredictQuestion) -> Result<Self> {
        let checkpoint = find_checkpoint(&question.checkpoint)?;
        let manifest = Manifest::read(&checkpoint).map_err(|error| WorkerError::Evaluate(error.into()))?;
        check_program(recipe, &manifest)?;
        let no_effect =
            |flag, reason| -> Result<Option<Support>> { Err(PredictError::NoEffect { flag, reason }.into()) };
        let support = match (&recipe.data.episodes, &question.wanted.support) {
            (Some(_), Some(_)) if question.wanted.windows.is_some() => {
                no_effect("--windows", "a sample of this model is an episode")
            }
            (Some(shape), Some(folder)) => support::find(recipe, folder, shape).map(Some),
            (Some(_), None) => Err(PredictError::Episodes.into()),
            (None, Some(_)) => no_effect("--support", "the model takes no episodes"),
            (None, None) => Ok(None),
        }?;
        let saved = Saved::of(&manifest, recipe);
        let mut identity = identity(&manifest, question)?;
        if let (Some(support), Some(folder)) = (&support, &question.wanted.support) {
            identity.insert("labelled".to_owned(), support::identity(folder, support)?);
        }
        let Found { samples, prompts, names, noun, failed, tokenizer } =
            inputs::find(recipe, &saved, question, &checkpoint)?;
        let places = samples.as_ref().and_then(|_| match &question.input {
            Input::Path(path) => Some((path.clone(), vec![path.clone()])),
            // A set may be a part of a folder, and several sources have no folder of all.
            Input::Split(_) => recipe.data.root.clone().map(|root| (root, recipe.folders_of_sets())),
            Input::Prompt(_) | Input::Standard => None,
        });
        if let Some((place, folders)) = places {
            folders.iter().try_for_each(|folder| check_outside(folder, &question.out))?;
            identity.extend(of_input(&place)?);
        }
        identity.insert("inputs".to_owned(), json!(hash_of(&names)));
        let mut known = samples.as_ref().map(Samples::field_names).unwrap_or_default();
        if prompts.is_some() {
            known.extend(["tokens", "attention_mask", "documents", "positions"].map(str::to_owned));
        }
        if support.is_some() {
            known.extend(["support_image", "support_label", "query_image"].map(str::to_owned));
        }
        let unlabelled = match samples {
            Some(samples) => unlabelled(recipe, saved, &manifest, samples, question)?,
            None => Unlabelled::new(saved, names.len(), None),
        };
        let Surveyed { facts: inputs, lists } =
            Surveyed::of_survey(&unlabelled.with_tokenizer(tokenizer).with_support(support))?;
        let count = names.len();
        Ok(Self { checkpoint, inputs, lists, prompts, count, noun, failed, known, names, identity })
    }

    /// Returns whether inputs have no values of a field.
    pub(super) fn lacks(&self, field: &str) -> bool {
        self.known.iter().all(|known| known != field)
    }

    /// Begins a prediction, or continues it.
    pub(super) fn begin(&self, partial: &Partial, question: &PredictQuestion) -> Result<Begun> {
        let mut request = self.identity.clone();
        if let Value::Object(wanted) = serde_json::to_value(&question.wanted)? {
            request.extend(wanted);
        }
        let (attempt, done) = partial.begin(&request, self.count)?;
        let missing: Vec<u32> = (0..self.count as u32).filter(|&at| !done[at as usize]).collect();
        let before = self.count - missing.len();
        if before > 0 {
            tracing::info!("continuing after {before} of {} inputs", self.count);
        }
        Ok(Begun { attempt, missing })
    }
}

/// Returns what identifies the weights and the recipe.
fn identity(manifest: &Manifest, question: &PredictQuestion) -> Result<Map<String, Value>> {
    let checkpoint = json!([manifest.step, manifest.files, manifest.recipe]);
    let hash = blake3::hash(&serde_json::to_vec(&checkpoint)?).to_string();
    let pairs =
        [("checkpoint", json!(hash)), ("weights", json!(question.weights)), ("set", json!(question.set))];
    Ok(pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

/// Returns what identifies a path of inputs: other inputs may have the same names. A table has its content, too.
fn of_input(path: &Path) -> Result<Map<String, Value>> {
    let absolute = std::path::absolute(path).map_err(failed(path))?;
    // A missing path has its own error.
    let content = if path.is_file() { Some(files::hash(path).map_err(failed(path))?) } else { None };
    Ok(Map::from_iter([("input".to_owned(), json!([absolute, content]))]))
}

/// Checks that the file of the network is there, and is that of the run.
fn check_program(recipe: &Recipe, manifest: &Manifest) -> Result<()> {
    let Some(path) = recipe.program() else { return Ok(()) };
    let unfit = |what| Err(PredictError::Program { path: path.to_owned(), what }.into());
    match (files::hash(path), &manifest.program) {
        (Err(error), _) if error.kind() == io::ErrorKind::NotFound => unfit("is missing"),
        (Err(error), _) => Err(failed(path)(error).into()),
        (Ok(hash), Some(then)) if hash != *then => unfit("is another one than the run had"),
        _ => Ok(()),
    }
}

/// Checks that the output is not in the folder of inputs: the images in it would be inputs of the next prediction.
fn check_outside(input: &Path, out: &Path) -> Result<()> {
    let [input, out] = [input, out].map(|path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned()));
    match input.is_dir() && out.starts_with(&input) {
        true => {
            let what = "the output is in this folder of inputs";
            Err(PredictError::Input { path: input, what, remedy: "name an output elsewhere with -o" }.into())
        }
        false => Ok(()),
    }
}

/// Returns what identifies the names of inputs.
fn hash_of(names: &[String]) -> String {
    let mut hasher = blake3::Hasher::new();
    for name in names {
        hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
    }
    hasher.finalize().to_string()
}

fn unlabelled(
    recipe: &Recipe,
    saved: Saved,
    manifest: &Manifest,
    samples: Samples,
    question: &PredictQuestion,
) -> Result<Unlabelled> {
    let (mut pictures, needs) = (Pictures::default(), super::samples::needs(recipe));
    let mut size = |sample| pictures.size(&samples, sample, needs).ok();
    // An earlier version wrote no size, and the images keep theirs.
    let is_unknown = manifest.fields.is_empty() && recipe.data.resize == Resize::None;
    let saved = match is_unknown.then(|| (0..samples.count()).find_map(&mut size)).flatten() {
        Some(size) => saved.with_size(size),
        None => saved,
    };
    let count = samples.count();
    let Some(part) = question.wanted.windows else {
        return Ok(Unlabelled::new(saved, count, Some(samples)));
    };
    let Some((width, height)) = saved.size() else {
        let reason = "the model takes no images";
        return Err(PredictError::NoEffect { flag: "--windows", reason }.into());
    };
    if samples.files() != 1 {
        return Err(PredictError::WindowsOfSeveral(samples.files()).into());
    }
    if samples.text_field().is_some() {
        let reason = "a text beside an image belongs to all of it";
        return Err(PredictError::NoEffect { flag: "--windows", reason }.into());
    }
    let sizes = (0..count).map(|sample| size(sample).unwrap_or_default()).collect();
    let overlap = (part * f64::from(width.min(height))) as u32;
    Ok(Unlabelled::new(saved, count, Some(samples)).in_windows(sizes, overlap))
}
