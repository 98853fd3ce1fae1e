//! Results of trainings of small networks, as tensors.

use std::collections::BTreeMap;

pub use dtrain_test_kit::trainings::{Training, TrainingList, sets, train};
use dtrain_worker::models::TensorFile;
use tch::{Kind, Tensor};

use crate::runs::Run;

/// Returns the tensors of a file of the newest checkpoint, in float64, by name.
///
/// # Panics
/// If there is no such file.
pub fn tensors(run: &Run, file: &str) -> BTreeMap<String, Tensor> {
    let file = TensorFile::open(&run.0.latest().join(file)).expect("a file of a checkpoint");
    let read = |name: String| {
        let tensor = file.read(&name).expect("a tensor of the file");
        (name, tensor.to_kind(Kind::Double))
    };
    file.names().into_iter().map(read).collect()
}

/// Returns the distance of two sets of tensors: the difference's length over the second set's length.
///
/// # Panics
/// If the names differ, or if there are no names.
pub fn distance(one: &BTreeMap<String, Tensor>, other: &BTreeMap<String, Tensor>) -> f64 {
    assert!(!one.is_empty() && one.keys().eq(other.keys()), "{one:?} and {other:?}");
    let squares = |tensor: &Tensor| tensor.square().sum(Kind::Double).double_value(&[]);
    let squared: f64 = one.iter().map(|(name, tensor)| squares(&(tensor - &other[name]))).sum();
    let length: f64 = other.values().map(squares).sum();
    (squared / length).sqrt()
}
