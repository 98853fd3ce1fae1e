//! The windows of a large image, put together: the mean of their values, in which pixels far from a window's border count most.

use tch::{Device, Kind, TchError, Tensor};

/// The values of an image that windows cover.
pub(super) struct Stitch {
    /// The weighted sum, ... x height x width; of values without pixels, as they are.
    sum: Option<Tensor>,
    weight: Tensor,
    /// Height and width in pixels.
    size: (i64, i64),
    has_pixels: bool,
}

/// Returns the weights of a side's pixels, which fall towards the borders.
fn ramp(length: i64) -> Result<Tensor, TchError> {
    let up = Tensor::f_arange(length, (Kind::Float, Device::Cpu))?.f_add_scalar(1.0)?;
    up.f_minimum(&up.f_flip([0])?)
}

impl Stitch {
    pub(super) fn new((width, height): (u32, u32), has_pixels: bool) -> Result<Self, TchError> {
        let size = (i64::from(height), i64::from(width));
        let shape = if has_pixels { [size.0, size.1] } else { [1, 1] };
        Ok(Self { sum: None, weight: Tensor::f_zeros(shape, (Kind::Float, Device::Cpu))?, size, has_pixels })
    }

    /// Adds the values of a window at this corner, on the CPU: ... x height x width.
    pub(super) fn add(&mut self, values: &Tensor, (left, top): (u32, u32)) -> Result<(), TchError> {
        if !self.has_pixels {
            let sum = self.sum.take().map_or(Ok(values.shallow_clone()), |sum| sum.f_add(values))?;
            self.sum = Some(sum);
            self.weight = self.weight.f_add_scalar(1.0)?;
            return Ok(());
        }
        let shape = values.size();
        let [.., height, width] = shape[..] else { return Ok(()) };
        let (left, top) = (i64::from(left), i64::from(top));
        // A window larger than the image has pixels outside of it.
        let (rows, columns) = (height.min(self.size.0 - top), width.min(self.size.1 - left));
        let weight = ramp(height)?.f_unsqueeze(1)?.f_mul(&ramp(width)?.f_unsqueeze(0)?)?;
        let inside = |of: &Tensor| of.f_narrow(-2, 0, rows)?.f_narrow(-1, 0, columns);
        let (weight, values) = (inside(&weight)?, inside(values)?);
        let sum = match self.sum.take() {
            Some(sum) => sum,
            None => {
                let mut whole = shape.clone();
                let pixels = whole.len() - 2;
                (whole[pixels], whole[pixels + 1]) = self.size;
                Tensor::f_zeros(&whole, (Kind::Float, Device::Cpu))?
            }
        };
        let place = |of: &Tensor| of.f_narrow(-2, top, rows)?.f_narrow(-1, left, columns);
        let _ = place(&sum)?.f_add_(&values.f_mul(&weight)?)?;
        let _ = place(&self.weight)?.f_add_(&weight)?;
        self.sum = Some(sum);
        Ok(())
    }

    /// Returns the mean of the windows; None without any.
    pub(super) fn mean(self) -> Result<Option<Tensor>, TchError> {
        let weight = if self.has_pixels { self.weight } else { self.weight.f_reshape([] as [i64; 0])? };
        self.sum.map(|sum| sum.f_div(&weight)).transpose()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn windows_of_one_picture_are_that_picture() {
        let picture = Tensor::arange(2 * 5 * 7, (Kind::Float, Device::Cpu)).view([2, 5, 7]);
        let mut stitch = Stitch::new((7, 5), true).unwrap();
        for (left, top) in [(0, 0), (3, 0), (0, 1), (3, 1)] {
            let window = picture.narrow(1, i64::from(top), 4).narrow(2, i64::from(left), 4);
            stitch.add(&window, (left, top)).unwrap();
        }
        let mean = stitch.mean().unwrap().unwrap();
        assert!((mean - picture).abs().max().double_value(&[]) < 1e-4);
    }

    #[test]
    fn a_window_counts_most_in_its_middle() {
        let mut stitch = Stitch::new((6, 1), true).unwrap();
        stitch.add(&Tensor::zeros([1, 4], (Kind::Float, Device::Cpu)), (0, 0)).unwrap();
        stitch.add(&Tensor::ones([1, 4], (Kind::Float, Device::Cpu)), (2, 0)).unwrap();
        let mean = Vec::<f32>::try_from(stitch.mean().unwrap().unwrap().view(-1)).unwrap();
        assert_eq!([mean[0], mean[1], mean[4], mean[5]], [0.0, 0.0, 1.0, 1.0]);
        assert!(mean[2] < 0.5 && mean[3] > 0.5, "{mean:?}");
    }

    #[test]
    fn a_window_larger_than_the_image_keeps_the_image() {
        let mut stitch = Stitch::new((2, 1), true).unwrap();
        let window = Tensor::from_slice(&[1f32, 2.0, 9.0, 9.0]).view([2, 2]).transpose(0, 1);
        stitch.add(&window, (0, 0)).unwrap();
        assert_eq!(Vec::<f32>::try_from(stitch.mean().unwrap().unwrap().view(-1)).unwrap(), [1.0, 9.0]);
    }

    #[test]
    fn values_without_pixels_are_averaged() {
        let mut stitch = Stitch::new((9, 9), false).unwrap();
        for value in [[1f32, 4.0], [3.0, 0.0]] {
            stitch.add(&Tensor::from_slice(&value), (0, 0)).unwrap();
        }
        assert_eq!(Vec::<f32>::try_from(stitch.mean().unwrap().unwrap()).unwrap(), [2.0, 2.0]);
    }
}
