//! `dtrain batch`: from the flags to a script.

mod expect;
mod k8s;
mod preemption;
mod submit;
mod system;

use crate::cli::{BatchArgs, PassedOn, RecipeArgs};
use crate::trainer::{Paths, ask};
use crate::{python, stdout};
use anyhow::{Context, bail};
use dtrain_agent::io::process::search_path;
use dtrain_batch::{
    Account, Array, Extra, JobSpec, Name, Setup, Size, System, Target, TextError, TimeLimit, Word, Work,
};
use dtrain_common::recipe::{AnyRecipe, Source};
use dtrain_job::Allocation;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

/// Writes the script.
pub(crate) fn run(args: &BatchArgs) -> anyhow::Result<ExitCode> {
    if args.size.gpu.iter().flat_map(|list| &list.0).any(|gpu| gpu.cpu) {
        bail!("--gpu names GPUs of the nodes, and `cpu` is none; leave it out for nodes without GPUs");
    }
    let mut spec = job(args)?;
    spec.check(args.system)?;
    check_recipes(args)?;
    preemption::choose_interval(args, &mut spec)?;
    check_launch(args.system, &spec)?;
    expect::check_checkpoints(&spec)?;
    if args.dry_run {
        return expect::show(args, &spec);
    }
    expect::check_memory(args, &spec)?;
    let script = dtrain_batch::render(args.system, &spec);
    match &args.output {
        Some(file) => fs::write(file, &script)
            .with_context(|| format!("cannot write {}; give another --output", file.display()))?,
        None if args.submit => {}
        None => drop(stdout::print(&script).context("cannot write to standard output")?),
    }
    if args.submit {
        submit::submit(args.system, &spec, &script)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn job(args: &BatchArgs) -> anyhow::Result<JobSpec> {
    let name = args.name.clone().unwrap_or_else(|| default_name(args));
    let run_dir = args.run_dir.clone().unwrap_or_else(|| format!("runs/{}", name.as_str()));
    let (size, account) = (&args.size, &args.account);
    Ok(JobSpec {
        name,
        size: Size {
            nodes: *size.nodes.end(),
            least_nodes: *size.nodes.start(),
            gpus_per_node: size.gpus_per_node,
            gpu_resource: size.gpu_resource.clone(),
            cpus_per_task: size.cpus_per_task,
            memory: size.mem,
        },
        time: time_limit(args)?,
        account: Account {
            account: account.account.clone(),
            partition: account.partition.clone(),
            queue: account.queue.clone(),
            qos: account.qos.clone(),
            constraint: account.constraint.clone().or_else(|| expect::constraint(args)),
        },
        work: Work {
            dtrain: find_dtrain(args)?,
            target: target(args)?,
            run_dir: run_dir.parse().context("--run-dir")?,
        },
        setup: Setup {
            commands: setup_commands(args)?,
            container: args.setup.container.clone(),
            volume: args.setup.volume.clone(),
        },
        max_requeues: args.time.max_requeues,
        array: args.array.as_ref().and_then(|flag| flag.array.clone()),
        runs_at_once: args.array.as_ref().and_then(|flag| flag.runs_at_once),
        extra: Extra { directives: args.directive.clone(), launch: args.launch.concat() },
    })
}

/// Returns the name of the recipe's or program's file.
fn default_name(args: &BatchArgs) -> Name {
    let path = args.recipes.first().or(args.program.first());
    let stem = path.and_then(|path| Path::new(path).file_stem()).unwrap_or_default();
    Name::from_any(&stem.to_string_lossy())
}

fn target(args: &BatchArgs) -> anyhow::Result<Target> {
    let words =
        |texts: &[String]| texts.iter().map(|text| text.parse()).collect::<Result<Vec<Word>, TextError>>();
    Ok(match args.recipes.is_empty() {
        false => Target::Recipes {
            recipes: words(&args.recipes).context("RECIPE")?,
            set: words(&args.set).context("--set")?,
        },
        true => Target::Program(words(&args.program).context("PROGRAM")?),
    })
}

/// Returns the limit. A training is asked to stop before it; a program may not know the signal.
fn time_limit(args: &BatchArgs) -> anyhow::Result<Option<TimeLimit>> {
    let Some(time) = args.time.time else {
        if args.time.signal_before.is_some() {
            return Err(dtrain_batch::SpecError::SignalWithoutLimit.into());
        }
        return Ok(None);
    };
    // The default of `dtrain launch --time-margin`.
    let margin = Allocation::margin(time).max(Duration::from_secs(1));
    let default = (!args.recipes.is_empty()).then_some(margin);
    Ok(Some(TimeLimit { time, signal_before: args.time.signal_before.or(default) }))
}

fn setup_commands(args: &BatchArgs) -> anyhow::Result<Option<String>> {
    let Some(file) = &args.setup.env_setup else { return Ok(None) };
    let text = fs::read_to_string(file);
    text.map(Some).with_context(|| {
        format!("cannot read --env-setup {}; give a readable file with shell commands", file.display())
    })
}

/// Returns `dtrain` if `PATH` has this program under that name, else its path.
fn find_dtrain(args: &BatchArgs) -> anyhow::Result<Word> {
    let plain = || "dtrain".parse().context("dtrain");
    if args.setup.container.is_some() {
        return plain();
    }
    let own = std::env::current_exe().context("cannot find this program")?;
    let found = search_path::find(OsStr::new("dtrain"), std::env::var_os("PATH").as_deref()).ok();
    match found.and_then(|found| found.canonicalize().ok()) == own.canonicalize().ok() {
        true => plain(),
        false => {
            let shown = own.display();
            let text = own.to_str().with_context(|| format!("the path {shown} is not UTF-8; rename it"))?;
            text.parse().with_context(|| format!("the path {shown} of dtrain"))
        }
    }
}

/// Checks each recipe with the values of each run. Files of a container are not visible here. A login node may lack the
/// trainer or its libtorch.
fn check_recipes(args: &BatchArgs) -> anyhow::Result<()> {
    for recipe in &args.recipes {
        if python::runs(Path::new(recipe)) {
            bail!("{recipe} is a Python program, not a recipe; write `-- python {recipe}`");
        }
    }
    let mut no_trainer = None;
    for RecipeArgs { recipe, set } in trainings(args) {
        let is_of_image =
            args.setup.container.is_some() && !Path::new(&recipe).exists() && recipe.contains(['/', '.']);
        if is_of_image {
            continue;
        }
        let source = Source::find(&recipe)?;
        if no_trainer.is_none() {
            match ask(&source, &set, Paths::Ignore) {
                Ok(answer) => {
                    answer?;
                    continue;
                }
                Err(error) => no_trainer = Some(error),
            }
        }
        AnyRecipe::parse(&source, &set)?;
    }
    if let Some(error) = no_trainer {
        eprintln!(
            "dtrain: warning: the task, [data], [model] and [custom] are checked when the job starts: {}",
            stdout::join_causes(&error)
        );
    }
    Ok(())
}

/// Checks the flags of `--launch` beside those that the script gives, or the job says.
fn check_launch(system: System, spec: &JobSpec) -> anyhow::Result<()> {
    let mut given: Vec<&str> = Vec::new();
    let is_training = matches!(spec.work.target, Target::Recipes { .. });
    // A recipe may have other folders for its logs.
    given.extend((!is_training).then_some(["--log-dir", "logs"]).into_iter().flatten());
    let nproc = spec.size.nproc();
    given.extend(nproc.iter().flat_map(|nproc| ["--nproc", nproc]));
    let watches = spec.time.as_ref().is_some_and(|limit| limit.signal_before.is_some());
    match system {
        System::Slurm if watches && is_training => given.extend(["--time-limit", "none"]),
        System::Slurm => {}
        _ if watches => given.extend(["--time-limit", "2s", "--time-margin", "1s"]),
        _ => {}
    }
    let nodes = format!("{}:{}", spec.size.least_nodes, spec.size.nodes);
    if spec.size.nodes > 1 {
        let meeting = ["--rdzv-endpoint", "node", "--rdzv-id", "job", "--rdzv-secret", "file"];
        given.extend(["--nnodes", &nodes].into_iter().chain(meeting));
    }
    let flags: Vec<_> = spec.extra.launch.iter().map(Word::text).collect();
    PassedOn { flags: &flags, given: &given }.check().context("--launch")
}

/// Returns the trainings that differ: one for each recipe, or for each value of a sweep.
fn trainings(args: &BatchArgs) -> Vec<RecipeArgs> {
    let values = match args.array.as_ref().and_then(|flag| flag.array.as_ref()) {
        Some(Array::Sweep { key, values }) => {
            values.iter().map(|value| Some(format!("{key}={}", value.text()))).collect()
        }
        _ => vec![None],
    };
    let with = |recipe: &String, value: &Option<String>| RecipeArgs {
        recipe: recipe.clone(),
        set: args.set.iter().chain(value).cloned().collect(),
    };
    args.recipes.iter().flat_map(|recipe| values.iter().map(move |value| with(recipe, value))).collect()
}
