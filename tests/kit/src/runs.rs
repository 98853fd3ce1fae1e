//! Tiny runs, and what they leave behind.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use dtrain_common::result::RunResult;
use dtrain_common::run_dir::RunDir;
use serde_json::Value;

use crate::process::{finish, said};
use crate::programs::launch;
use crate::scene::Scene;

/// The time after which a run hangs, on a machine that is busy with something else.
const LIMIT: Duration = Duration::from_secs(600);

/// A recipe that trains in seconds: generated images of 32 pixels, ResNet-18, a constant learning rate.
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
name = "resnet18"
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

/// The recipe of a tiny GPT, whose loss falls, with more sections: as fast as a training can be.
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

/// Fails where two runs that cut the same steps up in different ways differ by more than `tolerance` in a figure of a step.
///
/// # Panics
/// If they do.
pub fn assert_close(one: &[f64], other: &[f64], tolerance: f64) {
    assert_eq!(one.len(), other.len());
    for (step, (a, b)) in one.iter().zip(other).enumerate() {
        assert!((a - b).abs() <= tolerance, "step {}: {a} against {b}", step + 1);
    }
}

/// A scene with a recipe in it.
#[derive(Debug)]
pub struct Sandbox {
    scene: Scene,
}

impl Sandbox {
    /// A folder that holds `recipe` as recipe.toml.
    ///
    /// # Panics
    /// Where the disk is full, say.
    pub fn new(recipe: &str) -> Self {
        let scene = Scene::new();
        fs::write(scene.path("recipe.toml"), recipe).expect("a recipe");
        Self { scene }
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.scene.path(name)
    }

    /// `dtrain launch --nproc N --run-dir RUN recipe.toml`, with `--set` for every one of `sets`.
    ///
    /// # Panics
    /// Where the launcher does not start, or does not end within ten minutes.
    pub fn launch(&self, nproc: usize, run: &str, sets: &[&str]) -> Output {
        self.launch_with(nproc, run, sets, &[])
    }

    /// As [`Sandbox::launch`], with further arguments before the recipe.
    ///
    /// # Panics
    /// Where the launcher does not start, or does not end within ten minutes.
    pub fn launch_with(&self, nproc: usize, run: &str, sets: &[&str], more: &[&str]) -> Output {
        finish(&mut self.command(nproc, run, sets, more), LIMIT)
    }

    /// The command of [`Sandbox::launch_with`].
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

    /// Launches and expects success.
    ///
    /// # Panics
    /// Where the run fails.
    pub fn train(&self, nproc: usize, run: &str, sets: &[&str]) -> Run {
        let output = self.launch(nproc, run, sets);
        assert!(output.status.success(), "{}", said(&output));
        self.run(run)
    }

    /// The run in a folder of the sandbox.
    pub fn run(&self, run: &str) -> Run {
        Run(RunDir::new(self.path(run)))
    }
}

/// What a run left.
#[derive(Debug)]
pub struct Run(pub RunDir);

impl Run {
    /// All lines of metrics.jsonl.
    ///
    /// # Panics
    /// Where the file is absent or a line is no JSON.
    pub fn metrics(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.0.metrics()).expect("metrics.jsonl");
        text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// A figure of every step.
    ///
    /// # Panics
    /// Where a step lacks it.
    pub fn per_step(&self, key: &str) -> Vec<f64> {
        let steps = self.metrics().into_iter().filter(|line| line.get("loss").is_some());
        steps.map(|line| line[key].as_f64().unwrap_or_else(|| panic!("{key} in {line}"))).collect()
    }

    /// The evaluations.
    ///
    /// # Panics
    /// As [`Run::metrics`].
    pub fn evaluations(&self) -> Vec<Value> {
        self.nested("eval")
    }

    /// The steps and evaluations that ran out of memory and were taken again.
    ///
    /// # Panics
    /// As [`Run::metrics`].
    pub fn shortages(&self) -> Vec<Value> {
        self.nested("oom")
    }

    fn nested(&self, key: &str) -> Vec<Value> {
        self.metrics().into_iter().filter_map(|line| line.get(key).cloned()).collect()
    }

    /// result.json.
    ///
    /// # Panics
    /// Where it is absent or unreadable.
    pub fn result(&self) -> RunResult {
        RunResult::read(&self.0.result()).expect("result.json can be read").expect("result.json is there")
    }

    /// The bytes of the newest checkpoint's model.
    ///
    /// # Panics
    /// Where there is none.
    pub fn weights(&self) -> Vec<u8> {
        fs::read(self.0.latest().join("model.safetensors")).expect("a checkpoint")
    }
}

/// Every file below `folder` with its bytes, to see that nothing was changed.
///
/// # Panics
/// Where a file cannot be read.
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
