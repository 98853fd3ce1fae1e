//! `dtrain launch --try`: two steps of everything that a recipe does, in a separate folder.
//!
//! It starts `dtrain launch` with a shorter recipe, again from its checkpoint, and `dtrain predict`: what works here is what the
//! whole run does.

mod child;
mod estimate;
mod folder;
mod run_files;
mod shorten;
mod show;

use self::child::Ended;
use self::folder::Folder;
use self::run_files::{Lines, PlanFile, StageOfPlan};
use self::show::{Show, say};
use crate::cli::{Form, LaunchArgs};
use crate::stop::Stop;
use crate::trainer::{Paths, resolve};
use anyhow::{Context, bail};
use dtrain_agent::signals;
use dtrain_common::env::{DTRAIN_GUARDIAN, DTRAIN_OF_TRY, of_process};
use dtrain_common::exit::ExitStatus;
use dtrain_common::manifest::Manifest;
use dtrain_common::recipe::{AnyRecipe, Source};
use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::{counted, grouped, size};
use rustix::process::Signal;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The parts after the training.
const REST: &str = "evaluation, checkpoint";
const RESUME: &str = "resume";
const PREDICTION: &str = "prediction";

/// A part that failed.
#[derive(Debug, thiserror::Error)]
#[error("{cause}")]
struct Failed {
    code: u8,
    cause: String,
    /// The output of the failed command.
    log: Option<PathBuf>,
}

/// Makes a launch of a try end with the try, however that ends.
pub(crate) fn end_with_parent() {
    if of_process(DTRAIN_OF_TRY).is_some() && of_process(DTRAIN_GUARDIAN).is_none() {
        // Without it only a killed try leaves its launch behind.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
    }
}

/// Runs the command.
pub(crate) fn run(args: &LaunchArgs) -> anyhow::Result<ExitCode> {
    let name = recipe_of(args)?;
    let stop = Stop::listen()?;
    let mut show = Show::begin("settings");
    let resolved = resolve(&Source::find(name)?, &args.set, Paths::Check)?;
    let stated = AnyRecipe::parse(&Source::find(name)?, &args.set)?;
    let folder = Folder::create(args.run_dir.as_deref(), name)?;
    say(&format!(
        "dtrain: trying {name}: {} of each stage, in {}",
        counted(2, "step"),
        folder.root().display()
    ));
    show.next("", "data and model");
    let mut tryout = Try { args, stated, resolved: resolved.recipe, folder, stop, show };
    match tryout.parts() {
        Ok(sentences) => {
            tryout.folder.remove()?;
            say("dtrain: everything works. The whole run:");
            sentences.iter().for_each(|sentence| say(&format!("  {sentence}")));
            Ok(ExitCode::SUCCESS)
        }
        Err(error) => tryout.fail(error),
    }
}

/// Returns the recipe of the command line.
fn recipe_of(args: &LaunchArgs) -> anyhow::Result<&str> {
    let Some(target) = args.target()?.filter(|target| target.form == Form::Recipe) else {
        bail!("--try is for recipes: it takes two steps of a training; give a recipe");
    };
    if args.contract.rendezvous.is_several() {
        bail!(
            "--try runs on one node; start it without the flags of several nodes, on a machine like theirs"
        );
    }
    if let Some(resume) = &args.resume {
        bail!(
            "--resume {resume} has no effect with --try, which starts and resumes another run; leave it out"
        );
    }
    target
        .name
        .to_str()
        .with_context(|| format!("the recipe's name `{}` is not valid UTF-8", target.name.display()))
}

struct Try<'a> {
    args: &'a LaunchArgs,
    /// The recipe of the whole run, as the user states it.
    stated: AnyRecipe,
    /// The same with all defaults.
    resolved: AnyRecipe,
    folder: Folder,
    stop: Stop,
    show: Show,
}

