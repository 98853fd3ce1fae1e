//! Commands that need the model: for a plan or a profile, the launcher becomes the worker.

use crate::cli::{EvalArgs, LaunchArgs, PlanArgs, ProfileArgs, RecipeArgs, SuggestArgs};
use crate::gpu_names::{of_machine, usual};
use crate::trainer::find_worker;
use anyhow::{Context, bail};
use dtrain_common::env::{
    CUDA_VISIBLE_DEVICES, GROUP_RANK, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, RANK,
    WORLD_SIZE,
};
use dtrain_common::gpu::{self, GpuError, Visible};
use dtrain_common::job::{Gpu, Job, Mode, PlanJob, ProfileJob};
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::follow;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Runs `dtrain plan`. On success, this and the next two functions do not return.
pub(crate) fn plan(args: &PlanArgs) -> anyhow::Result<ExitCode> {
    let recipe = load_recipe(&args.recipe)?;
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
    let job = Job::Plan(PlanJob { gpus, nproc, mode, stage, brief: false, json });
    become_worker(&args.recipe, &recipe, nproc, &job)
}

/// Runs `dtrain gpu suggest-batch-size`.
pub(crate) fn suggest(args: &SuggestArgs) -> anyhow::Result<ExitCode> {
    let recipe = load_recipe(&args.recipe)?;
    let named = args.gpu.as_ref().map(|list| Ok((list.0.clone(), Some(1))));
    let gpus = match named.unwrap_or_else(find_local_gpus) {
        Ok((gpus, Some(_))) => gpus,
        Ok((_, None)) => {
            bail!("no GPU of this machine is visible; name GPUs with --gpu, such as --gpu t4,24GiB")
        }
        Err(error) => bail!("{error}; name GPUs with --gpu, such as --gpu t4,24GiB"),
    };
    let (nproc, mode) = (args.nproc as usize, Mode::Symbolic);
    let job = Job::Plan(PlanJob { gpus, nproc, mode, stage: None, brief: true, json: args.json });
    become_worker(&args.recipe, &recipe, nproc, &job)
}

/// Runs `dtrain profile`.
pub(crate) fn profile(args: &ProfileArgs) -> anyhow::Result<ExitCode> {
    let recipe = load_recipe(&args.recipe)?;
    recipe.check_paths()?;
    let (nproc, stage) = (args.nproc as usize, args.stage.clone());
    let job = Job::Profile(ProfileJob { stage, find_optimal: args.find_optimal, nproc, json: args.json });
    become_worker(&args.recipe, &recipe, nproc, &job)
}

fn load_recipe(args: &RecipeArgs) -> anyhow::Result<Recipe> {
    Ok(Recipe::load(&args.recipe, &args.set)?)
}

/// Returns the launch of the worker for `dtrain eval`.
pub(crate) fn eval(args: &EvalArgs) -> anyhow::Result<LaunchArgs> {
    load_recipe(&args.recipe)?.check_paths()?;
    if !follow(&args.checkpoint).is_dir() {
        bail!(
            "--checkpoint {}: no such folder; give a checkpoint such as RUN_DIR/checkpoints/latest, or RUN_DIR",
            args.checkpoint.display()
        );
    }
    args.launch(&find_worker()?)
}

/// Returns the kinds of visible GPUs and the number of GPUs; usual sizes and `None` without a GPU.
fn find_local_gpus() -> Result<(Vec<Gpu>, Option<usize>), GpuError> {
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
    let recipe = load_recipe(args)?;
    let gpus = gpus.map_or_else(usual, <[Gpu]>::to_vec);
    let job = PlanJob {
        gpus,
        nproc,
        mode: Mode::Symbolic,
        stage: Some("all".to_owned()),
        brief: false,
        json: false,
    };
    Ok(worker(args, &recipe, nproc, &Job::Plan(job))?.0)
}

/// Replaces this process by the worker program with one job.
fn become_worker(args: &RecipeArgs, recipe: &Recipe, nproc: usize, job: &Job) -> anyhow::Result<ExitCode> {
    let (mut command, worker) = worker(args, recipe, nproc, job)?;
    let error = command.exec();
    Err(error).with_context(|| format!("cannot start {}", worker.display()))
}

/// Returns the worker program with one job, and its path.
fn worker(args: &RecipeArgs, recipe: &Recipe, nproc: usize, job: &Job) -> anyhow::Result<(Command, PathBuf)> {
    recipe.partition(nproc, None)?;
    let worker = find_worker()?;
    let mut command = Command::new(&worker);
    command.arg(&args.recipe);
    for set in &args.set {
        command.args(["--set", set]);
    }
    command.arg("--job").arg(serde_json::to_string(job)?);
    // The worker runs alone, even if the launcher is itself a worker.
    for variable in [RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, MASTER_ADDR, MASTER_PORT] {
        command.env_remove(variable);
    }
    Ok((command, worker))
}
