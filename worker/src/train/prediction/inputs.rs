//! The inputs of a prediction: images, lines of a table, texts or prompts.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use dtrain_common::recipe::hints::and;
use dtrain_common::text::counted;
use dtrain_recipe::{ColumnKind, FieldColumns, Recipe, Target};
use serde::{Deserialize, Serialize};

use super::coder;
use super::parts::failed;
use super::samples::names;
use crate::data::sources::inputs;
use crate::data::{PromptForm, Samples, TextTokenizer, TokenizerFiles, Vocabulary, chat_of, is_target};
use crate::planning::{Input, PredictQuestion};
use crate::setup::error::Result;
use crate::setup::predict_error::PredictError;
use crate::tasks::predict::{Saved, columns, text_rules};
use crate::tasks::{TaskError, has_splits, split, split_names};

/// The field of numbers as targets.
const TARGETS: &str = "targets";
/// The field of the text that a language model writes.
const TOKENS: &str = "tokens";
/// Unknown classes that are named.
const SHOWN: usize = 5;

/// The kind of name of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Noun {
    Image,
    Prompt,
    Text,
    /// A line of a table without images and texts.
    Line,
}

impl Noun {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Prompt => "prompt",
            Self::Text => "text",
            Self::Line => "line",
        }
    }
}

/// The inputs.
pub(super) struct Found {
    /// All but prompts; None if they are all.
    pub(super) samples: Option<Samples>,
    /// The prompts, if texts are written.
    pub(super) prompts: Option<Vec<String>>,
    pub(super) names: Vec<String>,
    pub(super) noun: Noun,
    /// Why inputs cannot be used.
    pub(super) failed: BTreeMap<u32, String>,
    /// The tokenizer's files, if texts are written.
    pub(super) tokenizer: Option<TokenizerFiles>,
}

impl Found {
    /// Returns prompts alone with their names.
    fn of_prompts(names: Vec<String>, prompts: Vec<String>) -> Self {
        let failed = BTreeMap::new();
        Self { samples: None, prompts: Some(prompts), names, noun: Noun::Prompt, failed, tokenizer: None }
    }
}

/// The request, and what the checkpoint says.
struct Finder<'a> {
    recipe: &'a Recipe,
    saved: &'a Saved,
    question: &'a PredictQuestion,
    /// The fields of an input, images, numbers and texts, and those of targets.
    fields: Vec<FieldColumns>,
    tokenizer: Option<TextTokenizer>,
}

/// Finds the inputs of a prediction.
pub(super) fn find(
    recipe: &Recipe,
    saved: &Saved,
    question: &PredictQuestion,
    checkpoint: &Path,
) -> Result<Found> {
    // A target that the table has may be empty.
    let fields = columns(recipe).into_iter().filter(|field| field.field != TARGETS).collect();
    let tokenizer = coder::of_checkpoint(checkpoint, saved.vocabulary().as_ref())?;
    let finder = Finder { recipe, saved, question, fields, tokenizer };
    // Other outputs of a program than texts have the texts of samples as inputs.
    let has_others = !question.wanted.outputs.is_empty() && recipe.task.facts().returns_loss;
    let writes = recipe.target() == Some(Target::Tokens) && !has_others;
    if writes { finder.prompts() } else { finder.samples() }
}

