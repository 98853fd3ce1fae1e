//! Comparisons with PyTorch's results, on any device: the tests make them on the CPU, the suite for GPUs on a GPU. How the results
//! were made is described in `tests/parity/README.md`.
#![allow(clippy::unwrap_used)]

pub mod models;
pub mod optimizers;
pub mod resnets;
pub mod scaler;

use std::path::PathBuf;
use std::sync::OnceLock;

use tch::Device;

static PLACE: OnceLock<(Device, PathBuf)> = OnceLock::new();

/// Where comparisons are made, and the folder with PyTorch's results. Called once, before the first of them; without it they are made
/// on the CPU, with the results of the repository.
pub fn compare_on(device: Device, folder: PathBuf) {
    PLACE.get_or_init(|| (device, folder));
}

fn place() -> &'static (Device, PathBuf) {
    PLACE.get_or_init(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("parity/reference");
        (Device::Cpu, folder)
    })
}

fn device() -> Device {
    place().0
}

/// The path of one of PyTorch's results.
pub fn reference(name: &str) -> PathBuf {
    place().1.join(name)
}
