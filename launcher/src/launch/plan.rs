//! What is to be started: every check that can be made before anything runs.

mod folders;

use super::Begun;
use super::placement::Placement;
use super::size::{self, Devices, plural};
use crate::cli::{Form, LaunchArgs, Nproc, Target};
use crate::process::{WorkerSpec, program, python};
use anyhow::{Context, bail};
use dtrain_common::batch::Partition;
use dtrain_common::env::{CUDA_VISIBLE_DEVICES, DTRAIN_WORKER};
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::{Resume, RunDir, Start};
use folders::{new_or_empty, prepare};
use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::UNIX_EPOCH;

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
    /// The executable of every worker.
    pub(super) program: PathBuf,
    arg0: OsString,
    args: Vec<OsString>,
    /// On which GPU and cores each worker computes.
    pub(super) placement: Placement,
    /// Where to write; always there for a recipe.
    pub(super) run_dir: Option<RunDir>,
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
                Self::program(python, arg0, name, line, args)
            }
            Form::Program => {
                let program = program::find(name, std::env::var_os("PATH").as_deref())?;
                Self::program(program, name.to_owned(), name, words.to_vec(), args)
            }
        }
    }

    fn recipe(name: &str, args: &LaunchArgs, begun: Begun) -> anyhow::Result<Self> {
        let recipe = Recipe::load(name, &args.set)?;
        recipe.check_paths()?;
        let devices = Devices::look();
        let (nproc, note) = size::workers(args.nproc, || devices.clone(), size::cores())?;
        let partition = Partition::new(
            recipe.train.effective_batch,
            nproc,
            recipe.memory.micro_batch.limit(),
        )?;
        let placement = Placement::new(&args.contract, nproc, visible_devices().as_deref())?;
        let worker = find_worker()?;
        let resume = match args.resume.as_deref() {
            None => Resume::Auto,
            Some(text) => text.parse().unwrap_or_else(|never| match never {}),
        };
        let (run_dir, start) = prepare(name, &recipe, &resume, args.run_dir.as_deref(), begun)?;

        let place = match devices.gpus {
            0 => format!("{nproc} worker{} on the CPU", plural(nproc)),
            _ => format!("{nproc} worker{}, {} visible", plural(nproc), devices.described),
        };
        let mut summary = format!(
            "{place}; effective batch {partition}; run directory {}",
            run_dir.root().display()
        );
        let mut words: Vec<OsString> =
            vec![run_dir.recipe().into(), "--run-dir".into(), run_dir.root().into()];
        words.extend(["--prepared".into(), "--resume".into()]);
        match start {
            Start::Fresh => words.push("never".into()),
            Start::Resume(checkpoint) => {
                summary.push_str(&format!("; resuming from {}", checkpoint.display()));
                words.push(checkpoint.into());
            }
        }
        Ok(Self {
            kind: Kind::Recipe,
            nproc,
            arg0: worker.clone().into(),
            program: worker,
            args: words,
            run_dir: Some(run_dir),
            headline: note
                .into_iter()
                .chain([summary])
                .chain(placement.bound.note())
                .collect(),
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
        let (nproc, note) = size::workers(args.nproc, Devices::look, size::cores())?;
        let placement = Placement::new(&args.contract, nproc, visible_devices().as_deref())?;
        let run_dir = args.run_dir.as_deref().map(new_or_empty).transpose()?;
        let mut summary = format!("{nproc} worker{} of {}", plural(nproc), name.to_string_lossy());
        if args.nproc == Nproc::Auto || args.nproc == Nproc::Gpu {
            summary.push_str(if note.is_some() {
                " on the CPU"
            } else {
                ", one per visible GPU"
            });
        }
        if let Some(run_dir) = &run_dir {
            summary.push_str(&format!("; run directory {}", run_dir.root().display()));
        }
        Ok(Self {
            kind: Kind::Program,
            nproc,
            program,
            arg0,
            args: words,
            run_dir,
            headline: note
                .into_iter()
                .chain([summary])
                .chain(placement.bound.note())
                .collect(),
            placement,
        })
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
        WorkerSpec {
            program: self.program.clone(),
            arg0: self.arg0.clone(),
            args: self.args.clone(),
            env,
            cpus: self.placement.bound.of(rank),
            // Workers run in background process groups, which a terminal stops as soon as they read from it.
            inherit_stdin: !std::io::stdin().is_terminal(),
        }
    }

    /// The exit code by which these workers say that they stopped on request.
    pub(super) fn requeue_code(&self) -> Option<i32> {
        (self.kind == Kind::Recipe).then(|| i32::from(ExitStatus::Requeue.code()))
    }
}

/// The devices to which the user has confined this launch, if to any.
fn visible_devices() -> Option<String> {
    std::env::var_os(CUDA_VISIBLE_DEVICES).map(|list| list.to_string_lossy().into_owned())
}

/// The trainer: where DTRAIN_WORKER says, else beside this executable, else in PATH.
fn find_worker() -> anyhow::Result<PathBuf> {
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
        anyhow::anyhow!(
            "the trainer {WORKER} lies neither beside dtrain nor in PATH; build it with `cargo build --release -p \
             {WORKER}`, or name it in {DTRAIN_WORKER}"
        )
    })
}
