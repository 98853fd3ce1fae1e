//! What trainings of small networks leave, as tensors.

use std::collections::BTreeMap;

pub use dtrain_test_kit::trainings::{List, Training, sets, train};
use dtrain_worker::models::TensorFile;
use tch::{Kind, Tensor};

use crate::runs::Run;

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
    assert!(!one.is_empty() && one.keys().eq(other.keys()), "{one:?} and {other:?}");
    let squares = |tensor: &Tensor| tensor.square().sum(Kind::Double).double_value(&[]);
    let apart: f64 = one.iter().map(|(name, tensor)| squares(&(tensor - &other[name]))).sum();
    let length: f64 = other.values().map(squares).sum();
    (apart / length).sqrt()
}
