//! The mean recall of the classes: Brodersen et al. 2010, doi 10.1109/ICPR.2010.764.

use dtrain_recipe::figures::BalancedAccuracy;
use tch::{TchError, Tensor};

use super::{ByClasses, Figure, Made, Shape, Source, confusion};

impl Figure for BalancedAccuracy {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(self.classes.as_deref())]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        confusion::check("balanced-accuracy", shapes, classes, None)
    }

    fn made(&self) -> Made<'_> {
        Made::ByClasses(self)
    }
}

impl ByClasses for BalancedAccuracy {
    fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
        confusion::sums(values, weights, classes)
    }

    fn sums(&self, classes: usize) -> usize {
        confusion::SUMS * classes
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        let recalls: Vec<f64> = self.by_class(sums).into_iter().filter(|recall| !recall.is_nan()).collect();
        recalls.iter().sum::<f64>() / recalls.len() as f64
    }

    /// A class without samples has no recall.
    fn by_class(&self, sums: &[f64]) -> Vec<f64> {
        confusion::counts(sums).map(|counts| counts.both / counts.target).collect()
    }
}
