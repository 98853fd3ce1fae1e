//! Tiny runs and their files.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;

use crate::process::{expect_exit_code, finish, wait_until};
use crate::programs::{dtrain, launch, without_outer_run};
use crate::scene::Scene;

/// The time after which a run counts as a hang, on a machine that is busy with other work.
const LIMIT: Duration = Duration::from_secs(600);

/// A recipe that trains in a second: generated images of 32 pixels, a transformer of some thousand parameters, a constant
/// learning rate.
pub const TINY: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
train_samples = 96
test_samples = 37
image_size = 32
workers = 1
[model]
name = "vit"
width = 16
depth = 1
heads = 2
patch = 8
[train]
effective_batch = 16
epochs = 1
seed = 3
[optim]
name = "sgd"
lr = 0.001
momentum = 0.9
[log]
every_steps = 1
"#;

/// Returns [`TINY`] with ResNet-18, for tests of batch norm, of tensors as large as a user's, or of their names.
///
/// # Panics
/// If [`TINY`] has another network.
pub fn resnet18() -> String {
    let (start, rest) = TINY.split_once("name = \"vit\"\n").expect("a transformer");
    let (_, rest) = rest.split_once("patch = 8\n").expect("its settings");
    format!("{start}name = \"resnet18\"\n{rest}")
}

/// Returns the recipe of a tiny GPT, the fastest training with a falling loss, plus the sections in `more`.
pub fn gpt(steps: u64, more: &str) -> String {
    format!(
        r#"
task = "lm"
[data]
kind = "generated"
train_samples = 32
test_samples = 4
[model]
name = "gpt"
width = 16
depth = 2
heads = 2
context = 8
[train]
effective_batch = 8
steps = {steps}
[optim]
lr = 0.01
[log]
every_steps = 1
{more}"#
    )
}

/// Compares a figure of every step of two runs that divide the same steps in different ways.
///
/// # Panics
/// If a step's figures differ by more than `tolerance`.
pub fn assert_close(one: &[f64], other: &[f64], tolerance: f64) {
    assert_eq!(one.len(), other.len());
    for (step, (a, b)) in one.iter().zip(other).enumerate() {
        assert!((a - b).abs() <= tolerance, "step {}: {a} against {b}", step + 1);
    }
}

/// A scene with a recipe.
#[derive(Debug)]
pub struct Sandbox {
    scene: Scene,
}

impl Sandbox {
    /// Creates a folder that holds `recipe` as recipe.toml.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn new(recipe: &str) -> Self {
        let scene = Scene::new();
        fs::write(scene.path("recipe.toml"), recipe).expect("a recipe");
        Self { scene }
    }

    /// Returns a path in the sandbox.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scene.path(name)
    }

    /// Returns the scene that holds the folder.
    pub fn scene(&self) -> &Scene {
        &self.scene
    }

    /// Runs `dtrain launch --nproc N --run-dir RUN recipe.toml`, with `--set` for each of `sets`.
    ///
    /// # Panics
    /// If the launcher does not start or does not end within ten minutes.
    pub fn launch(&self, nproc: usize, run: &str, sets: &[&str]) -> Output {
        self.launch_with(nproc, run, sets, &[])
    }

    /// Returns the command of `dtrain` with these words, in the sandbox's folder.
    pub fn dtrain(&self, words: &[&str]) -> Command {
        let mut command = Command::new(dtrain());
        without_outer_run(&mut command);
        command.args(words).current_dir(self.path(""));
        command
    }

    /// Runs `dtrain ckpt` with these words.
    ///
    /// # Panics
    /// If the program does not start.
    pub fn ckpt(&self, words: &[&str]) -> Output {
        self.dtrain(&["ckpt"]).args(words).output().unwrap()
    }

    /// As [`Sandbox::launch`], with further arguments before the recipe.
    ///
    /// # Panics
    /// If the launcher does not start or does not end within ten minutes.
    pub fn launch_with(&self, nproc: usize, run: &str, sets: &[&str], more: &[&str]) -> Output {
        finish(&mut self.command(nproc, run, sets, more), LIMIT)
    }

    /// Returns the command of [`Sandbox::launch_with`].
    pub fn command(&self, nproc: usize, run: &str, sets: &[&str], more: &[&str]) -> Command {
        let mut command = launch();
        self.scene.mark(&mut command);
        command.args(["--nproc", &nproc.to_string(), "--run-dir", run]);
        for set in sets {
            command.args(["--set", set]);
        }
        command.args(more).arg("recipe.toml");
        command
    }

    /// Runs [`Sandbox::launch`] and expects success.
    ///
    /// # Panics
    /// If the run fails.
    pub fn train(&self, nproc: usize, run: &str, sets: &[&str]) -> Run {
        expect_exit_code(&self.launch(nproc, run, sets), 0);
        self.run(run)
    }

    /// Returns the run in a folder of the sandbox.
    pub fn run(&self, run: &str) -> Run {
        Run(RunDir::new(self.path(run)))
    }
}

