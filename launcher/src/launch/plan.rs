//! What is to be started: every check that can be made before anything runs.

use super::Begun;
use super::devices::{self, Devices, Machine};
use super::size::{self, Asked, Host, Size, plural};
use super::streams::{Home, Routing};
use crate::cli::LaunchArgs;
use crate::process::WorkerSpec;
use crate::process::program;
use anyhow::{Context, bail};
use dtrain_common::batch::Partition;
use dtrain_common::env::DTRAIN_WORKER;
use dtrain_common::exit::ExitStatus;
use dtrain_common::recipe::Recipe;
use dtrain_common::run_dir::{Resume, RunDir, Start};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The trainer's file name.
const WORKER: &str = "dtrain-worker";
/// The role of every worker, as in `ROLE_NAME`.
const ROLE: &str = "default";
const NEITHER: &str = "nothing to launch: give a recipe (`dtrain launch RECIPE`) or a program after two dashes \
                       (`dtrain launch -- PROGRAM ARGS`); `dtrain launch --help` has examples";

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
    /// Where to write; always there for a recipe.
    pub(super) run_dir: Option<RunDir>,
    recipe: Option<Recipe>,
    /// What becomes of the workers' output.
    pub(super) routing: Routing,
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
        match (&args.recipe, args.program.split_first()) {
            (Some(recipe), None) => Self::recipe(recipe, args, begun),
            (None, Some((name, words))) => Self::program(name, words, args),
            (None, None) => bail!(NEITHER),
            (Some(recipe), Some((name, _))) => bail!(
                "both a recipe (`{recipe}`) and a program (`{}`) are given; to pass arguments to a program, put all of \
                 them after the two dashes: `dtrain launch -- PROGRAM ARGS`",
                name.to_string_lossy()
            ),
        }
    }

    fn recipe(name: &str, args: &LaunchArgs, begun: Begun) -> anyhow::Result<Self> {
        if program::is_python(Path::new(name)) {
            bail!(
                "`{name}` is a Python script, not a recipe; start it with `dtrain launch -- python3 {name}`"
            );
        }
        let recipe = Recipe::load(name, &args.set)?;
        recipe.check_paths()?;
        let Size {
            nproc,
            devices,
            place,
            note,
        } = measure(args, Kind::Recipe)?;
        let routing = Routing::plan(&args.output, nproc, ROLE, Home::Recipe)?;
        let partition = Partition::new(
            recipe.train.effective_batch,
            nproc,
            recipe.memory.micro_batch.limit(),
        )?;
        let worker = find_worker()?;
        let resume = match args.resume.as_deref() {
            None => Resume::Auto,
            Some(text) => text.parse().unwrap_or_else(|never| match never {}),
        };
        let (run_dir, start) = prepare(name, &recipe, &resume, args.run_dir.as_deref(), begun)?;

        let mut summary = format!(
            "{nproc} worker{}{place}; effective batch {partition}; run directory {}",
            plural(nproc),
            run_dir.root().display()
        );
        if let Start::Resume(checkpoint) = &start {
            summary.push_str(&format!("; resuming from {}", checkpoint.display()));
        }
        Ok(Self {
            kind: Kind::Recipe,
            nproc,
            devices,
            arg0: worker.clone().into(),
            program: worker,
            args: trainer_args(&run_dir, start),
            run_dir: Some(run_dir),
            recipe: Some(recipe),
            routing,
            headline: note.into_iter().chain([summary]).collect(),
        })
    }

    fn program(name: &OsStr, words: &[OsString], args: &LaunchArgs) -> anyhow::Result<Self> {
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
        let program = program::find(name, std::env::var_os("PATH").as_deref())?;
        let Size {
            nproc,
            devices,
            place,
            note,
        } = measure(args, Kind::Program)?;
        let home = if args.run_dir.is_some() {
            Home::RunDir
        } else {
            Home::Nowhere
        };
        let routing = Routing::plan(&args.output, nproc, ROLE, home)?;
        let run_dir = args.run_dir.as_deref().map(new_or_empty).transpose()?;
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
            arg0: name.to_owned(),
            args: words.to_vec(),
            run_dir,
            recipe: None,
            routing,
            headline: note.into_iter().chain([summary]).collect(),
        })
    }

    /// Before a restart: a training goes on from its newest checkpoint, a program begins anew.
    ///
    /// # Errors
    /// The run directory cannot be read any more.
    pub(super) fn go_on(&mut self) -> anyhow::Result<()> {
        if let (Some(recipe), Some(run_dir)) = (&self.recipe, &self.run_dir) {
            let start = run_dir.prepare(recipe, &Resume::Auto)?;
            self.args = trainer_args(run_dir, start);
        }
        Ok(())
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

    /// A name for this run that no other launch on this machine has at the same time.
    pub(super) fn run_id(&self, begun: Begun) -> String {
        let since_epoch = begun.wall.duration_since(UNIX_EPOCH).unwrap_or_default();
        format!("{:x}-{}", since_epoch.as_millis(), std::process::id())
    }

    /// The process of one worker, with its variables.
    pub(super) fn worker(&self, env: Vec<(&'static str, OsString)>) -> WorkerSpec {
        WorkerSpec {
            program: self.program.clone(),
            arg0: self.arg0.clone(),
            args: self.args.clone(),
            env,
            // Workers run in background process groups, which a terminal stops as soon as they read from it.
            inherit_stdin: !std::io::stdin().is_terminal(),
        }
    }

    /// The exit code by which these workers say that they stopped on request.
    pub(super) fn requeue_code(&self) -> Option<i32> {
        (self.kind == Kind::Recipe).then(|| i32::from(ExitStatus::Requeue.code()))
    }
}

/// The trainer's command line.
fn trainer_args(run_dir: &RunDir, start: Start) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec![run_dir.recipe().into(), "--run-dir".into(), run_dir.root().into()];
    words.extend(["--prepared".into(), "--resume".into()]);
    words.push(match start {
        Start::Fresh => "never".into(),
        Start::Resume(checkpoint) => checkpoint.into(),
    });
    words
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

/// Prepares the run directory that was named, or a new one.
fn prepare(
    name: &str,
    recipe: &Recipe,
    resume: &Resume,
    named: Option<&Path>,
    begun: Begun,
) -> anyhow::Result<(RunDir, Start)> {
    if let Some(named) = named {
        let run_dir = RunDir::new(named);
        let start = run_dir.prepare(recipe, resume)?;
        return Ok((run_dir, start));
    }
    let root = RunDir::default_root(name, begun.wall);
    let parent = root.parent().unwrap_or(Path::new("."));
    let parent_was_there = parent.exists();
    fs::create_dir_all(parent).with_context(|| format!("cannot make the folder {}", parent.display()))?;
    let root = claim(&root)?;
    let run_dir = RunDir::new(&root);
    run_dir
        .prepare(recipe, resume)
        .map(|start| (run_dir, start))
        .map_err(|error| {
            // Both only go if they are empty.
            let _ = fs::remove_dir(&root);
            if !parent_was_there {
                let _ = fs::remove_dir(parent);
            }
            error.into()
        })
}

/// Makes a new folder of this name, or with a number after it when another launch of the same second has it.
fn claim(root: &Path) -> anyhow::Result<PathBuf> {
    let mut candidate = root.to_owned();
    let mut number = 1;
    loop {
        match fs::create_dir(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                number += 1;
                let mut next = root.as_os_str().to_owned();
                next.push(format!("-{number}"));
                candidate = next.into();
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot make the folder {}", candidate.display()));
            }
        }
    }
}

