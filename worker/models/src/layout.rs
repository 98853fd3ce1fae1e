//! Checks of input images, and the channels-last memory layout: an N x C x H x W tensor whose channels are
//! adjacent in memory. The shape is unchanged; the strides are those of N x H x W x C. Half-precision
//! convolutions are faster with it, on processors and GPUs.

use tch::Tensor;

use super::error::ModelError;

/// Returns the strides of a channels-last tensor of this shape.
fn strides([_, channels, height, width]: [i64; 4]) -> [i64; 4] {
    [height * width * channels, 1, width * channels, channels]
}

/// Returns whether a tensor of four dimensions is channels-last. The stride of a dimension of length 1 does
/// not matter, so some tensors have both layouts.
pub fn is_channels_last(x: &Tensor) -> bool {
    let Ok((n, c, h, w)) = x.size4() else {
        return false;
    };
    let shape = [n, c, h, w];
    let wanted = strides(shape);
    x.stride().iter().zip(wanted).zip(shape).all(|((stride, wanted), size)| size == 1 || *stride == wanted)
}

/// Copies to channels-last (the strides of N x H x W x C), also for dimensions of length 1. Differentiable.
pub fn channels_last(x: &Tensor) -> Result<Tensor, ModelError> {
    let (n, c, h, w) = x.size4()?;
    let shape = [n, c, h, w];
    // tch has no memory formats, and `contiguous` does not change a tensor whose strides differ only in
    // dimensions of length 1 (a 1 x 1 kernel). libtorch would treat such a tensor as contiguous.
    let mut y = Tensor::f_empty_strided(shape, strides(shape), (x.f_kind()?, x.device()))?;
    y.f_copy_(x)?;
    Ok(y)
}

/// Converts images to the layout of the weights. With one channel both layouts are the same.
pub(super) fn input_layout(images: &Tensor, last: bool) -> Result<Tensor, ModelError> {
    if last && !is_channels_last(images) { channels_last(images) } else { Ok(images.shallow_clone()) }
}

/// Returns the height and width of images of N x `channels` x H x W. If `synced`, N may be 0.
pub(super) fn input_size(images: &Tensor, channels: i64, synced: bool) -> Result<(i64, i64), ModelError> {
    match images.size()[..] {
        [n, c, h, w] if n >= i64::from(!synced) && c == channels && h > 0 && w > 0 => Ok((h, w)),
        _ => {
            let expected = format!("images of shape N x {channels} x H x W with N > 0");
            Err(ModelError::Input(expected, images.size()))
        }
    }
}
