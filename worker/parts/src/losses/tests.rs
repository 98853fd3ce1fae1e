#![allow(clippy::unwrap_used)]
use std::collections::HashMap;
use std::path::Path;

use super::*;

/// The values of PyTorch, for which sample 3 is left out; here its weight is 0.
fn reference() -> HashMap<String, Tensor> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference/losses.safetensors");
    Tensor::read_safetensors(file).unwrap().into_iter().collect()
}

/// Compares a loss and its derivatives by `names`. The sample that is left out has no number.
fn compare(loss: &str, names: &[&str], compute: impl Fn(&[Tensor], &HashMap<String, Tensor>) -> Tensor) {
    let known = reference();
    let leaf = |name: &&str| {
        let values = known[*name].copy();
        if values.size()[0] == known["weights"].size()[0] {
            let _ = values.get(3).fill_(f64::NAN);
        }
        values.set_requires_grad(true)
    };
    let leaves: Vec<Tensor> = names.iter().map(leaf).collect();
    let found = compute(&leaves, &known);
    let derivatives = Tensor::run_backward(&[&found], &leaves.iter().collect::<Vec<_>>(), false, false);
    let found = [found.view([1])].into_iter().chain(derivatives);
    for (name, found) in ["loss"].iter().chain(names).zip(found) {
        let difference = (found - &known[&format!("{loss}.{name}")]).abs().max();
        assert!(f64::try_from(difference).unwrap() < 1e-6, "{loss}.{name}");
    }
}

#[test]
fn losses_over_a_step_are_those_of_pytorch() {
    compare("clip", &["left", "right", "scale"], |of, known| {
        clip(&of[0], &of[1], &of[2], &known["weights"]).unwrap()
    });
    compare("siglip", &["left", "right", "scale", "bias"], |of, known| {
        siglip(&of[0], &of[1], &of[2], &of[3], &known["weights"]).unwrap()
    });
    compare("supcon", &["left"], |of, known| {
        supcon(&of[0], &known["classes"], 0.07, &known["weights"]).unwrap()
    });
    compare("balance", &["gates"], |of, known| balance(&of[0], &known["weights"]).unwrap());
}
