//! Errors of predicted numbers and maps: mean absolute, root mean squared, ratios to the target, each also by bands of the target.

use dtrain_recipe::figures::{Delta, Mae, R2, Rmse};
use tch::{Kind, TchError, Tensor};

use super::{ByClasses, Figure, Made, Shape, Source, means};

/// The numbers of a batch, N x K x P float64: of a vector P is 1, of a map K is 1.
struct Numbers {
    /// 0 where a number does not count, as in `targets`.
    outputs: Tensor,
    targets: Tensor,
    counted: Tensor,
}

impl Numbers {
    fn of(values: &[&Tensor], weights: &Tensor, count: usize) -> Result<Self, TchError> {
        let shape = [weights.size()[0], count as i64, -1];
        let [outputs, targets] =
            [0, 1].map(|at| values[at].f_detach()?.f_to_kind(Kind::Double)?.f_reshape(shape));
        let (outputs, targets) = (outputs?, targets?);
        let counted =
            targets.f_isnan()?.f_logical_not()?.f_logical_and(&weights.f_ne(0.0)?.f_view([-1, 1, 1])?)?;
        let left_out = counted.f_logical_not()?;
        Ok(Self {
            outputs: outputs.f_masked_fill(&left_out, 0.0)?,
            targets: targets.f_masked_fill(&left_out, 0.0)?,
            counted,
        })
    }

    fn errors(&self) -> Result<Tensor, TchError> {
        self.outputs.f_sub(&self.targets)
    }

    /// Returns the sums of the means of values, N x K x P, where they count: over all, then over each band.
    fn means(
        &self,
        values: &Tensor,
        bands: Option<&[f64]>,
        interval: Option<bool>,
    ) -> Result<Tensor, TchError> {
        let mut parts = vec![self.counted.shallow_clone()];
        let edges = bands.unwrap_or_default();
        for (at, edge) in edges.iter().enumerate() {
            let from = self.counted.f_logical_and(&self.targets.f_ge(*edge)?)?;
            parts.push(match edges.get(at + 1) {
                Some(next) => from.f_logical_and(&self.targets.f_lt(*next)?)?,
                None => from,
            });
        }
        let sum = |of: Tensor| of.f_sum_dim_intlist([2i64].as_slice(), false, Kind::Double);
        let (mut above, mut below) = (Vec::new(), Vec::new());
        for part in &parts {
            above.push(sum(values.f_masked_fill(&part.f_logical_not()?, 0.0)?)?);
            below.push(sum(part.shallow_clone())?);
        }
        means::sums(&Tensor::f_cat(&above, 1)?, &Tensor::f_cat(&below, 1)?, interval)
    }
}

/// Returns the means of each number, for all and for each band.
fn values(sums: &[f64], bands: Option<&[f64]>, interval: Option<bool>) -> Vec<Vec<f64>> {
    let all: Vec<f64> = means::all(sums, interval).map(|mean| mean.value()).collect();
    let numbers = all.len() / (1 + bands.map_or(0, <[f64]>::len));
    all.chunks_exact(numbers).map(<[f64]>::to_vec).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn check(shapes: &[Shape], interval: Option<bool>) -> Result<(), String> {
    match shapes[1].get(1) {
        Some(Some(numbers)) if *numbers > 1 && interval == Some(true) => Err(format!(
            "interval takes one number of each sample, and the target has {numbers}; remove interval"
        )),
        _ => Ok(()),
    }
}

/// Makes the settings a figure that is a mean over numbers, of which `finish` takes a root.
macro_rules! of_numbers {
    ($($figure:ident, $interval:expr, |$settings:ident, $numbers:ident| $values:expr, $finish:expr;)+) => { $(
        impl Figure for $figure {
            fn takes(&self) -> Vec<Source<'_>> {
                vec![Source::Output(self.output.as_deref()), Source::Numbers(self.target.as_deref())]
            }

            fn check(&self, shapes: &[Shape], _: Option<usize>) -> Result<(), String> {
                let interval: fn(&Self) -> Option<bool> = $interval;
                check(shapes, interval(self))
            }

            fn made(&self) -> Made<'_> {
                Made::ByClasses(self)
            }
        }

        impl ByClasses for $figure {
            fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
                let $settings = self;
                let interval: fn(&Self) -> Option<bool> = $interval;
                #[allow(unused_mut)]
                let mut $numbers = Numbers::of(values, weights, classes)?;
                let values: Tensor = $values;
                $numbers.means(&values, self.bands.as_deref(), interval(self))
            }

            fn sums(&self, classes: usize) -> usize {
                let interval: fn(&Self) -> Option<bool> = $interval;
                means::count(interval(self)) * classes * (1 + self.bands.as_ref().map_or(0, Vec::len))
            }

            fn figure(&self, sums: &[f64]) -> f64 {
                mean(&self.by_class(sums))
            }

            fn further(&self, sums: &[f64]) -> Vec<f64> {
                let (interval, finish): (fn(&Self) -> Option<bool>, fn(f64) -> f64) = ($interval, $finish);
                let interval = interval(self);
                let of_mean = means::all(sums, interval).next().filter(|_| interval == Some(true));
                let bands = values(sums, self.bands.as_deref(), interval);
                let bands = bands.iter().skip(1).map(|of| mean(&of.iter().copied().map(finish).collect::<Vec<_>>()));
                of_mean.map(|mean| mean.interval()).into_iter().chain(bands).collect()
            }

            fn by_class(&self, sums: &[f64]) -> Vec<f64> {
                let (interval, finish): (fn(&Self) -> Option<bool>, fn(f64) -> f64) = ($interval, $finish);
                let all = values(sums, self.bands.as_deref(), interval(self));
                all.into_iter().next().unwrap_or_default().into_iter().map(finish).collect()
            }
        }
    )+ };
}

