//! What is to be started: every check that can be made before anything runs.

mod folders;
mod stdin;
mod trainer;

use super::devices::{self, Devices, Machine};
use super::gpu_check;
use super::limit::{Limited, limit};
use super::placement::Placement;
use super::size::{self, Asked, Host, Size, plural};
use super::store;
use super::streams::{Home, Routing};
use crate::cli::{Form, LaunchArgs, Target};
use crate::python;
use anyhow::{Context, anyhow, bail};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::output::Stream;
use dtrain_agent::io::process::{WorkerSpec, program};
use dtrain_agent::local::TimeLimit;
use dtrain_common::env::DTRAIN_WORKER;
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::{Resume, RunDir, RunLock, Start};
use folders::{new_or_empty, prepare};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;
use stdin::StandardInput;
use trainer::{no_recipe, partition, trainer_args};

/// The trainer's file name.
const WORKER: &str = "dtrain-worker";
const NEITHER: &str = "nothing to launch: give a recipe (`dtrain launch RECIPE`), a Python script (`dtrain launch \
                       SCRIPT.py ARGS`) or a program after two dashes (`dtrain launch -- PROGRAM ARGS`); `dtrain \
                       launch --help` has examples";

/// A launch that has passed every check.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) nproc: usize,
    pub(super) devices: Devices,
    /// The executable of every worker.
    pub(super) program: PathBuf,
    arg0: OsString,
    args: Vec<OsString>,
    /// On which GPU and cores each worker computes.
    pub(super) placement: Placement,
    /// Where to write; always there for a recipe.
    pub(super) run_dir: Option<RunDir>,
    /// Keeps other runs out of it.
    lock: Option<RunLock>,
    recipe: Option<Recipe>,
    /// The checkpoint that `--resume` names, where it names one.
    asked: Option<PathBuf>,
    /// When it must be over.
    pub(super) limit: Option<TimeLimit>,
    /// What becomes of the workers' output.
    pub(super) routing: Routing,
    stdin: StandardInput,
    /// Whether the launcher serves the store where the workers meet.
    pub(super) serves_store: bool,
    /// What the user is told first, one sentence each.
    headline: Vec<String>,
}

/// What the workers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// dtrain's own trainer.
    Recipe,
    /// Any program.
    Program,
}

impl Plan {
    /// Checks the command. For a recipe, the run directory is prepared as the last thing, once nothing else can be
    /// wrong.
    ///
    /// # Errors
    /// What is wrong and what to do; nothing has been written then.
    pub(super) fn new(args: &LaunchArgs, begun: Begun) -> anyhow::Result<Self> {
        let Some(Target {
            form,
            name,
            args: words,
        }) = args.target()?
        else {
            bail!(NEITHER)
        };
        match form {
            Form::Recipe => {
                let Some(name) = name.to_str() else {
                    bail!(
                        "the recipe's name `{}` is not valid UTF-8",
                        name.to_string_lossy()
                    );
                };
                Self::recipe(name, args, begun)
            }
            Form::Script | Form::Module => {
                let python = python::find(|variable| std::env::var_os(variable))?;
                let mut line = vec![OsString::from("-u")];
                if form == Form::Module {
                    python::check_module(name)?;
                    line.push("-m".into());
                } else {
                    python::check_script(name)?;
                }
                line.push(name.to_owned());
                line.extend_from_slice(words);
                // Python finds its environment by the path under which it was called.
                let arg0 = python.clone().into();
                Ok(Self::program(python, arg0, name, line, args, begun)?.of_python())
            }
            Form::Program => {
                let program = program::find(name, std::env::var_os("PATH").as_deref())?;
                let is_python = python::is_python(&program);
                let plan = Self::program(program, name.to_owned(), name, words.to_vec(), args, begun)?;
                Ok(if is_python { plan.of_python() } else { plan })
            }
        }
    }

