//! Compares gradients with PyTorch's.

use super::{double, relative_l2};
use crate::formula;
use dtrain_test_kit::assert_values;
use dtrain_worker::models::{Registry, TensorFile};
use tch::{Kind, Tensor};

/// Tolerances to PyTorch's results in float64, relative to the length.
#[derive(Clone, Copy)]
pub(super) struct Tolerance {
    /// For logits, which the references store in float32.
    pub(super) logits: f64,
    /// For whole gradients, which the references store in float32.
    pub(super) gradients: f64,
    /// For the gradients' norms and products and for statistics, which the references store in float64.
    pub(super) exact: f64,
}

impl Tolerance {
    /// Returns the tolerances for a network in float64 or float32.
    pub(super) fn of(kind: Kind) -> Self {
        match kind {
            Kind::Double => Self { logits: 1e-6, gradients: 1e-6, exact: 1e-10 },
            _ => Self { logits: 1e-4, gradients: 1e-3, exact: 1e-3 },
        }
    }
}

/// Compares every gradient by its norm and by its products with fixed vectors, and a few gradients whole. The names in
/// `expected` begin with `prefix`. Returns the largest relative difference (L2).
///
/// # Panics
/// If they differ too much; the message begins with `label`.
pub(super) fn compare(
    registry: &Registry,
    expected: &TensorFile,
    prefix: &str,
    tolerance: Tolerance,
    label: &str,
) -> f64 {
    let read = |name: &str| expected.read(&format!("{prefix}{name}")).unwrap();
    let (norms, probes) = (read("grad.norms"), read("grad.probes"));
    let count = probes.size()[1];
    assert_eq!(registry.parameters().count() as i64, norms.size()[0]);
    let (mut worst, mut whole) = (0.0f64, 0);
    for (index, entry) in registry.parameters().enumerate() {
        let (name, index) = (entry.name(), index as i64);
        let gradient = double(&entry.tensor().grad());
        let flat = gradient.reshape([-1]);
        let norm = norms.double_value(&[index]);
        let of_norm = (flat.norm().double_value(&[]) / norm - 1.0).abs();
        assert_values!(of_norm < tolerance.exact, "{label}, norm of the gradient of {name}: {of_norm:e}");
        // If a vector's entries are uniform in [-1, 1), the squared product with an error is on average a
        // third of the error's squared length: the products measure the length of the error.
        let mut squares = 0.0;
        for probe in 0..count {
            let direction = formula::unit(&format!("probe.{probe}.{name}"), flat.numel());
            let product = flat.dot(&Tensor::from_slice(&direction)).double_value(&[]);
            squares += (product - probes.double_value(&[index, probe])).powi(2);
        }
        let relative = (3.0 * squares / count as f64).sqrt() / norm;
        assert_values!(
            relative < tolerance.exact,
            "{label}, gradient of {name} by its products: {relative:e}"
        );
        worst = worst.max(relative);
        if expected.info(&format!("{prefix}grad.{name}")).is_some() {
            let difference = relative_l2(&gradient, &read(&format!("grad.{name}")));
            assert_values!(difference < tolerance.gradients, "{label}, gradient of {name}: {difference:e}");
            whole += 1;
        }
    }
    assert!(whole >= 3, "{label}: {whole} whole gradients in the reference");
    worst
}
