//! Rank 0's part before a prediction: the checkpoint, the inputs, and what is left to do.

use std::fs;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use dtrain_common::files;
use dtrain_common::manifest::Manifest;
use dtrain_recipe::{ColumnKind, Recipe, Resize, Target};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::parts::{Partial, failed};
use crate::data::packed::Packed;
use crate::data::sources::inputs;
use crate::data::{Pictures, Samples, Vocabulary};
use crate::planning::{Input, PredictQuestion};
use crate::setup::error::{Result, WorkerError};
use crate::setup::predict_error::PredictError;
use crate::setup::survey::Surveyed;
use crate::tasks::predict::{Saved, Unlabelled, columns};
use crate::train::evaluation::find_checkpoint;

/// The field of numbers as targets.
const TARGETS: &str = "targets";

/// The message of rank 0 to the other ranks.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) checkpoint: PathBuf,
    /// The [`Unlabelled`] data.
    pub(super) inputs: Value,
    /// The lists to which it refers, in this rank's memory.
    #[serde(skip)]
    pub(super) lists: Vec<Packed<u8>>,
    /// The inputs of a language model.
    pub(super) prompts: Option<Vec<String>>,
    pub(super) count: usize,
    /// The fields that inputs have.
    known: Vec<String>,
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
        if recipe.data.episodes.is_some() {
            return Err(PredictError::Episodes.into());
        }
        let saved = Saved::of(&manifest, recipe);
        let identity = identity(&manifest, question)?;
        if recipe.target() == Some(Target::Tokens) {
            if saved.size().is_some() {
                return Err(PredictError::PromptWithImage.into());
            }
            if matches!(saved.vocabulary(), Some(Vocabulary::Numbers(_))) {
                return Err(PredictError::NoTokenizer.into());
            }
            let prompts = prompts(&question.input)?;
            let inputs = serde_json::to_value(Unlabelled::of_prompts(saved, prompts.len()))?;
            let known = ["tokens", "attention_mask", "documents", "positions"].map(str::to_owned).to_vec();
            let count = prompts.len();
            let opened = Self {
                checkpoint,
                inputs,
                lists: Vec::new(),
                prompts: Some(prompts),
                count,
                known,
                identity,
            };
            return Ok(opened.identified());
        }
        let Input::Path(path) = &question.input else {
            let flag = if question.input == Input::Standard { "the input -" } else { "--prompt" };
            let reason = "the model takes images, not prompts";
            return Err(PredictError::NoEffect { flag, reason }.into());
        };
        check_outside(path, &question.out)?;
        let identity = [identity, of_input(path)?].into_iter().flatten().collect();
        let samples = list(path, recipe, &saved)?;
        let known = samples.lists.iter().map(|list| list.field.clone()).collect();
        let (count, unlabelled) = (samples.count(), unlabelled(recipe, saved, &manifest, samples, question)?);
        let Surveyed { facts: inputs, lists } = Surveyed::of_survey(&unlabelled)?;
        Ok(Self { checkpoint, inputs, lists, prompts: None, count, known, identity }.identified())
    }

    /// Adds the names of the inputs to what identifies the prediction.
    fn identified(mut self) -> Self {
        let mut hasher = blake3::Hasher::new();
        for name in self.names() {
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
        }
        self.identity.insert("inputs".to_owned(), json!(hasher.finalize().to_string()));
        self
    }

    /// Returns the names of the inputs in order: paths below the input, or prompts.
    pub(super) fn names(&self) -> Vec<String> {
        if let Some(prompts) = &self.prompts {
            return prompts.clone();
        }
        let unlabelled = serde_json::from_value::<Unlabelled>(self.inputs.clone()).ok();
        let samples = unlabelled.and_then(|unlabelled| unlabelled.into_samples());
        samples.map(|samples| super::samples::names(&samples)).unwrap_or_default()
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

fn list(path: &Path, recipe: &Recipe, saved: &Saved) -> Result<Samples> {
    if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
        let remedy = "name an image, a folder of images, or a table (.csv)";
        return Err(PredictError::Input { path: path.to_owned(), what: "does not exist", remedy }.into());
    }
    let path = std::path::absolute(path).map_err(failed(path))?;
    // A target that the table has may be empty.
    let fields: Vec<_> = columns(recipe).into_iter().filter(|field| field.field != TARGETS).collect();
    if !fields.iter().any(|field| field.kind == ColumnKind::Image) {
        let texts = fields.iter().filter(|field| matches!(field.kind, ColumnKind::Text | ColumnKind::Chat));
        let names: Vec<_> = texts.map(|field| field.field.clone()).collect();
        if !names.is_empty() {
            return Err(PredictError::Texts(names).into());
        }
    }
    let samples = inputs::list(&path, &fields).map_err(crate::tasks::TaskError::from)?;
    let unknown =
        inputs::unknown_classes(&path, &saved.class_names).map_err(crate::tasks::TaskError::from)?;
    if !unknown.is_empty() {
        let shown = dtrain_common::recipe::hints::and(
            &unknown.iter().take(5).map(String::as_str).collect::<Vec<_>>(),
        );
        tracing::warn!(
            "{} has {} that the checkpoint lacks: {shown}{}. Their images are predicted as one of its {} classes; to tell them apart, add \
             training images and train again",
            path.display(),
            match unknown.len() {
                1 => "1 class".to_owned(),
                count => format!("{count} classes"),
            },
            if unknown.len() > 5 { " and others" } else { "" },
            saved.class_names.len()
        );
    }
    if samples.ignored.files() > 0 {
        let files = dtrain_common::text::counted(samples.ignored.files(), "file");
        tracing::warn!("ignoring {files} in {}: {}", path.display(), samples.ignored);
    }
    Ok(samples)
}

