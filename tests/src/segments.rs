//! Segments with dropout, recomputed in backward, on any device.
#![allow(clippy::unwrap_used)]

use dtrain_test_kit::assert_values;
use dtrain_worker::models::{Linear, ModelError, Registry, Scope};
use tch::{Device, Kind, Tensor};

/// Checks that outputs, gradients and later random numbers do not depend on the recomputed segments.
///
/// # Panics
/// If they differ.
pub fn dropout_draws_the_same(device: Device) {
    let mut registry = Registry::new(device);
    let mut root = registry.root();
    let mut blocks = Vec::new();
    for index in 0..3 {
        let build = |scope: &mut Scope<'_>| Linear::new(&mut scope.sub("fc"), 16, 16);
        blocks.push(root.sub(index).segment(build).unwrap());
    }
    let forward = |x: &Tensor| -> Result<Tensor, ModelError> {
        let mut x = x.f_dropout(0.1, true)?;
        for block in &blocks {
            x = block.run(&x, |layer, x| {
                Ok(layer.forward(&x.f_dropout(0.5, true)?, true)?.f_dropout(0.2, true)?)
            })?;
        }
        Ok(x)
    };
    let batches = [0, 1].map(|_| Tensor::randn([4, 16], (Kind::Float, device)));
    let step = |count| {
        registry.recompute().set(count);
        tch::manual_seed(5);
        let mut left = Vec::new();
        for batch in &batches {
            let y = forward(batch).unwrap();
            registry.recompute().backward(&y.square().sum(Kind::Float)).unwrap();
            left.push(y.detach());
        }
        left.push(Tensor::randn([3], (Kind::Float, device)));
        for entry in registry.parameters() {
            left.push(entry.tensor().grad().copy());
            entry.tensor().shallow_clone().zero_grad();
        }
        left
    };
    let plain = step(0);
    for count in 1..=3 {
        for (number, (a, b)) in plain.iter().zip(step(count)).enumerate() {
            assert_values!(a.equal(&b), "{number} at {count} segments");
        }
    }
}