impl Try<'_> {
    /// Tries all parts. Returns what is known about the whole run.
    fn parts(&mut self) -> anyhow::Result<Vec<String>> {
        let run_dir = RunDir::new(self.folder.path("run"));
        let plan = self.train(&run_dir)?;
        let lines = Lines::read(&run_dir);
        if let Some(cause) = estimate::schedule_problem(&self.resolved, &plan) {
            self.show = Show::begin("schedule");
            let log = Some(self.folder.path(RECIPE).with_extension("log"));
            bail!(Failed { code: ExitStatus::Usage.code(), cause, log });
        }
        self.resume(&run_dir, &plan, &lines)?;
        self.predict(&run_dir, &plan)?;
        Ok(estimate::sentences(&self.resolved, &plan, &lines, self.folder.parent()))
    }

    /// Starts a launch of the shortened recipe, and calls `look` while it runs.
    fn launch(
        &mut self,
        run_dir: &RunDir,
        recipe: &str,
        resume: &OsStr,
        mut look: impl FnMut(&mut Show),
    ) -> anyhow::Result<Ended> {
        let path = self.folder.path(recipe);
        let table = shorten::shortened(&self.stated, recipe == RECIPE);
        fs::write(&path, toml::to_string(&table)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        let mut words: Vec<OsString> = vec!["launch".into()];
        words.extend(self.args.given.iter().cloned());
        words.extend(["--run-dir".into(), run_dir.root().into(), "--resume".into(), resume.to_owned()]);
        words.push(path.into());
        let (show, log) = (&mut self.show, self.folder.path(recipe).with_extension("log"));
        child::run(&words, log, &self.stop, |said| {
            look(show);
            show.says(said);
        })
    }

    /// Trains, evaluates, writes checkpoints and tests.
    fn train(&mut self, run_dir: &RunDir) -> anyhow::Result<PlanFile> {
        let mut followed = Followed::default();
        let ended = self.launch(run_dir, RECIPE, "never".as_ref(), |show| followed.look(run_dir, show))?;
        followed.look(run_dir, &mut self.show);
        self.check(&ended, Some(run_dir))?;
        let plan = followed.plan.context("the run has no plan.json")?;
        let lines = Lines::read(run_dir);
        let ms = |times: &mut dyn Iterator<Item = f64>| times.sum::<f64>() / 1e3;
        for (name, evaluations) in [("evaluation", &lines.evaluations), ("test", &lines.tests)] {
            let Some(first) = evaluations.first() else { continue };
            let whole = if name == "test" { plan.test_samples } else { plan.watched() };
            let set = first.set.as_deref().unwrap_or("test");
            let details = format!("{} of {} samples of {set}", grouped(first.samples), grouped(whole));
            let took = ms(&mut evaluations.iter().map(|evaluation| evaluation.eval_ms));
            self.show.row(name, "ok", Some(took), &details);
        }
        if let Some(last) = lines.checkpoints.last() {
            self.show.row("checkpoint", "ok", Some(last.total_ms / 1e3), &size(last.bytes));
        }
        Ok(plan)
    }

    /// Resumes from the last but one step, and compares the last one.
    fn resume(&mut self, run_dir: &RunDir, plan: &PlanFile, lines: &Lines) -> anyhow::Result<()> {
        self.show = Show::begin(RESUME);
        let last = plan.total_steps;
        let again = RunDir::new(self.folder.path("resumed"));
        let checkpoint = run_dir.checkpoint(last - 1);
        let ended = self.launch(&again, AGAIN, checkpoint.as_os_str(), |_| {})?;
        self.check(&ended, Some(&again))?;
        let differing = differing(&run_dir.checkpoint(last), &again.checkpoint(last))?;
        let loss =
            |lines: &Lines| lines.steps.iter().find(|step| step.step == last).and_then(|step| step.loss);
        let losses = (loss(lines), loss(&Lines::read(&again)));
        let details = match (differing.is_empty(), plan.device.starts_with("CPU")) {
            (true, _) => format!("step {last} again: the same weights, bit by bit"),
            // Kernels of a GPU may add in any order.
            (false, false) if are_close(losses) => {
                format!("step {last} again: the same loss; {} in the last digits", differ(&differing))
            }
            _ => bail!(Failed {
                code: ExitStatus::WorkerFailed.code(),
                cause: format!(
                    "step {last} of the resumed run is not that of the uninterrupted one: {}; a task, a data set or a program \
                     has a state that checkpoints do not hold",
                    differ(&differing)
                ),
                log: Some(ended.log().to_owned()),
            }),
        };
        self.show.next(&details, PREDICTION);
        Ok(())
    }

    /// Predicts one sample.
    fn predict(&mut self, run_dir: &RunDir, plan: &PlanFile) -> anyhow::Result<()> {
        let input = match self.inputs(&run_dir.checkpoint(plan.total_steps)) {
            Ok(input) => input,
            Err(why) => {
                self.show.end("not tried", why);
                return Ok(());
            }
        };
        // A table or a folder, whichever the model's predictions are.
        let mut ended = self.predict_to(run_dir, &input, "predictions.jsonl")?;
        if ended.code == ExitStatus::Usage.code() && ended.last_words().starts_with("-o ") {
            ended = self.predict_to(run_dir, &input, "predictions")?;
        }
        if ended.code == ExitStatus::Usage.code() && ended.last_words().contains(NO_PREDICTION) {
            self.show.end("not tried", "the task makes no predictions");
            return Ok(());
        }
        self.check(&ended, None)?;
        self.show.end("ok", "one sample");
        Ok(())
    }

    fn predict_to(&mut self, run_dir: &RunDir, input: &[String; 2], out: &str) -> anyhow::Result<Ended> {
        let mut words: Vec<OsString> = vec!["predict".into(), run_dir.root().into()];
        words.extend(input.iter().map(Into::into));
        if input[0] == SPLIT {
            words.extend(["--first", "1"].map(Into::into));
        }
        words.extend(["--nproc", "1", "-o"].map(Into::into));
        words.push(self.folder.path(out).into());
        if let Some(ids) = &self.args.gpus.gpu_ids {
            let first = ids.to_string();
            words.push(format!("--gpu-ids={}", first.split(',').next().unwrap_or_default()).into());
        }
        let show = &mut self.show;
        child::run(&words, self.folder.path("predict.log"), &self.stop, |said| show.says(said))
    }

    /// Returns the inputs of the prediction by a checkpoint as words, or why there is no prediction.
    fn inputs(&self, checkpoint: &Path) -> Result<[String; 2], &'static str> {
        let data = self.resolved.section("data");
        let kind = data.get("kind").and_then(toml::Value::as_str).unwrap_or_default();
        match kind {
            _ if data.contains_key("episodes") => Err("a model of episodes needs labelled images"),
            "generated" => Err("generated data has no files"),
            _ if self.resolved.task() == "custom" && self.stated.section("data").is_empty() => {
                Err("the trainer has its own data")
            }
            "tokens" if !data.contains_key("tokenizer") => Err("tokens without a tokenizer are no text"),
            "text" | "tokens" => Ok(["--prompt".to_owned(), run_files::prompt(checkpoint)]),
            _ => Ok([SPLIT, "test"].map(str::to_owned)),
        }
    }

    /// Returns the error of a child that failed, or was stopped.
    fn check(&self, ended: &Ended, run_dir: Option<&RunDir>) -> anyhow::Result<()> {
        if let Some(signal) = self.stop.signal() {
            let code = ExitStatus::Signal(signal).code();
            bail!(Failed { code, cause: format!("stopped by {}", signals::name(signal)), log: None });
        }
        if ended.code == 0 {
            return Ok(());
        }
        let result = run_dir.and_then(|run_dir| RunResult::read(&run_dir.result()).ok().flatten());
        let failure = result.and_then(|result| result.failure);
        let known = failure.and_then(|failure| failure.cause.map(|cause| cause.text).or(failure.message));
        let cause = known.unwrap_or_else(|| ended.last_words());
        bail!(Failed { code: ended.code, cause, log: Some(ended.log().to_owned()) })
    }

    /// Reports what failed. The folder stays, unless the user has stopped the try.
    fn fail(mut self, error: anyhow::Error) -> anyhow::Result<ExitCode> {
        let failed = error.downcast::<Failed>().map_err(|error| {
            error.context(format!("the try stopped, and its files are in {}", self.folder.root().display()))
        })?;
        let part = self.show.name().to_owned();
        self.show.end(if failed.log.is_some() { "failed" } else { "stopped" }, "");
        let Some(log) = &failed.log else {
            self.folder.remove()?;
            say(&format!("dtrain: {}", failed.cause));
            return Ok(failed.code.into());
        };
        let later: &[&str] = match part.as_str() {
            PREDICTION => &[],
            RESUME => &[PREDICTION],
            _ => &[RESUME, PREDICTION],
        };
        later.iter().for_each(|later| self.show.row(later, "not tried", None, ""));
        say(&format!("dtrain: {part} failed with exit code {}: {}", failed.code, failed.cause));
        say(&format!(
            "dtrain: its output is in {}, and everything else in {}",
            log.display(),
            self.folder.root().display()
        ));
        Ok(failed.code.into())
    }
}

