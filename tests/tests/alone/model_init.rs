//! Initial weights are repeatable.

use dtrain_worker::models::{Architecture, Registry, build};
use tch::{Device, Tensor};

fn parameters(seed: i64) -> Vec<Tensor> {
    tch::manual_seed(seed);
    let mut registry = Registry::new(Device::Cpu);
    build(Architecture::ResNet18, 3, 10, &mut registry).unwrap();
    registry.parameters().map(|entry| entry.tensor().detach()).collect()
}

#[test]
fn a_seed_fixes_the_initial_weights() {
    let _alone = crate::alone();
    let (first, again, other) = (parameters(1), parameters(1), parameters(2));
    assert!(first.iter().zip(&again).all(|(a, b)| a.equal(b)));
    // Batch norms start from constants; the 20 convolutions and the classifier's two tensors are random.
    assert_eq!(first.iter().zip(&other).filter(|(a, b)| !a.equal(b)).count(), 22);
}