fn unlabelled(
    recipe: &Recipe,
    saved: Saved,
    manifest: &Manifest,
    samples: Samples,
    question: &PredictQuestion,
) -> Result<Unlabelled> {
    let (mut pictures, needs) = (Pictures::default(), super::samples::needs(recipe));
    let mut size = |sample| pictures.size(&samples.image_path(sample), needs).ok();
    // An earlier version wrote no size, and the images keep theirs.
    let is_unknown = manifest.fields.is_empty() && recipe.data.resize == Resize::None;
    let saved = match is_unknown.then(|| (0..samples.count()).find_map(&mut size)).flatten() {
        Some(size) => saved.with_size(size),
        None => saved,
    };
    let Some(part) = question.wanted.windows else { return Ok(Unlabelled::of_samples(saved, samples)) };
    let Some((width, height)) = saved.size() else {
        let reason = "the model takes no images";
        return Err(PredictError::NoEffect { flag: "--windows", reason }.into());
    };
    if samples.files() != 1 {
        return Err(PredictError::WindowsOfSeveral(samples.files()).into());
    }
    let sizes = (0..samples.count()).map(|sample| size(sample).unwrap_or_default()).collect();
    let overlap = (part * f64::from(width.min(height))) as u32;
    Ok(Unlabelled::of_samples(saved, samples).in_windows(sizes, overlap))
}

/// Returns the prompts, one a line.
fn prompts(input: &Input) -> Result<Vec<String>> {
    let lines = |bytes: Vec<u8>, path: &Path| {
        let prompts: io::Result<Vec<String>> =
            bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).lines().collect();
        match prompts {
            Ok(prompts) if prompts.is_empty() => Err(PredictError::Input {
                path: path.to_owned(),
                what: "has no lines",
                remedy: "write a prompt into each line",
            }
            .into()),
            Ok(prompts) => Ok(prompts),
            Err(_) => Err(PredictError::Input {
                path: path.to_owned(),
                what: "is not a text in UTF-8",
                remedy: "name a file of prompts, one a line",
            }
            .into()),
        }
    };
    match input {
        Input::Prompt(prompt) => Ok(vec![prompt.clone()]),
        Input::Path(path) => lines(fs::read(path).map_err(failed(path))?, path),
        Input::Standard => {
            let (mut bytes, path) = (Vec::new(), Path::new("standard input"));
            io::stdin().lock().read_to_end(&mut bytes).map_err(failed(path))?;
            lines(bytes, path)
        }
    }
}
