//! `dtrain predict`: what a checkpoint's model says about images or texts without targets.
//!
//! Rank 0 lists the inputs and decides which are still to do; each rank takes a share and writes rows into its own parts; rank 0
//! joins them. The task is built from the checkpoint alone, not from the data that it was trained on.

mod coder;
mod episodes;
mod images;
mod inputs;
mod made;
mod open;
mod output;
mod parts;
mod rows;
mod samples;
mod stitch;
mod support;
mod text;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dtrain_common::batch::Partition;
use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::progress::{Progress, Unit};
use dtrain_recipe::Recipe;
use serde_json::{Value, json};
use tch::{Device, Tensor};

use self::coder::Coder;
use self::inputs::Noun;
use self::made::Maker;
use self::open::{Begun, Opening};
use self::output::Output;
use self::parts::{Part, Partial};
use self::text::Prompted;
use crate::checkpoint::broadcast_bytes;
use crate::collectives::{Ranks, ReduceOp, Rendezvous};
use crate::data::{LoaderOptions, is_token_target};
use crate::device;
use crate::memory::{self, budget};
use crate::metrics::ProgressStyle;
use crate::planning::PredictQuestion;
use crate::run::{TrainError, peak_memory};
use crate::setup::error::{Result, WorkerError};
use crate::setup::loader::loader_options;
use crate::setup::predict_error::PredictError;
use crate::setup::survey;
use crate::step::recover::Limits;
use crate::step::{Kernels, Precision};
use crate::stop::StopFlag;
use crate::tasks::predict::{Form, Predict, Unlabelled, columns};
use crate::tasks::{BuildTask, Facts, TaskError};
use crate::train::evaluation::{Evaluation, Filled, fill, followers_of};

/// A rank's means to predict.
struct Engine<'a> {
    predict: &'a dyn Predict,
    facts: &'a Facts,
    form: Form,
    question: &'a PredictQuestion,
    /// The numbers of the outputs that are asked for.
    outputs: Vec<usize>,
    /// Why inputs cannot be used.
    failed: &'a BTreeMap<u32, String>,
    precision: Precision,
    loader: LoaderOptions,
    limits: Limits,
    device: Device,
    part: Part,
    /// Through this rank's share; shown on rank 0.
    progress: Progress,
}

impl Engine<'_> {
    /// Computes without gradients, in the run's precision.
    fn forward<T>(&self, compute: impl FnOnce() -> Result<T, TaskError>) -> Result<T> {
        let computed = self.precision.run(|| tch::no_grad(compute)).map_err(TrainError::from)?;
        Ok(computed.map_err(TrainError::from)?)
    }
}

/// The work of a rank so far.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    inputs: usize,
    /// The written tokens of texts.
    tokens: usize,
    /// The samples of a batch.
    batch: usize,
}

/// Answers the question of `dtrain predict`. Every rank calls this; rank 0 prints a summary to standard output.
pub(crate) fn run<T: BuildTask + 'static>(
    recipe: &Recipe,
    env: &WorkerEnv,
    question: &PredictQuestion,
) -> Result<ExitStatus> {
    let began = Instant::now();
    budget::configure(recipe.memory.budget.value(), env)?;
    let device = device::choose(env)?;
    budget::allow(recipe.memory.budget, device, env.local_world_size).map_err(TrainError::from)?;
    let rendezvous = Rendezvous::open(env.clone())?;
    let opening = if env.rank == 0 {
        let opening = Opening::open(recipe, question).inspect_err(|error| {
            rendezvous.announce_failure(&error.to_string(), error.exit_status().code())
        })?;
        rendezvous.announce(&serde_json::to_vec(&opening)?)?;
        survey::serve(&opening.inputs, &opening.lists, &rendezvous, env)?;
        opening
    } else {
        let mut opening: Opening = serde_json::from_slice(&rendezvous.receive_opening()?)?;
        opening.lists = survey::receive(&mut opening.inputs, &[], &rendezvous, env)?;
        opening
    };
    let ranks = Ranks::new(rendezvous.connect(device)?);
    let prediction = Prediction { recipe, env, question, opening: &opening, ranks: &ranks, device };
    let summary = prediction.run::<T>(began)?;
    ranks.shutdown().map_err(TrainError::from)?;
    if let Some(summary) = summary {
        summary.print(question.json);
    }
    Ok(ExitStatus::Success)
}

struct Prediction<'a> {
    recipe: &'a Recipe,
    env: &'a WorkerEnv,
    question: &'a PredictQuestion,
    opening: &'a Opening,
    ranks: &'a Ranks,
    device: Device,
}

