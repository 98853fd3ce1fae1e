//! Products with weights that are never trained and have fewer bytes than float32. Programs call them by name: `dtrain::frozen_linear`,
//! `dtrain::frozen_convolution` and `dtrain::frozen_embedding`.

use tch::{Kind, TchError, Tensor};

use crate::error::{ShimError, create_tensor};
use crate::ffi;

/// A weight, rows x ...: bfloat16, float16, or int8 with a float32 factor for each row.
#[derive(Debug, Clone, Copy)]
pub struct Frozen<'a> {
    /// The values.
    pub weight: &'a Tensor,
    /// The factors of the rows; None without any.
    pub scale: Option<&'a Tensor>,
}

impl Frozen<'_> {
    /// Computes ... x rows from `x`, ... x columns, in its dtype, or in autocast's if that is on.
    pub fn linear(self, x: &Tensor, bias: Option<&Tensor>) -> Result<Tensor, ShimError> {
        let (scale, bias) = (self.scale.map(Into::into), bias.map(Into::into));
        create_tensor("compute a product", |out, error| {
            ffi::dt_frozen_linear(x.into(), self.weight.into(), scale, bias, out, error)
        })
    }

    /// Computes a two-dimensional convolution with one stride and one padding for both dimensions, as [`Frozen::linear`].
    pub fn conv2d(
        self,
        x: &Tensor,
        bias: Option<&Tensor>,
        stride: i64,
        padding: i64,
    ) -> Result<Tensor, ShimError> {
        let (scale, bias) = (self.scale.map(Into::into), bias.map(Into::into));
        create_tensor("compute a convolution", |out, error| {
            ffi::dt_frozen_conv2d(x.into(), self.weight.into(), scale, bias, stride, padding, out, error)
        })
    }
}

/// Returns int8 values and the float32 factors of the rows for a weight, rows x ...: the largest absolute value of a row becomes 127.
///
/// # Errors
/// Memory that runs out, or a tensor without dimensions.
pub fn quantise(weight: &Tensor) -> Result<(Tensor, Tensor), TchError> {
    let rows = weight.size().first().copied().unwrap_or(0);
    let flat = weight.f_to_kind(Kind::Float)?.f_contiguous()?.f_view([rows, -1])?;
    let largest = flat.f_abs()?.f_amax([1].as_slice(), false)?;
    // A row of zeros has any factor.
    let scale = largest.f_div_scalar(127.0)?.f_where_self(&largest.f_gt(0.0)?, &largest.f_ones_like()?)?;
    let values = flat.f_div(&scale.f_unsqueeze(1)?)?.f_round_()?.f_to_kind(Kind::Int8)?;
    Ok((values.f_view(weight.size().as_slice())?, scale))
}

/// Returns the float32 values that int8 values and factors stand for.
///
/// # Errors
/// Memory that runs out, or factors of another number of rows.
pub fn widen(values: &Tensor, scale: Option<&Tensor>) -> Result<Tensor, TchError> {
    let wide = values.f_to_kind(Kind::Float)?;
    let Some(scale) = scale else { return Ok(wide) };
    let mut shape = vec![1; values.dim()];
    shape[0] = -1;
    wide.f_mul(&scale.f_view(shape.as_slice())?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tch::Device;

    const CPU: (Kind, Device) = (Kind::Float, Device::Cpu);

    fn largest_difference(one: &Tensor, other: &Tensor) -> f64 {
        (one.to_kind(Kind::Double) - other.to_kind(Kind::Double)).abs().max().double_value(&[])
    }

    #[test]
    fn int8_values_are_within_half_a_step_of_their_rows() {
        let weight = Tensor::randn([5, 7, 3, 3], CPU) * Tensor::arange(5, CPU).view([5, 1, 1, 1]);
        let (values, scale) = quantise(&weight).unwrap();
        assert_eq!((values.kind(), values.size(), scale.size()), (Kind::Int8, weight.size(), vec![5]));
        let wide = widen(&values, Some(&scale)).unwrap();
        let steps = (&wide - &weight).abs() / scale.view([5, 1, 1, 1]);
        assert!(steps.max().double_value(&[]) <= 0.5 + 1e-5);
        assert_eq!(wide.get(0).abs().max().double_value(&[]), 0.0, "a row of zeros");
    }

    /// Values, gradients of the input and of a bias equal those of libtorch with the widened weight.
    #[test]
    fn products_equal_those_of_the_widened_weight() {
        for kind in [Kind::Int8, Kind::BFloat16, Kind::Half] {
            for image in [false, true] {
                let shape: &[i64] = if image { &[4, 3, 3, 3] } else { &[4, 6] };
                let input: &[i64] = if image { &[2, 3, 8, 8] } else { &[2, 5, 6] };
                let weight = Tensor::randn(shape, CPU);
                let (weight, scale) = match kind {
                    Kind::Int8 => quantise(&weight).map(|(values, scale)| (values, Some(scale))).unwrap(),
                    _ => (weight.to_kind(kind), None),
                };
                let wide = widen(&weight, scale.as_ref()).unwrap();
                for trains_bias in [false, true] {
                    let bias = Tensor::randn([4], CPU).set_requires_grad(trains_bias);
                    let run = |is_frozen: bool| {
                        let x = Tensor::arange(input.iter().product::<i64>(), CPU).view(input).sin();
                        let x = x.set_requires_grad(true);
                        let frozen = Frozen { weight: &weight, scale: scale.as_ref() };
                        let y = match (is_frozen, image) {
                            (true, false) => frozen.linear(&x, Some(&bias)).unwrap(),
                            (true, true) => frozen.conv2d(&x, Some(&bias), 2, 1).unwrap(),
                            (false, false) => x.linear(&wide, Some(&bias)),
                            (false, true) => x.conv2d(&wide, Some(&bias), [2, 2], [1, 1], [1, 1], 1),
                        };
                        (&y * y.sin()).sum(Kind::Float).backward();
                        let of_bias = if trains_bias { bias.grad().copy() } else { Tensor::zeros([1], CPU) };
                        if trains_bias {
                            let _ = bias.grad().zero_();
                        }
                        [y.detach(), x.grad(), of_bias]
                    };
                    for (own, plain) in std::iter::zip(run(true), run(false)) {
                        assert!(largest_difference(&own, &plain) < 1e-4, "{kind:?} {image} {trains_bias}");
                    }
                }
            }
        }
    }

    /// Factors that float16 cannot hold are applied before the product's dtype.
    #[test]
    fn rows_of_tiny_values_count_in_half_precision() {
        let weight = Tensor::full([2, 8], 1e-4, CPU);
        let (values, scale) = quantise(&weight).unwrap();
        for kind in [Kind::Half, Kind::BFloat16] {
            let x = Tensor::ones([3, 8], CPU).to_kind(kind);
            let y = Frozen { weight: &values, scale: Some(&scale) }.linear(&x, None).unwrap();
            assert!(largest_difference(&(y.to_kind(Kind::Float) / 8e-4), &Tensor::ones([3, 2], CPU)) < 0.01);
        }
    }
}
