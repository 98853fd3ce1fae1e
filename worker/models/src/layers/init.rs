//! Initial values of weights.

use std::cell::Cell;

use tch::{Device, Kind, Tensor};

use super::super::error::ModelError;

pub(super) const CPU_FLOAT: (Kind, Device) = (Kind::Float, Device::Cpu);

thread_local! {
    static SKIPS_INIT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `build` without drawing initial weights: for a model that is filled from a checkpoint. Drawing takes
/// seconds for hundreds of millions of parameters.
pub fn without_random_init<T>(build: impl FnOnce() -> T) -> T {
    /// Restores the setting, also after a panic.
    struct RestoreInit(bool);
    impl Drop for RestoreInit {
        fn drop(&mut self) {
            SKIPS_INIT.set(self.0);
        }
    }
    let _restore = RestoreInit(SKIPS_INIT.replace(true));
    build()
}

/// The distribution of the initial weight and bias of a convolution or fully connected layer.
///
/// A weight of shape `a` x `b` x kernel has fan-in `b` x kernel and fan-out `a` x kernel, as in PyTorch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    /// Normal with variance 2 / fan-out, bias 0: Kaiming's (He et al. 2015, arXiv 1502.01852) before a ReLU.
    FanOut,
    /// Uniform in ±1 / sqrt(fan-in), also the bias: the default of PyTorch's layers.
    FanIn,
    /// Normal with this standard deviation, bias 0.
    Normal(f64),
    /// Normal with this standard deviation, truncated at two of them, bias 0.
    Truncated(f64),
}

impl Init {
    /// Returns a float32 weight of this shape (at least two dimensions) on the CPU.
    pub(in super::super) fn weight(self, shape: &[i64]) -> Result<Tensor, ModelError> {
        let fan_out = || shape[0] as f64 * kernel(shape);
        let mut weight = Tensor::f_empty(shape, CPU_FLOAT)?;
        if SKIPS_INIT.get() {
            return Ok(weight);
        }
        Ok(match self {
            Self::FanOut => weight.f_normal_(0.0, (2.0 / fan_out()).sqrt())?,
            Self::FanIn => {
                let bound = fan_in_bound(shape);
                weight.f_uniform_(-bound, bound)?
            }
            Self::Normal(deviation) => weight.f_normal_(0.0, deviation)?,
            Self::Truncated(deviation) => {
                /// erf(sqrt(2)): the part of a normal distribution within two standard deviations.
                const WITHIN_TWO: f64 = 0.954_499_736_103_641_6;
                // Uniform in the distribution function, mapped through its inverse: no value is drawn twice.
                let mut even = weight.f_uniform_(-WITHIN_TWO, WITHIN_TWO)?;
                even.f_erfinv_()?.f_mul_scalar_(deviation * std::f64::consts::SQRT_2)?
            }
        })
    }

    /// Returns a float32 bias of `length` values for a weight of this shape.
    pub(super) fn bias(self, length: i64, weight: &[i64]) -> Result<Tensor, ModelError> {
        Ok(match self {
            Self::FanIn => {
                let bound = fan_in_bound(weight);
                Tensor::f_empty([length], CPU_FLOAT)?.f_uniform_(-bound, bound)?
            }
            Self::FanOut | Self::Normal(_) | Self::Truncated(_) => Tensor::f_zeros([length], CPU_FLOAT)?,
        })
    }
}

fn kernel(shape: &[i64]) -> f64 {
    shape[2..].iter().product::<i64>() as f64
}

fn fan_in_bound(shape: &[i64]) -> f64 {
    1.0 / (shape[1] as f64 * kernel(shape)).sqrt()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn spread(init: Init) -> (f64, f64) {
        let weight = init.weight(&[64, 32, 3, 3]).unwrap();
        (weight.std(true).double_value(&[]), weight.abs().max().double_value(&[]))
    }

    #[test]
    fn every_distribution_has_its_spread() {
        let near = |got: f64, wanted: f64| assert!((got / wanted - 1.0).abs() < 0.03, "{got} {wanted}");
        near(spread(Init::FanOut).0, (2.0f64 / (64.0 * 9.0)).sqrt());
        let bound = 1.0 / (32.0f64 * 9.0).sqrt();
        near(spread(Init::FanIn).0, bound / 3.0f64.sqrt());
        assert!(spread(Init::FanIn).1 <= bound);
        near(spread(Init::Normal(0.02)).0, 0.02);
        // Truncating a normal distribution at two deviations multiplies its deviation by 0.8796.
        let (deviation, largest) = spread(Init::Truncated(0.02));
        near(deviation, 0.02 * 0.8796);
        assert!(largest <= 0.04 + 1e-7 && largest > 0.039, "{largest}");
    }

    #[test]
    fn without_random_init_nothing_is_drawn() {
        let state = || dtrain_torch_shim::rng::state(Device::Cpu).unwrap();
        // Other tests use this generator: one unchanged state is enough, as a draw always changes it.
        let keeps_state = |draw: &dyn Fn()| {
            (0..200).any(|_| {
                let before = state();
                draw();
                state().equal(&before)
            })
        };
        let draw = |init: Init| drop(init.weight(&[3, 2]).unwrap());
        for init in [Init::FanOut, Init::FanIn, Init::Normal(1.0), Init::Truncated(1.0)] {
            assert!(keeps_state(&|| without_random_init(|| draw(init))));
            assert!(!keeps_state(&|| draw(init)), "it ends with the closure");
        }
    }

    #[test]
    fn a_bias_is_zero_or_as_in_pytorch() {
        let bound = 1.0 / 50.0f64.sqrt();
        let bias = Init::FanIn.bias(400, &[400, 50]).unwrap();
        let largest = bias.abs().max().double_value(&[]);
        assert!(largest <= bound && largest > 0.9 * bound, "{largest}");
        for init in [Init::FanOut, Init::Normal(1.0), Init::Truncated(1.0)] {
            let bias = init.bias(7, &[7, 3]).unwrap();
            assert_eq!((bias.size(), bias.abs().max().double_value(&[])), (vec![7], 0.0));
        }
    }
}
