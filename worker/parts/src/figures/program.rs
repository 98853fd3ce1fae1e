//! A user's own figure, whose values a task computes: the settings alone compute nothing.

use dtrain_recipe::figures::Program;

use super::{Figure, Made, Shape, Source};

impl Figure for Program {
    fn takes(&self) -> Vec<Source<'_>> {
        Vec::new()
    }

    fn check(&self, _: &[Shape], _: Option<usize>) -> Result<(), String> {
        Ok(())
    }

    fn made(&self) -> Made<'_> {
        Made::Own(self)
    }
}

/// Returns the figure from sums over all samples, the numerators and then as many divisors: the mean of the quotients whose divisor
/// is not 0.
pub fn mean_of_quotients(sums: &[f64]) -> f64 {
    let (above, below) = sums.split_at(sums.len() / 2);
    let quotients = above.iter().zip(below).filter(|(_, below)| **below != 0.0);
    let (sum, count) =
        quotients.fold((0.0, 0.0), |(sum, count), (above, below)| (sum + above / below, count + 1.0));
    sum / count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_without_a_divisor_are_left_out() {
        assert_eq!(mean_of_quotients(&[3.0, 4.0]), 0.75);
        assert_eq!(mean_of_quotients(&[1.0, 0.0, 3.0, 2.0, 0.0, 4.0]), 0.625);
        assert!(mean_of_quotients(&[0.0, 0.0]).is_nan());
    }
}
