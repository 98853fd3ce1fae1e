//! Comparison with the values of PyTorch.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use crate::losses::OverStep;

/// Compares a loss of the values `names`, and its derivatives, with those of PyTorch, for which sample 3 is left out. Here
/// its weight is 0, and it has no number.
pub(crate) fn compare(loss: &dyn OverStep, name: &str, names: &[&str]) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference/losses.safetensors");
    let known: HashMap<_, _> = Tensor::read_safetensors(file).unwrap().into_iter().collect();
    let weights = &known["weights"];
    let leaf = |name: &&str| {
        let values = known[*name].copy();
        if !values.is_floating_point() {
            return values;
        }
        if values.size()[0] == weights.size()[0] {
            let _ = values.get(3).fill_(f64::NAN);
        }
        values.set_requires_grad(true)
    };
    let leaves: Vec<Tensor> = names.iter().map(leaf).collect();
    let found = loss.mean(&leaves.iter().collect::<Vec<_>>(), weights).unwrap();
    let floats: Vec<_> = names.iter().zip(&leaves).filter(|(_, leaf)| leaf.requires_grad()).collect();
    let (names, leaves): (Vec<_>, Vec<_>) = floats.into_iter().unzip();
    let derivatives = Tensor::run_backward(&[&found], &leaves, false, false);
    let found = [found.view([1])].into_iter().chain(derivatives);
    for (value, found) in [&"loss"].into_iter().chain(names).zip(found) {
        let difference = (found - &known[&format!("{name}.{value}")]).abs().max();
        assert!(f64::try_from(difference).unwrap() < 1e-6, "{name}.{value}");
    }
}