impl Finder<'_> {
    /// Finds the inputs of a model that writes texts.
    fn prompts(&self) -> Result<Found> {
        if matches!(self.saved.vocabulary(), Some(Vocabulary::Numbers(_))) {
            return Err(PredictError::NoTokenizer.into());
        }
        let tokenizer = self.tokenizer.as_ref().map(|tokenizer| tokenizer.files().clone());
        let is_table = |path: &Path| !self.recipe.is_text() && inputs::is_table(path);
        let listed = match &self.question.input {
            Input::Split(name) => self.split(name)?,
            Input::Path(path) if is_table(path) => self.prompts_of(path)?,
            _ => {
                let beside = |field: &FieldColumns| {
                    field.field != TOKENS && (field.kind == ColumnKind::Image || field.kind.is_text())
                };
                if !self.recipe.is_text() && self.fields.iter().any(beside) {
                    return Err(PredictError::NeedsTable(self.columns()).into());
                }
                let names = self.lines()?;
                let is_chat = coder::form(self.recipe) == PromptForm::Chat;
                let prompt = |name: &String| if is_chat { chat_of(name) } else { name.clone() };
                let prompts = names.iter().map(prompt).collect();
                return Ok(Found { tokenizer, ..Found::of_prompts(names, prompts) });
            }
        };
        let Some(texts) = listed.texts_of(TOKENS) else { return Err(TaskError::NoPrediction.into()) };
        let prompts: Vec<String> = texts.iter().map(str::to_owned).collect();
        let rest = listed.without(TOKENS);
        let found = match rest.lists.is_empty() {
            true => Found::of_prompts(prompts.clone(), prompts),
            false => {
                let found = self.encoded(rest)?;
                // Another text of a sample is no name for it.
                let (names, noun) = match found.noun {
                    Noun::Image => (found.names, Noun::Image),
                    _ => (prompts.clone(), Noun::Prompt),
                };
                Found { names, noun, prompts: Some(prompts), ..found }
            }
        };
        Ok(Found { tokenizer, ..found })
    }

    /// Lists the lines of a table with prompts.
    fn prompts_of(&self, path: &Path) -> Result<Samples> {
        let mut fields = self.fields.clone();
        // A prediction has no answer yet.
        fields.iter_mut().filter(|field| field.field == TOKENS).for_each(|field| field.columns.truncate(1));
        let listed = self.list(path, &fields)?;
        if listed.texts_of(TOKENS).is_none() {
            // Alone, its error names the column.
            fields.retain(|field| field.field == TOKENS);
            self.list(path, &fields)?;
        }
        Ok(listed)
    }

    /// Lists the samples of a set of the run's data, without targets.
    fn split(&self, name: &str) -> Result<Samples> {
        if !has_splits(self.recipe) {
            return Err(PredictError::NoSplits.into());
        }
        let Some(mut samples) = split(self.recipe, name)? else {
            let known = split_names(self.recipe).into_iter().map(str::to_owned).collect();
            return Err(PredictError::NoSplit { name: name.to_owned(), known }.into());
        };
        let is_input =
            |name: &str| self.fields.iter().any(|field| field.kind.is_input() && field.field == name);
        samples.lists.retain(|list| is_input(&list.field));
        self.first(samples)
    }

    /// Returns the samples that are asked for.
    fn first(&self, samples: Samples) -> Result<Samples> {
        match self.question.first {
            Some(first) => Ok(samples.first(first).map_err(TaskError::from)?),
            None => Ok(samples),
        }
    }

    /// Returns the lines of the input that are asked for.
    fn lines(&self) -> Result<Vec<String>> {
        let mut lines = lines(&self.question.input)?;
        lines.truncate(self.question.first.unwrap_or(usize::MAX));
        Ok(lines)
    }

    /// Finds the inputs of a model that predicts something of samples.
    fn samples(&self) -> Result<Found> {
        let taken: Vec<_> = self.fields.iter().filter(|field| field.kind.is_input()).collect();
        let only = match taken.as_slice() {
            [field] if field.kind == ColumnKind::Text && field.columns.len() == 1 => Some(&*field.field),
            _ => None,
        };
        let has_images = taken.iter().any(|field| field.kind == ColumnKind::Image);
        let samples = match (&self.question.input, only) {
            (Input::Path(path), Some(_)) if path.is_dir() => {
                let (what, remedy) =
                    ("is a folder", "name a table (.csv, .jsonl), or a file of texts, one a line");
                return Err(PredictError::Input { path: path.clone(), what, remedy }.into());
            }
            (Input::Split(name), _) => self.split(name)?,
            (Input::Path(path), None) => self.list(path, &self.fields)?,
            (Input::Path(path), Some(_)) if inputs::is_table(path) => self.list(path, &self.fields)?,
            (input, Some(field)) => {
                inputs::of_lines(name_of(input), field, &self.lines()?).map_err(TaskError::from)?
            }
            (_, None) if taken.iter().any(|field| field.kind != ColumnKind::Image) => {
                return Err(PredictError::NeedsTable(self.columns()).into());
            }
            (input, None) => {
                let flag = if *input == Input::Standard { "the input -" } else { "--prompt" };
                let reason = "the model takes images, not prompts";
                return Err(PredictError::NoEffect { flag, reason }.into());
            }
        };
        if has_images {
            self.warn_of_files(&samples)?;
        }
        self.encoded(samples)
    }

    /// Returns the names of the columns of a table of inputs.
    fn columns(&self) -> String {
        let taken = self.fields.iter().filter(|field| field.kind.is_input());
        let columns = taken.flat_map(|field| match &*field.field {
            TOKENS if self.recipe.target() == Some(Target::Tokens) => &field.columns[..1],
            _ => &field.columns[..],
        });
        and(&columns.map(String::as_str).collect::<Vec<_>>())
    }

    fn list(&self, path: &Path, fields: &[FieldColumns]) -> Result<Samples> {
        if fs::metadata(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            let remedy = "name an image, a folder of images, or a table (.csv, .jsonl)";
            return Err(PredictError::Input { path: path.to_owned(), what: "does not exist", remedy }.into());
        }
        let path = std::path::absolute(path).map_err(failed(path))?;
        self.first(inputs::list(&path, fields).map_err(TaskError::from)?)
    }

    /// Names the inputs, and makes their texts tokens.
    fn encoded(&self, samples: Samples) -> Result<Found> {
        let text = samples.text_field().and_then(|field| samples.texts_of(field));
        let (names, noun) = match (samples.images().next(), text) {
            (Some(_), _) => (names(&samples), Noun::Image),
            (None, Some(texts)) => (texts.iter().map(str::to_owned).collect(), Noun::Text),
            (None, None) => (names(&samples), Noun::Line),
        };
        let found = |samples, failed| Found {
            samples: Some(samples),
            prompts: None,
            names,
            noun,
            failed,
            tokenizer: None,
        };
        let Some(field) = samples.text_field().map(str::to_owned) else {
            return Ok(found(samples, BTreeMap::new()));
        };
        let is_prompt = samples.has_prompts();
        let rules = text_rules(self.recipe, self.tokenizer.as_ref());
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let (mut samples, bad) = samples.encoded(&rules, threads).map_err(TaskError::from)?;
        if is_prompt || columns(self.recipe).iter().any(|field| is_target(&field.field)) {
            samples = samples.with_tokens_as_inputs();
        }
        let context = self.saved.context(&field);
        for (field, cut) in samples.cut_texts(context) {
            let (texts, are) = (counted(cut, "text"), if cut == 1 { "is" } else { "are" });
            tracing::warn!(
                "{texts} of `{field}` {are} longer than the model's {context} tokens, and {are} cut"
            );
        }
        Ok(found(samples, bad.into_iter().map(|bad| (bad.index as u32, bad.reason)).collect()))
    }

    /// Warns of classes that the checkpoint lacks, and of files that are no input.
    fn warn_of_files(&self, samples: &Samples) -> Result<()> {
        let Input::Path(path) = &self.question.input else { return Ok(()) };
        // The classes of labelled images are others.
        let of_support = self.question.wanted.support.is_some();
        let classes = if of_support { &[][..] } else { self.saved.class_names.as_slice() };
        let unknown = inputs::unknown_classes(path, classes).map_err(TaskError::from)?;
        if !unknown.is_empty() {
            let shown = and(&unknown.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>());
            tracing::warn!(
                "{} has {} that the checkpoint lacks: {shown}{}. Their images are predicted as one of its {} classes; to tell them apart, \
                 add training images and train again",
                path.display(),
                match unknown.len() {
                    1 => "1 class".to_owned(),
                    count => format!("{count} classes"),
                },
                if unknown.len() > SHOWN { " and others" } else { "" },
                classes.len()
            );
        }
        if samples.ignored.files() > 0 {
            let files = counted(samples.ignored.files(), "file");
            tracing::warn!("ignoring {files} in {}: {}", path.display(), samples.ignored);
        }
        Ok(())
    }
}