/// A program's run directory, which must not hold anything yet.
fn new_or_empty(path: &Path) -> anyhow::Result<RunDir> {
    let shown = path.display();
    match fs::read_dir(path) {
        Ok(mut entries) => match entries.next() {
            None => Ok(RunDir::new(path)),
            Some(_) => bail!("{shown} is not empty; give a new or empty folder as --run-dir for a program"),
        },
        Err(error) if error.kind() == ErrorKind::NotFound && !path.is_symlink() => Ok(RunDir::new(path)),
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            bail!("{shown} is not a folder; choose another --run-dir")
        }
        Err(error) => {
            Err(error).with_context(|| format!("cannot list the folder {shown}; choose another --run-dir"))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn launches_of_the_same_second_get_folders_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("demo-1");
        let names: Vec<_> = (0..3).map(|_| claim(&root).unwrap()).collect();
        assert_eq!(
            names,
            [
                root.clone(),
                folder.path().join("demo-1-2"),
                folder.path().join("demo-1-3")
            ]
        );
    }

    #[test]
    fn a_programs_run_directory_is_new_or_empty() {
        let folder = tempfile::tempdir().unwrap();
        assert!(new_or_empty(folder.path()).is_ok());
        assert!(new_or_empty(&folder.path().join("a/b")).is_ok());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(
            new_or_empty(folder.path())
                .unwrap_err()
                .to_string()
                .contains("is not empty")
        );
        assert!(
            new_or_empty(&file)
                .unwrap_err()
                .to_string()
                .contains("is not a folder")
        );
        assert!(new_or_empty(&file.join("below")).is_err());
        let dangling = folder.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(new_or_empty(&dangling).is_err());
    }
}