    fn recipe(name: &str, args: &LaunchArgs, begun: Begun) -> anyhow::Result<Self> {
        let recipe = Recipe::load(name, &args.set).map_err(|error| no_recipe(name, error))?;
        recipe.check_paths()?;
        if args.stdin_rank.is_some() {
            bail!(
                "--stdin-rank is for programs and has no effect on a recipe, which reads nothing; leave it out"
            );
        }
        let Size {
            nproc,
            devices,
            place,
            note,
            gpus,
        } = measure(args, Kind::Recipe)?;
        // A flag may name a worker that is not started: the note says why.
        let with_note = |error: anyhow::Error| match &note {
            Some(note) => error.context(note.clone()),
            None => error,
        };
        let routing =
            Routing::plan(&args.output, nproc, &args.contract.role, Home::Recipe).map_err(with_note)?;
        let checked = gpus.as_ref().map(gpu_check::check).transpose()?;
        let mut notes: Vec<_> = note.into_iter().chain(checked.into_iter().flatten()).collect();
        let partition = partition(&recipe, nproc)?;
        let placement = Placement::new(&args.contract, nproc, &devices)?;
        let worker = find_worker()?;
        let resume = match args.resume.as_deref() {
            None => Resume::Auto,
            Some(text) => text.parse().unwrap_or_else(|never| match never {}),
        };
        let limited = limit(&args.limits, true, begun, own_environment)?;
        let (run_dir, start, lock) = prepare(name, &recipe, &resume, args.run_dir.as_deref(), begun)?;
        notes.extend(lock.note());

        let mut summary = format!(
            "{nproc} worker{}{place}; effective batch {partition}; run directory {}",
            plural(nproc),
            run_dir.root().display()
        );
        let mut effective = &resume;
        if let Start::Resume(checkpoint) = &start {
            summary.push_str(&format!("; resuming from {}", checkpoint.display()));
            if let Resume::From(asked) = &resume
                && run_dir.goes_on_after(asked)?
            {
                effective = &Resume::Auto;
                summary.push_str(&format!(
                    ", the newest since the run began with {}; to begin with that again, remove {}",
                    asked.display(),
                    run_dir.resume().display()
                ));
            }
        }
        Ok(Self {
            kind: Kind::Recipe,
            nproc,
            devices,
            arg0: worker.clone().into(),
            program: worker,
            args: trainer_args(&run_dir, start, effective),
            run_dir: Some(run_dir),
            lock: Some(lock),
            recipe: Some(recipe),
            asked: match resume {
                Resume::From(checkpoint) => Some(checkpoint),
                Resume::Auto | Resume::Never => None,
            },
            limit: limited.as_ref().map(|limited| limited.limit),
            routing,
            stdin: StandardInput::None,
            serves_store: false,
            headline: headline(notes, summary, &placement, limited),
            placement,
        })
    }

    /// `name` is what the user calls it.
    fn program(
        program: PathBuf,
        arg0: OsString,
        name: &OsStr,
        words: Vec<OsString>,
        args: &LaunchArgs,
        begun: Begun,
    ) -> anyhow::Result<Self> {
        for (given, flag) in [
            (!args.set.is_empty(), "--set"),
            (args.resume.is_some(), "--resume"),
        ] {
            if given {
                bail!(
                    "{flag} is for recipes and has no effect on a program; put the program's own flags after its name"
                );
            }
        }
        let Size {
            nproc,
            devices,
            place,
            note,
            ..
        } = measure(args, Kind::Program)?;
        if let Some(rank) = args.stdin_rank.filter(|rank| *rank >= nproc) {
            bail!(
                "--stdin-rank {rank}: there are ranks 0 to {}; name one of them",
                nproc - 1
            );
        }
        let home = if args.run_dir.is_some() {
            Home::RunDir
        } else {
            Home::Nowhere
        };
        let mut routing = Routing::plan(&args.output, nproc, &args.contract.role, home)?;
        let placement = Placement::new(&args.contract, nproc, &devices)?;
        let limited = limit(&args.limits, false, begun, own_environment)?;
        let run_dir = args.run_dir.as_deref().map(new_or_empty).transpose()?;
        routing.make_folder()?;
        let mut summary = format!(
            "{nproc} worker{} of {}{place}",
            plural(nproc),
            name.to_string_lossy()
        );
        if let Some(run_dir) = &run_dir {
            summary.push_str(&format!("; run directory {}", run_dir.root().display()));
        }
        Ok(Self {
            kind: Kind::Program,
            nproc,
            devices,
            program,
            arg0,
            args: words,
            run_dir,
            lock: None,
            recipe: None,
            asked: None,
            limit: limited.as_ref().map(|limited| limited.limit),
            routing,
            stdin: StandardInput::of_program(args.stdin_rank, nproc, std::io::stdin().is_terminal()),
            serves_store: false,
            headline: headline(note.into_iter().collect(), summary, &placement, limited),
            placement,
        })
    }

    fn of_python(self) -> Self {
        Self {
            serves_store: store::is_for_python(self.nproc, |name| std::env::var_os(name)),
            ..self
        }
    }

