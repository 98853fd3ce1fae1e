//! The mean recall of the classes: Brodersen et al. 2010, doi 10.1109/ICPR.2010.764.

use dtrain_recipe::figures::BalancedAccuracy;

use super::{ByClasses, Figure, Made, Shape, Source, confusion};

impl Figure for BalancedAccuracy {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Classes(&self.classes)]
    }

    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String> {
        confusion::check("balanced-accuracy", shapes, classes, None)
    }

    fn made(&self) -> Made<'_> {
        Made::ByClasses(self)
    }
}

impl ByClasses for BalancedAccuracy {
    /// A class without samples has no recall.
    fn figure(&self, sums: &[f64]) -> f64 {
        let with_samples = confusion::counts(sums).filter(|counts| counts.target > 0.0);
        let recalls: Vec<f64> = with_samples.map(|counts| counts.both / counts.target).collect();
        recalls.iter().sum::<f64>() / recalls.len() as f64
    }
}