/// Returns what stands for the file of inputs in messages.
fn name_of(input: &Input) -> &Path {
    match input {
        Input::Path(path) => path,
        Input::Standard => Path::new("standard input"),
        Input::Prompt(_) => Path::new("--prompt"),
        Input::Split(_) => Path::new("--split"),
    }
}

/// Returns texts, one a line.
fn lines(input: &Input) -> Result<Vec<String>> {
    let lines = |bytes: Vec<u8>, path: &Path| {
        let lines: io::Result<Vec<String>> =
            bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes).lines().collect();
        let wrong =
            |what, remedy| Err(PredictError::Input { path: PathBuf::from(path), what, remedy }.into());
        match lines {
            Ok(lines) if lines.is_empty() => wrong("has no lines", "write a text into each line"),
            Ok(lines) => Ok(lines),
            Err(_) => wrong("is not a text in UTF-8", "name a file of texts, one a line"),
        }
    };
    match input {
        Input::Prompt(prompt) => Ok(vec![prompt.clone()]),
        Input::Path(path) => lines(fs::read(path).map_err(failed(path))?, path),
        Input::Split(_) => Err(PredictError::NoSplits.into()),
        Input::Standard => {
            let (mut bytes, path) = (Vec::new(), name_of(input));
            io::stdin().lock().read_to_end(&mut bytes).map_err(failed(path))?;
            lines(bytes, path)
        }
    }
}
