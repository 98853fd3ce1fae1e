//! Comparison with the values of PyTorch.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::path::Path;

use dtrain_recipe::figures::Confusion;
use tch::Tensor;

use crate::Loss;
use crate::figures::rows::ByRows;
use crate::figures::{ByClasses, Figure, Made};
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

/// Values of samples, and their figures by the libraries that `tests/parity/make_figures.py` names.
pub(crate) struct OfFigures(HashMap<String, Tensor>);

impl OfFigures {
    pub(crate) fn read() -> Self {
        Self(read("figures"))
    }

    /// Returns the expected numbers of this name.
    pub(crate) fn of(&self, name: &str) -> Vec<f64> {
        Vec::try_from(&self.0[name]).unwrap()
    }

    /// Adds the pixels of the masks, one after the other: `pixels.flat`, N x M x K, and `pixels.targets`, N x M.
    pub(crate) fn with_pixels(mut self) -> Self {
        let flat = self.0["pixels.logits"].flatten(2, 3).transpose(1, 2);
        let targets = self.0["pixels.masks"].flatten(1, 2);
        self.0.extend([("pixels.flat".to_owned(), flat), ("pixels.targets".to_owned(), targets)]);
        self
    }

    /// Returns a figure of rows by their bins.
    pub(crate) fn binned(&self, figure: &dyn ByRows, names: [&str; 2]) -> f64 {
        let [output, target] = names.map(|name| &self.0[name]);
        let weights = Tensor::ones([output.size()[0]], (tch::Kind::Float, tch::Device::Cpu));
        let rows = figure.rows(&[output, target], &weights).unwrap().reshape([-1]);
        figure.of_sums(&figure.sums(&Vec::try_from(rows).unwrap()))
    }

    /// Returns the counts of each target and prediction.
    pub(crate) fn counts(&self, names: [&str; 2], classes: usize) -> Vec<f64> {
        let [output, target] = names.map(|name| &self.0[name]);
        let weights = Tensor::ones([output.size()[0]], (tch::Kind::Float, tch::Device::Cpu));
        let figure = Confusion::default();
        let sums = figure.add(&[output, target], &weights, classes).unwrap();
        figure.matrix(&Vec::<f64>::try_from(sums).unwrap()).unwrap().concat()
    }

    /// Computes a figure of an output and targets, which must be the expected ones: the figure, then its further numbers. However
    /// the samples are cut, the figure is the same, and a sample that cannot be read adds nothing.
    pub(crate) fn compare(
        &self,
        figure: &dyn Figure,
        [output, target]: [&str; 2],
        classes: usize,
        expected: &[&str],
    ) {
        let (output, target) = (&self.0[output], &self.0[target]);
        let samples = output.size()[0];
        let of_cut = |cut: &[i64]| {
            let (mut sums, mut first) = (Vec::new(), 0);
            for count in cut {
                let with_unreadable = |of: &Tensor| {
                    let part = of.narrow(0, first, *count);
                    let empty = part.narrow(0, 0, 1);
                    Tensor::cat(
                        &[
                            &part,
                            &if of.is_floating_point() {
                                empty.full_like(f64::NAN)
                            } else {
                                empty.zeros_like()
                            },
                        ],
                        0,
                    )
                };
                let values = [output, target].map(with_unreadable);
                let values: Vec<_> = values.iter().collect();
                let weights = Tensor::ones([count + 1], (tch::Kind::Float, tch::Device::Cpu));
                let _ = weights.get(*count).fill_(0.0);
                let part = match figure.made() {
                    Made::BySums(figure) => figure.add(&values, &weights).unwrap(),
                    Made::ByClasses(figure) => figure.add(&values, &weights, classes).unwrap(),
                    Made::ByRows(figure) => {
                        let rows = figure.rows(&values, &weights).unwrap().reshape([-1]);
                        Tensor::from_slice(&figure.sums(&Vec::try_from(rows).unwrap()))
                    }
                    Made::Own(_) => panic!("a task runs a user's own figure"),
                };
                let part = Vec::<f64>::try_from(part).unwrap();
                sums.resize(part.len(), 0.0);
                sums.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
                first += count;
            }
            assert_eq!(first, samples);
            match figure.made() {
                Made::BySums(figure) => {
                    assert_eq!(sums.len(), figure.sums());
                    [vec![figure.figure(&sums)], figure.further(&sums)].concat()
                }
                Made::ByClasses(figure) => {
                    assert_eq!(sums.len(), figure.sums(classes));
                    [vec![figure.figure(&sums)], figure.further(&sums), figure.by_class(&sums)].concat()
                }
                Made::ByRows(figure) => vec![figure.of_sums(&sums)],
                Made::Own(_) => Vec::new(),
            }
        };
        let whole = of_cut(&[samples]);
        let wanted: Vec<f64> = expected.iter().flat_map(|name| self.of(name)).collect();
        for (found, (wanted, name)) in whole.iter().zip(wanted.iter().zip(expected)) {
            assert!((found - wanted).abs() < 1e-5, "{name}: {found}, expected {wanted}");
        }
        assert!(whole.len() >= wanted.len(), "{expected:?}");
        for cut in [&[1, samples - 1][..], &[2, 1, samples - 3], &vec![1; samples as usize]] {
            for (one, other) in whole.iter().zip(of_cut(cut)) {
                assert!(
                    (one - other).abs() < 1e-9 || one.is_nan() && other.is_nan(),
                    "{expected:?} {cut:?}: {one} {other}"
                );
            }
        }
    }
}
