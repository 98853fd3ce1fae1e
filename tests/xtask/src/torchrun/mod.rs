//! `torchrun`: a script of PyTorch's under dtrain, and dtrain's worker under torchrun, with the same results.

mod compare;

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{Interrupted, Signals, last_words};
use crate::python::{environment, torchrun};
use crate::setup::{self, Problem, SetArgs};
use crate::workspace::Workspace;
use compare::{answers, difference, losses};

/// The folder with the script, from the workspace's root, and the script's name as a module.
const SOURCES: &str = "tests/bench";
const MODULE: &str = "ddp_script";

/// Ranks of every run.
const RANKS: usize = 2;

/// Steps of the script and of the recipe.
const SCRIPT_STEPS: usize = 20;
const RECIPE_STEPS: usize = 8;

/// What `torchrun` is asked for.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    set: SetArgs,
    /// A Python with torch 2.11.0, instead of one that is set up
    #[arg(long, value_name = "PATH")]
    python: Option<PathBuf>,
}

/// Runs all, and says where dtrain and torchrun differ. The exit code is 1 then.
pub(crate) fn run(workspace: &Workspace, signals: &Signals, args: &Args) -> Result<u8> {
    let ready = setup::run(workspace, signals, &args.set.clone().into())?;
    let code = ready.build_dtrain(workspace, signals, "release")?;
    if code != 0 {
        eprintln!("torchrun failed: dtrain does not build");
        return Ok(code);
    }
    let python = match &args.python {
        // Scripts are run in their own folder.
        Some(python) => std::path::absolute(python)
            .with_context(|| format!("--python names {}, which is no path", python.display()))?,
        None => environment(
            workspace,
            signals,
            "bench-venv",
            &format!("{SOURCES}/requirements.txt"),
        )?,
    };
    let work = workspace.target().join("torchrun");
    if work.exists() {
        fs::remove_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    }
    fs::create_dir_all(&work).map_err(|error| Problem::write(&work, error))?;
    let launches = Launches {
        signals,
        sources: workspace.root().join(SOURCES),
        programs: ready.build_folder(workspace)?.join("release"),
        python,
        work,
    };
    let mut different = told("the script", launches.script())?;
    different.extend(told("dtrain-worker", launches.worker())?);
    for difference in &different {
        eprintln!("DIFFERENT: {difference}");
    }
    if different.is_empty() {
        eprintln!(
            "a script of PyTorch's under dtrain and dtrain's worker under torchrun: the same results, to the last bit"
        );
    }
    Ok(u8::from(!different.is_empty()))
}

/// What is launched, and where.
struct Launches<'a> {
    signals: &'a Signals,
    /// The folder with the script.
    sources: PathBuf,
    /// Where cargo has put the programs.
    programs: PathBuf,
    python: PathBuf,
    /// What runs print and write, and what tells why one has failed.
    work: PathBuf,
}