/// The files of a run.
#[derive(Debug)]
pub struct Run(pub RunDir);

impl Run {
    /// Returns all lines of metrics.jsonl.
    ///
    /// # Panics
    /// If the file is absent or a line is not JSON.
    pub fn metrics(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.0.metrics()).expect("metrics.jsonl");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// Returns a figure of every step.
    ///
    /// # Panics
    /// If a step lacks the figure.
    pub fn per_step(&self, key: &str) -> Vec<f64> {
        let steps = self.metrics().into_iter().filter(|line| line.get("loss").is_some());
        steps.map(|line| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"))).collect()
    }

    /// Returns the evaluations.
    ///
    /// # Panics
    /// As [`Run::metrics`].
    pub fn evaluations(&self) -> Vec<Value> {
        self.nested("eval")
    }

    /// Returns the steps and evaluations that ran out of memory and were taken again.
    ///
    /// # Panics
    /// As [`Run::metrics`].
    pub fn shortages(&self) -> Vec<Value> {
        self.nested("oom")
    }

    fn nested(&self, key: &str) -> Vec<Value> {
        self.metrics().into_iter().filter_map(|line| line.get(key).cloned()).collect()
    }

    /// Waits until metrics.jsonl has this number of lines.
    ///
    /// # Panics
    /// If it does not in time.
    #[track_caller]
    pub fn wait_for_lines(&self, count: usize) {
        let has_lines = |text: String| text.lines().count() >= count;
        wait_until("some steps", || fs::read_to_string(self.0.metrics()).is_ok_and(has_lines));
    }

    /// Reads plan.json.
    ///
    /// # Panics
    /// If it is absent or unreadable.
    pub fn plan(&self) -> Value {
        serde_json::from_slice(&fs::read(self.0.plan()).expect("plan.json")).expect("a plan")
    }

    /// Returns what a rank of the first attempt wrote to standard error.
    ///
    /// # Panics
    /// If its log is absent.
    pub fn log(&self, rank: usize) -> String {
        fs::read_to_string(self.0.rank_logs(0, rank).join("stderr.log")).expect("a log")
    }

    /// Reads result.json.
    ///
    /// # Panics
    /// If it is absent or unreadable.
    pub fn result(&self) -> RunResult {
        RunResult::read(&self.0.result()).expect("result.json is unreadable").expect("no result.json")
    }

    /// Returns the bytes of the newest checkpoint's model.
    ///
    /// # Panics
    /// If there is no checkpoint.
    pub fn weights(&self) -> Vec<u8> {
        fs::read(self.0.latest().join("model.safetensors")).expect("a checkpoint")
    }
}

/// Returns every file below `folder` with its bytes, to detect changes.
///
/// # Panics
/// If a file cannot be read.
pub fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder").flatten() {
            let path = entry.path();
            if path.is_dir() && !path.is_symlink() {
                folders.push(path);
            } else {
                let bytes = fs::read_link(&path)
                    .map(|target| target.into_os_string().into_encoded_bytes())
                    .or_else(|_| fs::read(&path))
                    .expect("a file");
                found.insert(path, bytes);
            }
        }
    }
    found
}
