//! The channels-last memory layout: an N x C x H x W tensor whose channels lie side by side. Its shape is as ever, its
//! strides are those of N x H x W x C. Convolutions are faster on it where the processor or the GPU works in half precision.

use tch::Tensor;

use super::super::error::ModelError;

/// The strides of a channels-last tensor of this shape.
fn strides([_, channels, height, width]: [i64; 4]) -> [i64; 4] {
    [height * width * channels, 1, width * channels, channels]
}

/// Whether a tensor of four dimensions lies channels-last. The stride of a dimension of length 1 does not matter, so some
/// tensors lie both ways.
pub fn is_channels_last(x: &Tensor) -> bool {
    let Ok((n, c, h, w)) = x.size4() else {
        return false;
    };
    let shape = [n, c, h, w];
    let wanted = strides(shape);
    x.stride()
        .iter()
        .zip(wanted)
        .zip(shape)
        .all(|((stride, wanted), size)| size == 1 || *stride == wanted)
}

/// The same values channels-last: N x C x H x W with the strides of N x H x W x C, also where a dimension of length 1
/// leaves the choice. Differentiable.
///
/// # Errors
/// Where `x` has not four dimensions, or memory runs out.
pub fn channels_last(x: &Tensor) -> Result<Tensor, ModelError> {
    let (n, c, h, w) = x.size4()?;
    let shape = [n, c, h, w];
    // tch knows no memory formats, and `contiguous` leaves a tensor alone whose strides differ in dimensions of length 1
    // only (a 1 x 1 kernel), by which libtorch would then take it for the plain layout.
    let mut y = Tensor::f_empty_strided(shape, strides(shape), (x.f_kind()?, x.device()))?;
    y.f_copy_(x)?;
    Ok(y)
}

/// The images of a network in the layout of its weights. One channel lies the same way in both.
pub(in super::super) fn input_layout(images: &Tensor, last: bool) -> Result<Tensor, ModelError> {
    if last && !is_channels_last(images) {
        channels_last(images)
    } else {
        Ok(images.shallow_clone())
    }
}