    /// Before a restart: a training goes on from its newest checkpoint, a program begins anew.
    ///
    /// # Errors
    /// The run directory cannot be read any more.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        if let (Some(recipe), Some(run_dir)) = (&self.recipe, &self.run_dir) {
            // Before its first checkpoint a run begins where it began, which may be another run's.
            if let Some(asked) = &self.asked
                && !run_dir.goes_on_after(asked)?
            {
                return Ok(());
            }
            let start = run_dir.prepare(recipe, &Resume::Auto)?;
            if start != Start::Fresh {
                self.args = trainer_args(run_dir, start, &Resume::Auto);
            }
        }
        Ok(())
    }

    /// The checkpoint that `--resume` named, as it was given, once the run has begun with it.
    pub(super) fn resumed_from(&self) -> Option<PathBuf> {
        let (asked, run_dir) = (self.asked.as_ref()?, self.run_dir.as_ref()?);
        let has_begun = run_dir.has_begun_with(asked).unwrap_or(false);
        has_begun.then(|| asked.clone())
    }

    /// Whether another launch would go on from a checkpoint of this run.
    pub(super) fn has_checkpoint(&self) -> bool {
        let (Some(_), Some(run_dir)) = (&self.recipe, &self.run_dir) else {
            return false;
        };
        matches!(run_dir.newest_checkpoint(), Ok(Some(_)))
    }

    /// Whether another run has taken over the run directory: nothing more may be written there.
    pub(super) fn is_evicted(&self) -> bool {
        self.lock.as_ref().is_some_and(RunLock::is_lost)
    }

    /// What the user is to be told of the claim to the run directory, once.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock.as_ref().and_then(RunLock::trouble)
    }

    /// Whether copies of the state are kept in memory: of use only where the workers are started again.
    pub(super) fn keeps_copies(&self) -> bool {
        self.recipe
            .as_ref()
            .is_some_and(|recipe| recipe.checkpoint.in_memory)
    }

    /// Exit codes of these workers for which a restart is no remedy: a wrong recipe stays wrong, and a model that does not
    /// fit will not fit.
    pub(super) fn permanent_failures(&self) -> &'static [i32] {
        match self.kind {
            Kind::Recipe => &[2, 3],
            Kind::Program => &[],
        }
    }

    /// What the user is told before the workers start.
    pub(super) fn headline(&self) -> String {
        let lines: Vec<_> = self
            .headline
            .iter()
            .map(|line| format!("dtrain: {line}"))
            .collect();
        lines.join("\n")
    }

    /// Says more sentences to the user.
    pub(super) fn tell(&mut self, sentences: Vec<String>) {
        self.headline.extend(sentences);
    }

    /// A name for this run that no other launch on this machine has at the same time.
    pub(super) fn run_id(&self, begun: Begun) -> String {
        let since_epoch = begun.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{:x}-{}", since_epoch.as_millis(), std::process::id())
    }

    /// The process of the worker of `rank`, with its variables.
    pub(super) fn worker(&self, rank: usize, env: Vec<(&'static str, OsString)>) -> WorkerSpec {
        let is_named = self.stdin == StandardInput::Rank(rank);
        WorkerSpec {
            program: self.program.clone(),
            arg0: self.arg0.clone(),
            args: self.args.clone(),
            env,
            cpus: self.placement.bound.of(rank),
            inherit_stdin: self.stdin.is_for(rank),
            inherit_stdout: self.routing.passes(rank, Stream::Stdout, is_named)
                && Stream::Stdout.takes_background_writes(),
        }
    }

    /// The exit code by which these workers say that they stopped on request.
    pub(super) fn requeue_code(&self) -> Option<i32> {
        (self.kind == Kind::Recipe).then(|| i32::from(ExitStatus::Requeue.code()))
    }
}

/// What the user is told first.
fn headline(
    notes: Vec<String>,
    summary: String,
    placement: &Placement,
    limited: Option<Limited>,
) -> Vec<String> {
    let bound = placement.bound.note();
    let limit = limited.map(|limited| limited.note);
    notes
        .into_iter()
        .chain([summary])
        .chain(bound)
        .chain(limit)
        .collect()
}

/// A variable of this process.
fn own_environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// How many workers, and on which devices.
fn measure(args: &LaunchArgs, kind: Kind) -> anyhow::Result<Size> {
    let asked = Asked {
        kind,
        nproc: args.nproc,
        gpu_ids: args.gpus.gpu_ids.as_ref(),
    };
    let host = Host {
        cores: size::cores(),
        listed_gpus: devices::listed_by_the_kernel(),
    };
    size::size(asked, host, Machine::look)
}

/// The trainer: where DTRAIN_WORKER says, else beside this executable, else in PATH.
///
/// # Errors
/// It lies nowhere, or DTRAIN_WORKER names none.
pub(crate) fn find_worker() -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH");
    if let Some(named) = std::env::var_os(DTRAIN_WORKER).filter(|named| !named.is_empty()) {
        return program::find(&named, path.as_deref())
            .with_context(|| format!("{DTRAIN_WORKER} is set wrongly"));
    }
    let beside = std::env::current_exe().ok().map(|exe| exe.with_file_name(WORKER));
    if let Some(found) = beside.and_then(|file| program::find(file.as_os_str(), None).ok()) {
        return Ok(found);
    }
    program::find(OsStr::new(WORKER), path.as_deref()).map_err(|_| {
        anyhow!(
            "the trainer {WORKER} lies neither beside dtrain nor in PATH; build it with `cargo build --release -p \
             {WORKER}`, or name it in {DTRAIN_WORKER}"
        )
    })
}