/// The recipes of the run and of the resumed one.
const RECIPE: &str = "run.toml";
const AGAIN: &str = "resumed.toml";
/// The flag of `dtrain predict` for samples of the recipe's data.
const SPLIT: &str = "--split";
/// In the error of a task without predictions.
const NO_PREDICTION: &str = "makes no predictions";

/// The parts of a run that are known to have ended.
#[derive(Default)]
struct Followed {
    plan: Option<PlanFile>,
    stages: usize,
}

impl Followed {
    /// Shows the parts that have ended since the last look.
    fn look(&mut self, run_dir: &RunDir, show: &mut Show) {
        if self.plan.is_none()
            && let Some(plan) = run_files::plan(run_dir)
        {
            let samples = format!(
                "{} training samples, {} to evaluate",
                grouped(plan.train_samples),
                grouped(plan.watched())
            );
            show.next(&samples, &plan.stages().first().map_or_else(String::new, name_of));
            self.plan = Some(plan);
        }
        let Some(plan) = &self.plan else { return };
        let (lines, stages) = (Lines::read(run_dir), plan.stages());
        while let Some(stage) = stages.get(self.stages) {
            let [first, last] = stage.steps;
            let taken: Vec<_> =
                lines.steps.iter().filter(|line| (first..=last).contains(&line.step)).collect();
            if (taken.len() as u64) < last + 1 - first {
                return;
            }
            self.stages += 1;
            let times =
                taken.iter().map(|line| format!("{:.0} ms", line.step_ms)).collect::<Vec<_>>().join(", ");
            let details = format!(
                "{} of {} samples: {times}",
                counted(taken.len(), "step"),
                grouped(stage.effective_batch)
            );
            show.next(&details, &stages.get(self.stages).map_or_else(|| REST.to_owned(), name_of));
        }
    }
}

fn name_of(stage: &StageOfPlan) -> String {
    match stage.name.as_str() {
        "" => "training".to_owned(),
        name => format!("stage {name}"),
    }
}

/// Returns the files of tensors in which two checkpoints differ.
fn differing(one: &Path, other: &Path) -> anyhow::Result<Vec<String>> {
    let (one, other) = (Manifest::read(one)?, Manifest::read(other)?);
    let is_other = |name: &str| {
        let of = |manifest: &Manifest| manifest.files.iter().find(|file| file.name == name).cloned();
        of(&one) != of(&other)
    };
    let names = one.files.iter().map(|file| file.name.clone());
    Ok(names.filter(|name| name.ends_with(".safetensors") && is_other(name)).collect())
}

fn differ(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "differs" } else { "differ" })
}

/// Returns whether two losses are equal but for rounding.
fn are_close(losses: (Option<f64>, Option<f64>)) -> bool {
    match losses {
        (Some(one), Some(other)) => (one - other).abs() <= 1e-3 * one.abs().max(1e-6),
        (None, None) => true,
        _ => false,
    }
}
