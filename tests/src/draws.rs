//! Dropout by sample on a GPU, compared with that on the CPU.
#![allow(clippy::unwrap_used)]

use dtrain_test_kit::assert_values;
use dtrain_torch_shim::rng::{BySample, dropout};
use tch::{Device, Kind, Tensor};

/// Checks that a dropout and its gradient are those of the CPU in every bit.
///
/// # Panics
/// If they differ.
pub fn draws_are_those_of_the_cpu(device: Device) {
    let _all = BySample::enter(5, &(3..12)).unwrap();
    // With gaps, as where samples cannot be read.
    let _samples = BySample::select(&[0, 1, 3, 4, 5, 8]).unwrap();
    for kind in [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16] {
        for (shape, dim) in [([6, 5, 700], 0), ([5, 6, 700], 1), ([12, 1, 3], 0)] {
            let x = Tensor::randn(shape, (Kind::Float, Device::Cpu)).to_kind(kind);
            let on = |device| {
                let x = x.to_device(device).set_requires_grad(true);
                let y = dropout(&x, 0.3, 2, dim).unwrap();
                y.sum(Kind::Float).backward();
                [y.detach(), x.grad()].map(|found| found.to_device(Device::Cpu))
            };
            for (found, expected) in on(device).iter().zip(&on(Device::Cpu)) {
                assert_values!(found.equal(expected), "{kind:?}, {shape:?}");
            }
        }
    }
}
