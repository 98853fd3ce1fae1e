//! The outputs of a network that have a loss.

use tch::{Kind, TchError, Tensor};

/// The outputs of a network that have a loss.
pub struct Outputs {
    /// The output whose values are the figures' too.
    pub main: Tensor,
    /// Further outputs and the weights of their losses.
    pub auxiliary: Vec<(Tensor, f64)>,
}

impl Outputs {
    /// Returns a main output without others.
    pub fn only(main: Tensor) -> Self {
        Self { main, auxiliary: Vec::new() }
    }

    /// Changes every output alike.
    pub fn map(&self, change: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Self, TchError> {
        let auxiliary = self.auxiliary.iter().map(|(output, weight)| Ok((change(output)?, *weight)));
        Ok(Self { main: change(&self.main)?, auxiliary: auxiliary.collect::<Result<_, TchError>>()? })
    }

    /// Returns the loss of the main output plus the weighted losses of the others.
    pub fn loss(&self, loss: impl Fn(&Tensor) -> Result<Tensor, TchError>) -> Result<Tensor, TchError> {
        let mut sum = loss(&self.main)?;
        for (output, weight) in &self.auxiliary {
            sum = sum.f_add(&loss(output)?.f_mul_scalar(*weight)?)?;
        }
        Ok(sum)
    }
}

/// Returns N x C x height x width outputs, enlarged bilinearly to `size` (height, width) if they are smaller.
pub fn enlarged(output: &Tensor, size: (i64, i64)) -> Result<Tensor, TchError> {
    match output.size().as_slice() {
        [_, _, height, width] if (*height, *width) != size => {
            output.f_to_kind(Kind::Float)?.f_upsample_bilinear2d([size.0, size.1], false, None, None)
        }
        _ => Ok(output.shallow_clone()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn smaller_outputs_are_enlarged() {
        let options = (Kind::BFloat16, tch::Device::Cpu);
        let small = Tensor::ones([2, 3, 4, 5], options);
        let large = enlarged(&small, (8, 10)).unwrap();
        assert_eq!((large.size(), large.kind()), (vec![2, 3, 8, 10], Kind::Float));
        assert_eq!(enlarged(&small, (4, 5)).unwrap().kind(), Kind::BFloat16, "of the same size: as they are");
    }
}
