//! Precision, recall and F1 of classes, and their means.

use dtrain_recipe::figures::{F1, Precision, Recall};
use tch::{TchError, Tensor};

use super::confusion::{self, Counts};
use super::{ByClasses, Figure, Made, Shape, Source};

/// Makes the settings a figure of the counts of each class: a quotient.
macro_rules! of_counts {
    ($($figure:ident $name:literal: $value:expr;)+) => { $(
        impl Figure for $figure {
            fn takes(&self) -> Vec<Source<'_>> {
                vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
            }

            fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
                confusion::check($name, shapes, classes, self.positive)
            }

            fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
                confusion::check_sets($name, shapes, self.positive)
            }

            fn made(&self) -> Made<'_> {
                Made::ByClasses(self)
            }
        }

        impl ByClasses for $figure {
            fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
                confusion::sums(values, weights, classes)
            }

            fn sums(&self, classes: usize) -> usize {
                confusion::SUMS * classes
            }

            fn figure(&self, sums: &[f64]) -> f64 {
                confusion::of_classes(sums, self.positive, $value)
            }

            fn by_class(&self, sums: &[f64]) -> Vec<f64> {
                confusion::values(sums, $value)
            }
        }
    )+ };
}

of_counts! {
    Precision "precision": |Counts { both, predicted, .. }| [both, predicted];
    Recall "recall": |Counts { both, target, .. }| [both, target];
    F1 "f1": |Counts { both, predicted, target }| [2.0 * both, predicted + target];
}