impl Prediction<'_> {
    /// Predicts this rank's share. Rank 0 joins all, and returns the summary.
    fn run<T: BuildTask + 'static>(&self, began: Instant) -> Result<Option<Summary>> {
        let &Self { recipe, env, question, opening, ranks, device } = self;
        let unlabelled = || serde_json::from_value::<Unlabelled>(opening.inputs.clone());
        let evaluation = Evaluation {
            recipe,
            survey: &Value::Null,
            folder: opening.checkpoint.clone(),
            is_shared: env.is_one_node(),
            weights: question.weights,
            batch: question.batch,
            samples: None,
            env,
            ranks,
            device,
            // What is written stays, so signals end it at once.
            stop: &StopFlag::default(),
        };
        let survey = T::inputs(unlabelled()?)?;
        let Filled { task, is_average, .. } = fill::<T>(&evaluation, survey, |_, _| Ok(()))?;
        let predict = task.predict().ok_or(TaskError::NoPrediction)?;
        let form = predict.form();
        let output = Output::of(question, &form, predict, opening.noun)?;
        let data = unlabelled()?;
        let coder = match &form {
            Form::Tokens { vocabulary, .. } => Some(Coder::new(recipe, vocabulary, data.tokenizer())?),
            _ => None,
        };
        let asked = if output.outputs.is_empty() { vec![predict.output()] } else { output.outputs.clone() };
        self.check_blanks(&predict.network().inputs_of(&asked))?;
        let partial = Partial::of(&question.out);
        let begun = self.begin(&partial)?;
        if let Some(kernels) = Kernels::new(recipe, device)? {
            kernels.apply().map_err(TrainError::from)?;
        }
        let of_rank = self.share(&begun.missing);
        let engine = Engine {
            predict,
            facts: task.facts(),
            outputs: output.outputs.clone(),
            failed: &opening.failed,
            form,
            question,
            precision: Precision::new(&recipe.precision, device)?,
            loader: LoaderOptions { augment: false, ..loader_options(recipe, env.local_world_size) },
            limits: Limits::new(device, recipe.memory.budget),
            device,
            part: Part::create(partial.part(begun.attempt, env.rank))?,
            progress: match env.rank {
                0 => Progress::of("predicting", of_rank.len() as u64, Unit::Things("inputs")),
                _ => Progress::silent(),
            },
        };
        let mut followers = followers_of(ProgressStyle::detect(env.rank));
        let started = Instant::now();
        let done = match &opening.prompts {
            Some(prompts) => {
                let Some(coder) = &coder else { return Err(TaskError::NoPrediction.into()) };
                let prompts = Prompted { prompts, coder, noun: opening.noun };
                text::run(engine, &prompts, &of_rank, self.batch(), &mut followers)?
            }
            None => {
                let support = data.support_members();
                let maker = Maker::new(recipe, &output, (data, &engine.form), partial.out())?;
                match support {
                    Some(support) => {
                        episodes::run(engine, (maker, &support), &of_rank, self.batch(), &mut followers)?
                    }
                    None => images::run(engine, maker, &of_rank, self.batch(), &mut followers)?,
                }
            }
        };
        let total = self.add_up(done)?;
        let took = started.elapsed();
        let peaks = peak_memory(ranks, memory::report(device).map_err(TrainError::from)?.peak)?;
        if env.rank > 0 {
            return Ok(None);
        }
        let joined = output.join(&partial, &opening.names)?;
        partial.finish()?;
        Ok(Some(Summary {
            out: question.out.display().to_string(),
            checkpoint: opening.checkpoint.display().to_string(),
            weights: if is_average { "average" } else { "raw" },
            inputs: opening.count,
            noun: opening.noun,
            unreadable: joined.unreadable,
            clipped: joined.clipped,
            done: total,
            took,
            began,
            peaks,
        }))
    }

    /// Returns the samples of a batch, as in an evaluation.
    fn batch(&self) -> usize {
        let recipe = self.recipe;
        let limit = recipe.memory.micro_batch.value();
        let cut = Partition::new(recipe.train.effective_batch, self.ranks.size(), limit);
        let batch = self.question.batch.or(recipe.evaluate.batch.value());
        batch.unwrap_or_else(|| cut.map_or(1, |cut| cut.micro_batch()))
    }

    /// Returns this rank's share of the inputs to do, in order: every N-th one, so that large inputs beside each other are shared.
    fn share(&self, missing: &[u32]) -> Vec<u32> {
        missing.iter().copied().skip(self.ranks.rank()).step_by(self.ranks.size()).collect()
    }

    /// Begins or continues, as rank 0 finds it. Every rank calls this.
    fn begin(&self, partial: &Partial) -> Result<Begun> {
        let own = (self.env.rank == 0).then(|| self.opening.begin(partial, self.question));
        let message = match &own {
            Some(Ok(begun)) => serde_json::to_vec(begun)?,
            _ => Vec::new(),
        };
        let sent = broadcast_bytes(&message, self.ranks).map_err(WorkerError::Evaluate)?;
        match own {
            Some(begun) => begun,
            None if sent.is_empty() => Err(PredictError::OfRankZero.into()),
            None => Ok(serde_json::from_slice(&sent)?),
        }
    }

    /// Warns of fields that no input has, of those that the predicted outputs depend on. Texts are an error.
    fn check_blanks(&self, taken: &[&str]) -> Result<()> {
        let blank = taken.iter().copied().filter(|name| self.opening.lacks(name));
        let columns = columns(self.recipe);
        let mut texts = columns.iter().filter(|field| field.kind.is_text());
        if let Some(text) = texts.find(|text| blank.clone().any(|name| name == text.field)) {
            let (field, columns) = (text.field.clone(), text.columns.join(", "));
            return Err(PredictError::NoText { field, columns }.into());
        }
        let is_own = |name: &str| columns.iter().any(|field| field.field == name);
        let (none, zero): (Vec<&str>, Vec<&str>) =
            blank.partition(|name| self.recipe.has_texts() && is_token_target(name) && !is_own(name));
        for (fields, value) in [(zero, "0"), (none, "-100, no target,")] {
            let are = if fields.len() == 1 { "it is" } else { "they are" };
            if self.env.rank == 0 && !fields.is_empty() {
                tracing::warn!(
                    "the outputs depend on `{}`, which inputs do not have: {are} {value} for all of them. What is computed from such a \
                     value, such as a loss, has no meaning",
                    fields.join("`, `")
                );
            }
        }
        Ok(())
    }

    /// Adds up what the ranks have done. All rows are written when it returns. Every rank calls this.
    fn add_up(&self, done: Done) -> Result<Done> {
        let own = [done.inputs, done.tokens].map(|count| count as i64);
        let sums = Tensor::f_from_slice(&own)?;
        self.ranks.all_reduce(&sums, ReduceOp::Sum).and_then(|work| work.wait()).map_err(TrainError::from)?;
        let sums = Vec::<i64>::try_from(sums)?;
        Ok(Done { inputs: sums[0] as usize, tokens: sums[1] as usize, ..done })
    }
}

