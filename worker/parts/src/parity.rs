//! Comparison with the values of PyTorch.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use crate::Loss;
use crate::losses::OverStep;

fn read(name: &str) -> HashMap<String, Tensor> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/parity/reference");
    Tensor::read_safetensors(folder.join(format!("{name}.safetensors"))).unwrap().into_iter().collect()
}

/// Values of samples, and their losses by PyTorch.
pub(crate) struct OfSamples {
    known: HashMap<String, Tensor>,
    /// The name of what has a derivative.
    input: &'static str,
    /// The name of the targets.
    targets: &'static str,
    /// The sample that cannot be read.
    left_out: i64,
}

impl OfSamples {
    pub(crate) fn read(input: &'static str, targets: &'static str, left_out: i64) -> Self {
        Self { known: read("sample-losses"), input, targets, left_out }
    }

    /// Compares the loss of a step, by values, targets and weights of samples, with that of PyTorch, which leaves one out. Here its
    /// weight is 0, and it has no number. However the step is cut, loss and derivative are the same.
    pub(crate) fn compare(&self, name: &str, loss: impl Fn(&Tensor, &Tensor, &Tensor) -> Loss) {
        let leaf = self.known[self.input].copy();
        let targets = self.known[self.targets].copy();
        let _ = leaf.get(self.left_out).fill_(f64::NAN);
        if targets.is_floating_point() {
            let _ = targets.get(self.left_out).fill_(f64::NAN);
        }
        let samples = leaf.size()[0];
        let weights = Tensor::ones([samples], (tch::Kind::Float, tch::Device::Cpu));
        let _ = weights.get(self.left_out).fill_(0.0);
        let leaf = leaf.set_requires_grad(true);
        let of_cut = |cut: &[i64]| {
            let (mut sum, mut weight, mut first) = (Tensor::from(0f32), Tensor::from(0f64), 0);
            for length in cut {
                let part = |of: &Tensor| of.narrow(0, first, *length);
                let found = loss(&part(&leaf), &part(&targets), &part(&weights));
                (sum, weight, first) = (sum + found.sum, weight + found.weight, first + length);
            }
            assert_eq!(first, samples);
            let mean = sum / weight;
            let derivative = Tensor::run_backward(&[&mean], &[&leaf], false, false).remove(0);
            (mean.view([1]), derivative)
        };
        let far = |a: &Tensor, b: &Tensor| f64::try_from((a - b).abs().max()).unwrap();
        let (whole, derivative) = of_cut(&[samples]);
        let expected = |value: &str| &self.known[&format!("{name}.{value}")];
        assert!(far(&whole, expected("loss")) < 1e-5, "{name}: {whole:?} {:?}", expected("loss"));
        assert!(
            far(&derivative, expected(self.input)) < 1e-5,
            "{name}: {derivative} {}",
            expected(self.input)
        );
        assert_eq!(f64::try_from(derivative.get(self.left_out).abs().max()).unwrap(), 0.0, "{name}");
        let ones = vec![1; samples as usize];
        for cut in [&[1, samples - 1][..], &[2, 1, samples - 3], &ones] {
            let (mean, of_cut) = of_cut(cut);
            assert!(far(&mean, &whole) < 1e-6 && far(&of_cut, &derivative) < 1e-6, "{name} {cut:?}");
        }
    }
}

/// Compares a loss of the values `names`, and its derivatives, with those of PyTorch, for which sample 3 is left out. Here
/// its weight is 0, and it has no number.
pub(crate) fn compare(loss: &dyn OverStep, name: &str, names: &[&str]) {
    let known = read("losses");
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