of_numbers! {
    Mae, |it| it.interval, |_it, numbers| numbers.errors()?.f_abs()?, |mean| mean;
    Rmse, |_| None, |_it, numbers| numbers.errors()?.f_square()?, f64::sqrt;
    Delta, |it| it.interval, |it, numbers| it.right(&mut numbers)?, |mean| mean;
}

trait Ratios {
    /// Returns which numbers are right. A target that is not above 0 has no ratio and does not count; such an output is wrong.
    fn right(&self, numbers: &mut Numbers) -> Result<Tensor, TchError>;
}

impl Ratios for Delta {
    fn right(&self, numbers: &mut Numbers) -> Result<Tensor, TchError> {
        let Numbers { outputs, targets, counted } = numbers;
        let limit = 1.25f64.powi(self.power as i32);
        let below = |one: &Tensor, other: &Tensor| one.f_lt_tensor(&other.f_mul_scalar(limit)?);
        let right = below(outputs, targets)?.f_logical_and(&below(targets, outputs)?)?;
        *counted = counted.f_logical_and(&targets.f_gt(0.0)?)?;
        right.f_to_kind(Kind::Double)
    }
}

impl Figure for R2 {
    fn takes(&self) -> Vec<Source<'_>> {
        vec![Source::Output(self.output.as_deref()), Source::Numbers(self.target.as_deref())]
    }

    fn check(&self, _: &[Shape], _: Option<usize>) -> Result<(), String> {
        Ok(())
    }

    fn made(&self) -> Made<'_> {
        Made::ByClasses(self)
    }
}

/// The sums are of each number, one kind after the other: how many there are, squared errors, targets, squared targets.
impl ByClasses for R2 {
    fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
        let numbers = Numbers::of(values, weights, classes)?;
        let errors = numbers.errors()?.f_square()?;
        let count = numbers.counted.f_to_kind(Kind::Double)?;
        let all = [count, errors, numbers.targets.shallow_clone(), numbers.targets.f_square()?];
        Tensor::f_stack(&all, 0)?
            .f_sum_dim_intlist([1i64, 3].as_slice(), false, Kind::Double)?
            .f_reshape([-1])
    }

    fn sums(&self, classes: usize) -> usize {
        4 * classes
    }

    fn figure(&self, sums: &[f64]) -> f64 {
        mean(&self.by_class(sums))
    }

    fn by_class(&self, sums: &[f64]) -> Vec<f64> {
        let numbers = sums.len() / 4;
        let of = |number: usize| {
            let [count, errors, targets, squares] = [0, 1, 2, 3].map(|kind| sums[kind * numbers + number]);
            1.0 - errors / (squares - targets * targets / count)
        };
        (0..numbers).map(of).collect()
    }
}

#[cfg(test)]
mod tests;
