//! What a network takes of its images, and the channels-last memory layout: an N x C x H x W tensor whose channels lie side by side. Its shape is as ever, its
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
    x.stride().iter().zip(wanted).zip(shape).all(|((stride, wanted), size)| size == 1 || *stride == wanted)
}

/// The same values channels-last: N x C x H x W with the strides of N x H x W x C, also where a dimension of length 1
/// leaves the choice. Differentiable.
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
    if last && !is_channels_last(images) { channels_last(images) } else { Ok(images.shallow_clone()) }
}

/// The height and width of a network's images, N x `channels` x H x W. Their number may be 0 where batches are normalised together.
pub(in super::super) fn input_size(
    images: &Tensor,
    channels: i64,
    synced: bool,
) -> Result<(i64, i64), ModelError> {
    match images.size()[..] {
        [n, c, h, w] if n >= i64::from(!synced) && c == channels && h > 0 && w > 0 => Ok((h, w)),
        _ => {
            let expected = format!("images of shape N x {channels} x H x W with N > 0");
            Err(ModelError::Input(expected, images.size()))
        }
    }
}
