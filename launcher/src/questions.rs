//! Commands that need the model: for a plan or a profile, the launcher becomes the worker.

use crate::ckpt::{self, Model};
use crate::cli::{
    CkptCommand, DataArgs, EvalArgs, LaunchArgs, PlanArgs, PredictArgs, ProfileArgs, RecipeArgs, SuggestArgs,
};
use crate::executable;
use crate::gpu_names::{of_machine, usual};
use crate::trainer::{Paths, find_loadable_worker, question_command, resolve};
use anyhow::{Context, bail};
use dtrain_common::batch::Partition;
use dtrain_common::env::CUDA_VISIBLE_DEVICES;
use dtrain_common::gpu::{self, GpuError, Visible};
use dtrain_common::lr_range::LrRange;
use dtrain_common::question::{DataQuestion, Gpu, Mode, PlanQuestion, ProfileQuestion, Question};
use dtrain_common::recipe::{Resolved, Source};
use dtrain_common::run_dir::follow;
use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Runs `dtrain plan`. On success, this and the next three functions do not return.
pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let recipe = asked(&args.recipe, Paths::Ignore)?;
    let (gpus, visible) = match &args.gpu {
        Some(list) => (list.0.clone(), None),
        None => find_local_gpus().unwrap_or_else(|error| {
            if !matches!(error, GpuError::NoDriver) {
                // The plan does not need the driver.
                let _ = writeln!(std::io::stderr(), "dtrain: {error}; planning for usual sizes");
            }
            (usual(), None)
        }),
    };
    let nproc = args.nproc.map(|number| number as usize).or(visible).unwrap_or(1);
    let mode = if args.measured { Mode::Measured } else { Mode::Symbolic };
    let (stage, json) = (Some(args.stage.clone()), args.json);
    let question = Question::Plan(PlanQuestion { gpus, nproc, mode, stage, brief: false, json });
    become_worker(&args.recipe, &recipe, nproc, &question)
}

/// Runs `dtrain gpu suggest-batch-size`.
pub(crate) fn suggest(args: &SuggestArgs) -> anyhow::Result<ExitCode> {
    let recipe = asked(&args.recipe, Paths::Ignore)?;
    let named = args.gpu.as_ref().map(|list| Ok((list.0.clone(), Some(1))));
    let gpus = match named.unwrap_or_else(find_local_gpus) {
        Ok((gpus, Some(_))) => gpus,
        Ok((_, None)) => {
            bail!("no GPU of this machine is visible; name GPUs with --gpu, such as --gpu t4,24GiB")
        }
        Err(error) => bail!("{error}; name GPUs with --gpu, such as --gpu t4,24GiB"),
    };
    let (nproc, mode) = (args.nproc as usize, Mode::Symbolic);
    let question =
        Question::Plan(PlanQuestion { gpus, nproc, mode, stage: None, brief: true, json: args.json });
    become_worker(&args.recipe, &recipe, nproc, &question)
}

/// Runs `dtrain profile`.
pub(crate) fn profile(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let recipe = asked(&args.recipe, Paths::Check)?;
    let (nproc, stage) = (args.nproc as usize, args.stage.clone());
    let question =
        Question::Profile(ProfileQuestion { stage, find_optimal: args.find_optimal, nproc, json: args.json });
    become_worker(&args.recipe, &recipe, nproc, &question)
}

/// Returns the launch of the workers for `dtrain profile --lr-range`.
pub(crate) fn lr_range(args: &ProfileArgs, range: LrRange) -> anyhow::Result<LaunchArgs> {
    let recipe = asked(&args.recipe, Paths::Check)?;
    check_cut(&recipe, args.nproc as usize)?;
    args.launch(&find_loadable_worker()?, range)
}

/// Runs `dtrain data`.
pub(crate) fn data(args: &DataArgs) -> anyhow::Result<ExitCode> {
    // The report says what a training does with a missing folder.
    let recipe = asked(&args.recipe, Paths::Ignore)?;
    let (samples, epoch, json) = (args.samples as usize, args.epoch, args.json);
    let question = Question::Data(DataQuestion { show: args.show.clone(), samples, epoch, json });
    become_worker(&args.recipe, &recipe, 1, &question)
}

/// Returns what the trainer says about a recipe.
fn asked(args: &RecipeArgs, paths: Paths) -> anyhow::Result<Resolved> {
    resolve(&Source::find(&args.recipe)?, &args.set, paths)
}

