//! Trainings of small networks by the engine itself, many in one start of the ranks, and what they leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use dtrain_worker::models::TensorFile;
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::ranks::{run_with, said};
use crate::runs::{Run, Sandbox};

/// How long a start of the ranks may take on a busy machine.
const LIMIT: Duration = Duration::from_secs(300);

/// One of the trainings that a start of the program `training-rank` takes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Training {
    /// The recipe's path.
    pub recipe: PathBuf,
    /// Overrides, `key=value`.
    pub sets: Vec<String>,
    /// Where it writes.
    pub run_dir: PathBuf,
}

/// Trainings by their name.
pub type List = Vec<(String, Vec<String>)>;

/// Starts `world_size` ranks of `program` once for all trainings in `list`: name, which is the run directory in `sandbox`,
/// and the values that it sets.
///
/// # Panics
/// Where any of them fails, or all together take too long.
pub fn train(sandbox: &Sandbox, program: &Path, world_size: usize, vars: &[(&str, &str)], list: &List) {
    let trainings: Vec<Training> = list
        .iter()
        .map(|(name, sets)| Training {
            recipe: sandbox.path("recipe.toml"),
            sets: sets.clone(),
            run_dir: sandbox.path(name),
        })
        .collect();
    let path = sandbox.path(&format!("list-{world_size}.json"));
    let text = serde_json::to_string(&trainings).expect("a list is JSON");
    fs::write(&path, text).expect("the sandbox takes a file");
    // The comparisons are of arithmetic on the CPU.
    let mut vars = vars.to_vec();
    vars.push(("CUDA_VISIBLE_DEVICES", ""));
    let args = [path.to_str().expect("a path in UTF-8")];
    let outputs = run_with(program, &args, &vars, world_size, LIMIT);
    for (rank, output) in outputs.iter().enumerate() {
        assert!(
            output.status.success(),
            "rank {rank} of {world_size}: {}",
            said(output)
        );
    }
}

/// `key=value` for each.
pub fn sets(values: &[&str]) -> Vec<String> {
    values.iter().map(|&value| value.to_owned()).collect()
}

/// The tensors of a file of the newest checkpoint, in float64, by name.
///
/// # Panics
/// Where there is no such file.
pub fn tensors(run: &Run, file: &str) -> BTreeMap<String, Tensor> {
    let file = TensorFile::open(&run.0.latest().join(file)).expect("a file of a checkpoint");
    let read = |name: String| {
        let tensor = file.read(&name).expect("a tensor of the file");
        (name, tensor.to_kind(Kind::Double))
    };
    file.names().into_iter().map(read).collect()
}

/// How far apart two sets of tensors of the same names are: the length of the difference over the length of the second.
///
/// # Panics
/// Where the names differ, or there is none.
pub fn distance(one: &BTreeMap<String, Tensor>, other: &BTreeMap<String, Tensor>) -> f64 {
    assert!(
        !one.is_empty() && one.keys().eq(other.keys()),
        "{one:?} and {other:?}"
    );
    let squares = |tensor: &Tensor| tensor.square().sum(Kind::Double).double_value(&[]);
    let apart: f64 = one
        .iter()
        .map(|(name, tensor)| squares(&(tensor - &other[name])))
        .sum();
    let length: f64 = other.values().map(squares).sum();
    (apart / length).sqrt()
}