/// What rank 0 prints in the end.
struct Summary {
    out: String,
    checkpoint: String,
    weights: &'static str,
    inputs: usize,
    noun: Noun,
    unreadable: usize,
    clipped: usize,
    done: Done,
    took: Duration,
    began: Instant,
    peaks: Vec<u64>,
}

impl Summary {
    fn print(&self, json: bool) {
        let Self { done, inputs, unreadable, noun, .. } = *self;
        let noun = noun.as_str();
        let seconds = self.took.as_secs_f64();
        let speed = |count: usize| count as f64 / seconds.max(1e-9);
        if self.clipped > 0 {
            tracing::warn!(
                "{} are below data.target_offset, or more than data.target_scale above it, and are stored as the nearest of the two in the PNG files; use \
                 the TIFF files",
                dtrain_common::text::counted(self.clipped, "pixel")
            );
        }
        let text = match json {
            true => json!({
                "out": self.out, "checkpoint": self.checkpoint, "weights": self.weights, "inputs": inputs,
                "unreadable": unreadable, "predicted": done.inputs, "tokens": done.tokens, "batch": done.batch,
                "seconds": seconds, "per_second": speed(done.inputs), "tokens_per_second": speed(done.tokens),
                "total_seconds": self.began.elapsed().as_secs_f64(), "peak_memory_bytes": self.peaks,
            })
            .to_string(),
            false => {
                let average = if self.weights == "average" { ", moving average" } else { "" };
                let bad = if unreadable > 0 { format!(", {unreadable} of them unreadable") } else { String::new() };
                let before = inputs.saturating_sub(done.inputs);
                let before = if before > 0 { format!(", {before} before") } else { String::new() };
                let tokens = match done.tokens {
                    0 => String::new(),
                    tokens => format!("{tokens} tokens, {:.1} tokens/s, ", speed(tokens)),
                };
                format!(
                    "{}: {}{bad}\n  {}{average}\n  {tokens}{seconds:.1} s, {:.1} {}s/s{before}, batches of {} per rank",
                    self.out, dtrain_common::text::counted(inputs, noun), self.checkpoint,
                    speed(done.inputs), noun, done.batch
                )
            }
        };
        // A closed pipe is not an error.
        let _ = writeln!(std::io::stdout().lock(), "{text}");
    }
}

/// Tries batches of a size, and of half the size whenever memory runs out. `attempt` gets what is still to do and the size, and
/// adds what it has done. Returns the size.
fn with_less_memory(
    engine: &mut Engine<'_>,
    todo: &[u32],
    (mut batch, least): (usize, usize),
    mut attempt: impl FnMut(&mut Engine<'_>, &[u32], usize, &mut usize) -> Result<()>,
) -> Result<usize> {
    use crate::memory::{Owners, Phase};
    use crate::step::recover::catch_torch_panic;
    let mut done = 0;
    while done < todo.len() {
        let outcome = catch_torch_panic(|| attempt(engine, &todo[done..], batch, &mut done));
        let outcome = outcome.unwrap_or_else(|error| Err(TrainError::from(error).into()));
        let Err(shortage) = engine.limits.find_shortage(outcome, Phase::Evaluate)? else { break };
        engine.limits.empty_cache();
        if batch <= least {
            let error = engine.limits.exhausted_error(&[Some(shortage)], least, 0, Owners::default());
            return Err(error.into());
        }
        let smaller = (batch / 2).max(least);
        tracing::warn!("out of memory: continuing with batches of {smaller} instead of {batch}");
        batch = smaller;
    }
    Ok(batch)
}

/// Shares a data set.
type Set = Arc<dyn crate::data::Dataset>;