impl Launches<'_> {
    /// The script by torchrun, and in every way in which dtrain starts one. Returns what is different.
    fn script(&self) -> Result<Vec<String>> {
        let file = format!("{MODULE}.py");
        let theirs = self.by_torchrun(&[OsStr::new(&file)])?;
        let theirs = self.answers("torchrun script", theirs)?;
        eprintln!("{}", shown(&theirs));
        let python = self.python.as_os_str();
        let ways: [(&str, Vec<&OsStr>); 3] = [
            (
                "dtrain launch -- python script.py",
                vec!["--".as_ref(), python, file.as_ref()],
            ),
            ("dtrain launch script.py", vec![file.as_ref()]),
            ("dtrain launch -m script", vec!["-m".as_ref(), MODULE.as_ref()]),
        ];
        let mut different = Vec::new();
        for (name, program) in ways {
            let mut words: Vec<OsString> = vec![self.programs.join("dtrain").into()];
            words.extend(["launch", "--nproc", &RANKS.to_string()].map(OsString::from));
            words.extend(program.into_iter().map(OsStr::to_owned));
            let ours = self.answers(name, words);
            let compared = ours.map(|ours| difference("rank", 0, &ours, &theirs).into_iter().collect());
            different.extend(told(name, compared)?);
        }
        Ok(different)
    }

    /// The demo's first steps, by both. Returns what is different.
    fn worker(&self) -> Result<Vec<String>> {
        let worker = self.programs.join("dtrain-worker");
        let recipe = |run: &Path| -> Vec<OsString> {
            let steps = format!("train.steps={RECIPE_STEPS}");
            // The demo's own warm-up is an epoch, which is longer.
            let warmup = "optim.schedule.warmup=2 steps";
            let words = ["demo", "--set", &steps, "--set", warmup, "--run-dir"];
            words
                .into_iter()
                .map(OsString::from)
                .chain([run.into()])
                .collect()
        };
        let run_dirs = ["ours", "theirs"].map(|name| self.work.join(name));
        let mut ours: Vec<OsString> = vec![self.programs.join("dtrain").into()];
        ours.extend(["launch", "--nproc", &RANKS.to_string()].map(OsString::from));
        ours.extend(recipe(&run_dirs[0]));
        let mut theirs = self.by_torchrun(&["--no-python".as_ref(), worker.as_os_str()])?;
        theirs.extend(recipe(&run_dirs[1]));
        self.launch("dtrain launch recipe", ours)?;
        self.launch("torchrun dtrain-worker recipe", theirs)?;
        let [ours, theirs] = run_dirs.map(|run| -> Result<Vec<Value>> {
            let path = run.join("metrics.jsonl");
            let metrics =
                fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
            losses(&metrics, RECIPE_STEPS).with_context(|| path.display().to_string())
        });
        let (ours, theirs) = (ours?, theirs?);
        if let Some(last) = theirs.last() {
            eprintln!("the demo's loss after {RECIPE_STEPS} steps under torchrun: {last}");
        }
        Ok(difference("loss of step", 1, &ours, &theirs)
            .into_iter()
            .collect())
    }

    fn by_torchrun(&self, program: &[&OsStr]) -> Result<Vec<OsString>> {
        let mut words = torchrun(&self.python, &RANKS.to_string())?;
        words.extend(program.iter().map(|word| (*word).to_owned()));
        Ok(words)
    }

    /// Launches the script, whose argument follows.
    fn answers(&self, name: &str, mut words: Vec<OsString>) -> Result<Vec<Value>> {
        words.extend(["--steps".into(), SCRIPT_STEPS.to_string().into()]);
        let stdout = self.launch(name, words)?;
        answers(&stdout, RANKS).with_context(|| format!("what {name} has printed"))
    }

    /// Runs a launch to its end and returns its standard output.
    fn launch(&self, name: &str, words: Vec<OsString>) -> Result<String> {
        eprintln!("{name}");
        let file = |kind: &str| {
            self.work
                .join(format!("{}.{kind}", name.replace([' ', '/'], "-")))
        };
        let (out, err) = (file("out"), file("err"));
        let create =
            |path: &Path| File::create(path).with_context(|| format!("cannot make {}", path.display()));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .current_dir(&self.sources)
            .stdout(create(&out)?)
            .stderr(create(&err)?)
            .env("PATH", self.path()?)
            // As torchrun sets it; and the machine's own network, as otherwise Gloo looks the host's name up.
            .env("OMP_NUM_THREADS", "1")
            .env("GLOO_SOCKET_IFNAME", "lo")
            .env("CUDA_VISIBLE_DEVICES", "");
        for outer in [
            "RANK",
            "WORLD_SIZE",
            "RUST_LOG",
            "DTRAIN_WORKER",
            "VIRTUAL_ENV",
            "CONDA_PREFIX",
            "PYTHON_EXEC",
        ] {
            command.env_remove(outer);
        }
        let code = self.signals.run(&mut command)?.code;
        self.signals.check()?;
        if code != 0 {
            let said = fs::read_to_string(&err).unwrap_or_default();
            bail!(
                "it ended with exit code {code} and said last: {}; all of it is in {}",
                last_words(&said),
                err.display()
            );
        }
        fs::read_to_string(&out).with_context(|| format!("cannot read {}", out.display()))
    }

    /// A PATH on which this Python is the first.
    fn path(&self) -> Result<OsString> {
        let folder = self.python.parent().unwrap_or(Path::new("")).to_owned();
        let inherited = env::var_os("PATH").unwrap_or_default();
        let folders = [folder].into_iter().chain(env::split_paths(&inherited));
        env::join_paths(folders).context("the folder of --python cannot be part of PATH")
    }
}

/// Differences with the name of what they are of. A run that has failed is one; a signal ends all.
fn told(name: &str, outcome: Result<Vec<String>>) -> Result<Vec<String>> {
    match outcome {
        Ok(different) => Ok(different
            .into_iter()
            .map(|difference| format!("{name}: {difference}"))
            .collect()),
        Err(error) if error.downcast_ref::<Interrupted>().is_some() => Err(error),
        Err(error) => Ok(vec![format!("{name}: {error:#}")]),
    }
}

/// One line of what all ranks have come to.
fn shown(answers: &[Value]) -> String {
    let losses: Vec<String> = answers.iter().map(|answer| answer["loss"].to_string()).collect();
    let parameters = answers
        .first()
        .map_or(&Value::Null, |answer| &answer["parameters"]);
    format!("losses {}, parameters {parameters}", losses.join(" and "))
}