/// Returns the launch of the worker for `dtrain eval`.
pub(crate) fn eval(args: &EvalArgs) -> anyhow::Result<LaunchArgs> {
    let Some(checkpoint) = &args.checkpoint else {
        if executable::is_recipe(OsStr::new(&args.recipe)) {
            bail!(
                "{} is a recipe; add --checkpoint with a run directory, or name a run instead",
                args.recipe
            );
        }
        let model = saved(Path::new(&args.recipe), &args.set, Paths::Check)?;
        return args.launch(&find_loadable_worker()?, utf8(&model.recipe)?, &model.checkpoint);
    };
    resolve(&Source::find(&args.recipe)?, &args.set, Paths::Check)?;
    if !follow(checkpoint).is_dir() {
        bail!(
            "--checkpoint {}: no such folder; give a checkpoint such as RUN_DIR/checkpoints/latest, or RUN_DIR",
            checkpoint.display()
        );
    }
    args.launch(&find_loadable_worker()?, &args.recipe, checkpoint)
}

/// Returns the launch of the worker for `dtrain predict`.
pub(crate) fn predict(args: &PredictArgs) -> anyhow::Result<LaunchArgs> {
    if let Some(input) = args.input.as_ref().filter(|input| input.as_os_str() != "-" && !input.exists()) {
        bail!(
            "{} does not exist; name an image, a folder of images, a table (.csv) or a file of prompts",
            input.display()
        );
    }
    // The data of the training may be gone.
    let paths = if args.split.is_some() { Paths::Check } else { Paths::Ignore };
    let model = saved(&args.model, &args.set, paths)?;
    args.launch(&find_loadable_worker()?, utf8(&model.recipe)?, &model.checkpoint)
}

/// Runs `dtrain ckpt`. The trainer exports a checkpoint that lacks parameters; then this does not return on success.
pub(crate) fn ckpt(command: &CkptCommand) -> anyhow::Result<ExitCode> {
    let merge = match command {
        CkptCommand::Export(args) => ckpt::merge(args)?,
        _ => None,
    };
    let Some(question) = merge else { return ckpt::run(command) };
    let model = saved(&question.checkpoint, &[], Paths::Ignore)?;
    let worker = find_loadable_worker()?;
    let error = question_command(&worker, utf8(&model.recipe)?, &[], &Question::Merge(question))?.exec();
    Err(error).with_context(|| format!("cannot start {}", worker.display()))
}

/// Finds a checkpoint or a run, and checks its recipe.
fn saved(path: &Path, set: &[String], paths: Paths) -> anyhow::Result<Model> {
    let model = ckpt::model(path)?;
    resolve(&model.manifest.recipe_source(&model.recipe)?, set, paths)?;
    Ok(model)
}

fn utf8(path: &Path) -> anyhow::Result<&str> {
    path.to_str().with_context(|| format!("the path {} is not UTF-8; rename it", path.display()))
}

/// Returns the kinds of visible GPUs and the number of GPUs; usual sizes and `None` without a GPU.
pub(crate) fn find_local_gpus() -> Result<(Vec<Gpu>, Option<usize>), GpuError> {
    let driver = gpu::Nvidia::open()?;
    let inventory = driver.inventory()?;
    let list = std::env::var_os(CUDA_VISIBLE_DEVICES).map(|list| list.to_string_lossy().into_owned());
    let visible = Visible::new(&inventory, list.as_deref());
    let gpus = of_machine(&inventory, &visible, &driver.settings()?, gpu::all_support_bf16());
    Ok(match visible.count(&inventory) {
        0 => (usual(), None),
        count => (gpus, Some(count)),
    })
}

/// Plans for these GPUs in another process, which prints the plan. Exit code 3: no GPU has enough memory.
pub(crate) fn plan_command(args: &RecipeArgs, gpus: Option<&[Gpu]>, nproc: usize) -> anyhow::Result<Command> {
    let recipe = asked(args, Paths::Ignore)?;
    let gpus = gpus.map_or_else(usual, <[Gpu]>::to_vec);
    let question = PlanQuestion {
        gpus,
        nproc,
        mode: Mode::Symbolic,
        stage: Some("all".to_owned()),
        brief: false,
        json: false,
    };
    Ok(worker(args, &recipe, nproc, &Question::Plan(question))?.0)
}

/// Replaces this process by the worker program with one question.
fn become_worker(
    args: &RecipeArgs,
    recipe: &Resolved,
    nproc: usize,
    question: &Question,
) -> anyhow::Result<ExitCode> {
    let (mut command, worker) = worker(args, recipe, nproc, question)?;
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", worker.display()))
}

/// Returns the worker program with one question about a recipe, and its path.
fn worker(
    args: &RecipeArgs,
    recipe: &Resolved,
    nproc: usize,
    question: &Question,
) -> anyhow::Result<(Command, PathBuf)> {
    check_cut(recipe, nproc)?;
    let worker = find_loadable_worker()?;
    Ok((question_command(&worker, &args.recipe, &args.set, question)?, worker))
}

/// Checks that every rank gets a part of a step.
fn check_cut(recipe: &Resolved, nproc: usize) -> anyhow::Result<()> {
    Partition::in_groups(recipe.recipe.train.effective_batch, nproc, None, recipe.group)?;
    Ok(())
}
