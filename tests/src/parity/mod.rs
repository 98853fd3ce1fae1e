//! Comparisons with PyTorch's results, on any device: tests use the CPU, the GPU suite uses a GPU.
//! `tests/parity/README.md` describes the results.
#![allow(clippy::unwrap_used)]

mod gradients;
pub mod models;
pub mod optimizers;
pub mod resnets;
pub mod scaler;

use std::path::PathBuf;
use std::sync::OnceLock;

use dtrain_worker::models::Registry;
use serde_json::Value;
use tch::{Device, Kind, Tensor};

use crate::formula;

static TARGET: OnceLock<(Device, PathBuf)> = OnceLock::new();

/// Sets the device of the comparisons and the folder with PyTorch's results. Call it once, before the first
/// comparison; by default, comparisons use the CPU and the repository's results.
pub fn compare_on(device: Device, folder: PathBuf) {
    TARGET.get_or_init(|| (device, folder));
}

fn target() -> &'static (Device, PathBuf) {
    TARGET.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("parity/reference");
        (Device::Cpu, folder)
    })
}

fn device() -> Device {
    target().0
}

/// Returns the path of a PyTorch result.
pub fn reference(name: &str) -> PathBuf {
    target().1.join(name)
}

/// Returns the path of the results of a network, or of the optimizers.
fn file(name: &str) -> PathBuf {
    reference(&format!("{name}.safetensors"))
}

/// Returns the description in the header of these results.
fn about(name: &str) -> Value {
    let bytes = std::fs::read(file(name)).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    serde_json::from_str(&metadata.metadata().as_ref().unwrap()["about"]).unwrap()
}

/// Gives a network the formula's weights. The references begin with weights rounded to float32.
fn set_weights(registry: &Registry) {
    for entry in registry.state() {
        let shape = entry.tensor().size();
        let value = Tensor::from_slice(&formula::state_value(entry.name(), &shape)).view(&shape[..]);
        tch::no_grad(|| entry.tensor().shallow_clone().copy_(&value.to_kind(Kind::Float)));
    }
}

fn double(tensor: &Tensor) -> Tensor {
    tensor.detach().to_device(Device::Cpu).to_kind(Kind::Double)
}

fn relative_l2(got: &Tensor, expected: &Tensor) -> f64 {
    assert_eq!(got.size(), expected.size());
    ((double(got) - double(expected)).norm() / double(expected).norm()).double_value(&[])
}
