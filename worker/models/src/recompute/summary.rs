//! A summary of a segment's result, for comparison with the second result.

use dtrain_torch_shim::{cuda, recompute::fingerprint};
use tch::{Device, Kind, TchError, Tensor};

use super::super::error::ModelError;

/// The precision of a comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Precision {
    /// Values are not compared.
    Shapes,
    /// Tensors without values take the memory of a comparison.
    Rehearsed,
    /// Values may differ as those of two algorithms of a library.
    Near,
    /// All bits must be equal.
    Bits,
}

impl Precision {
    /// Returns the precision for `device`. cuDNN's benchmark chooses algorithms per thread: forward and
    /// backward, on two threads, may compute a convolution by two algorithms, which round differently.
    pub(super) fn on(device: Device) -> Self {
        match device.is_cuda() && cuda::cudnn_benchmark().unwrap_or(true) {
            true => Self::Near,
            false => Self::Bits,
        }
    }
}

/// A summary of one tensor.
#[derive(Debug)]
pub(super) struct Summary {
    shape: Vec<i64>,
    kind: Kind,
    values: Values,
}

#[derive(Debug, PartialEq)]
enum Values {
    Unknown,
    /// Strides and a fingerprint of the bits.
    Bits(Vec<i64>, u64),
    /// The norm, and the sum of the elements, each weighted by a number that depends on its position.
    Near {
        norm: f64,
        sum: f64,
    },
}

/// The largest difference of two sums, relative to the norm. TF32 and bfloat16 round to 10 and 8 bits, and
/// rounding errors hardly add up. Other values, as after another dropout, differ by about the norm.
const NEAR: f64 = 0.02;

impl Summary {
    pub(super) fn of(output: &Tensor, precision: Precision) -> Result<Self, ModelError> {
        let values = match precision {
            Precision::Shapes => Values::Unknown,
            Precision::Rehearsed => {
                let _ = tch::no_grad(|| piece_sums(&output.f_detach()?.f_reshape([-1])?, 0))?;
                Values::Unknown
            }
            Precision::Bits => Values::Bits(output.stride(), fingerprint(output)?),
            Precision::Near => tch::no_grad(|| near_values(output))?,
        };
        Ok(Self { shape: output.size(), kind: output.f_kind()?, values })
    }

    /// Returns a description of the difference from the first result.
    pub(super) fn difference_from(&self, first: &Self) -> Option<String> {
        if self.shape != first.shape {
            Some(format!("a tensor of shape {:?} instead of {:?}", self.shape, first.shape))
        } else if self.kind != first.kind {
            Some(format!("a tensor of {:?} instead of {:?}", self.kind, first.kind))
        } else {
            let other = || "other values than the forward pass".to_owned();
            (!self.values.agree(&first.values)).then(other)
        }
    }
}

impl Values {
    fn agree(&self, first: &Self) -> bool {
        let (&Self::Near { norm, sum }, &Self::Near { norm: other, sum: same }) = (self, first) else {
            return self == first;
        };
        let near = |a: f64, b: f64| (a - b).abs() <= NEAR * other;
        // Two non-finite results also agree.
        (near(norm, other) && near(sum, same)) || !(other.is_finite() || norm.is_finite())
    }
}

/// Elements that are summed at once: copies of them take 4 MiB.
const PIECE: i64 = 1 << 17;

/// Waits for the device once.
fn near_values(output: &Tensor) -> Result<Values, TchError> {
    let flat = output.f_detach()?.f_reshape([-1])?;
    let mut sums = Tensor::f_zeros([2], (Kind::Double, output.device()))?;
    for begin in (0..flat.numel() as i64).step_by(PIECE as usize) {
        let _ = sums.f_add_(&piece_sums(&flat, begin)?)?;
    }
    let sums = Vec::<f64>::try_from(sums.f_to_device(Device::Cpu)?)?;
    Ok(Values::Near { norm: sums[0].sqrt(), sum: sums[1] })
}

/// Returns the sum of squares and the weighted sum of the piece from `begin` on. Not by products of cuBLAS, whose workspace
/// would stay.
fn piece_sums(flat: &Tensor, begin: i64) -> Result<Tensor, TchError> {
    let length = PIECE.min(flat.numel() as i64 - begin);
    let piece = flat.f_narrow(0, begin, length)?.f_to_kind(Kind::Double)?;
    // The cosines of integers, in radians, do not repeat.
    let weights = Tensor::f_arange_start(begin, begin + length, (Kind::Double, flat.device()))?.f_cos_()?;
    // One kernel for both sums; fake GPUs compute only kernels with one sum.
    let mut factors = Tensor::f_stack(&[&piece, &weights], 0)?;
    factors.f_mul_(&piece)?.f_sum_dim_intlist([1i64].as_slice(), false, Kind::Double)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn differs(first: &Tensor, again: &Tensor, precision: Precision) -> bool {
        let summary = |tensor: &Tensor| Summary::of(tensor, precision).unwrap();
        summary(again).difference_from(&summary(first)).is_some()
    }

    #[test]
    fn rounding_differences_are_near_and_other_values_are_not() {
        for shape in [[3, 5, 7, 11], [2, 64, 56, 56], [1, 1, 1, 4]] {
            // Not from torch's generator, which other tests of this process use.
            let draw = |salt: f64| {
                let numbers = Tensor::arange(shape.iter().product::<i64>(), (Kind::Double, Device::Cpu));
                let wild = (numbers * 12.9898 + salt).sin() * 43758.5453;
                let uniform: Tensor = &wild - wild.floor();
                ((uniform - 0.5) * 12f64.sqrt()).to_kind(Kind::Float).view(shape)
            };
            let x = draw(0.0);
            assert!(!differs(&x, &x, Precision::Bits));
            // A rounding error as of TF32 and bfloat16.
            let noise = draw(1.0) * &x * 2f64.powi(-9);
            let rounded = &x + noise;
            assert!(differs(&x, &rounded, Precision::Bits));
            assert!(!differs(&x, &rounded, Precision::Near), "{shape:?}");
            let half = x.to_kind(Kind::BFloat16).to_kind(Kind::Float);
            assert!(!differs(&x, &half, Precision::Near), "{shape:?}");
            for other in [
                draw(2.0),
                &x * 1.1,
                &x + 0.5,
                &x * draw(3.0).gt(-1.4) / 0.9,
                x.flip([3]),
                x.f_full_like(f64::NAN).unwrap(),
            ] {
                assert!(differs(&x, &other, Precision::Near), "{shape:?}");
            }
            assert!(!differs(&x, &draw(4.0), Precision::Shapes));
        }
    }

    #[test]
    fn bits_are_compared_if_algorithms_are_fixed() {
        assert_eq!(Precision::on(Device::Cpu), Precision::Bits);
        let before = cuda::cudnn_benchmark().unwrap();
        tch::Cuda::cudnn_set_benchmark(true);
        assert_eq!(Precision::on(Device::Cuda(0)), Precision::Near);
        assert_eq!(Precision::on(Device::Cpu), Precision::Bits);
        tch::Cuda::cudnn_set_benchmark(false);
        assert_eq!(Precision::on(Device::Cuda(0)), Precision::Bits);
        tch::Cuda::cudnn_set_benchmark(before);
    }
}
