//! A decoded file in the cache.

use dtrain_shared_memory::Block;

use super::super::decode::Extent;
use super::super::inspector::Decoded;
use super::super::pixel_target::PixelTarget;
use super::super::raster::{Labels, Raster, Values};
use super::Stored;

/// A decoded file.
#[derive(Debug)]
pub(in super::super) enum Part {
    /// An image, and what was decoded of its file.
    Image(Raster, Decoded),
    Target(PixelTarget),
}

impl Default for Part {
    fn default() -> Self {
        Self::Target(PixelTarget::default())
    }
}

impl Part {
    /// Returns the memory held, in bytes.
    pub(in super::super) fn held_bytes(&self) -> usize {
        match self {
            Self::Image(image, _) => image.values.held_bytes(),
            Self::Target(target) => target.held_bytes(),
        }
    }

    /// Returns the memory of an image, with old content.
    fn image(&mut self) -> &mut Raster {
        if let Self::Target(_) = self {
            let found = Decoded { size: (0, 0), extent: Extent::WHOLE, is_scalable: false };
            *self = Self::Image(Raster::default(), found);
        }
        match self {
            Self::Image(image, _) => image,
            Self::Target(_) => unreachable!("just replaced"),
        }
    }

    /// Returns the memory of a target, with old content.
    fn target(&mut self) -> &mut PixelTarget {
        if let Self::Image(..) = self {
            *self = Self::default();
        }
        match self {
            Self::Target(target) => target,
            Self::Image(..) => unreachable!("just replaced"),
        }
    }
}

/// The kinds of values in a block.
const BYTES: u32 = 0;
const FLOATS: u32 = 1;
const CLASSES: u32 = 2;
const NUMBERS: u32 = 3;

/// A block begins with its kind, width, height, channels, the width and height of the file, its scale, and whether it has several.
type Head = [u32; 8];

impl Stored for Part {
    const HEAD_BYTES: usize = size_of::<Head>();

    fn store(&self, put: &mut dyn FnMut(&[&[u8]])) {
        let (head, values): (Head, &[u8]) = match self {
            Self::Image(image, Decoded { size, extent, is_scalable }) => {
                let (kind, values) = match &image.values {
                    Values::U8(values) => (BYTES, &values[..]),
                    Values::F32(values) => (FLOATS, bytemuck::cast_slice(values)),
                };
                let channels = image.channels as u32;
                let scale = [extent.denominator, u32::from(*is_scalable)];
                let [denominator, is_scalable] = scale;
                let head =
                    [kind, image.width, image.height, channels, size.0, size.1, denominator, is_scalable];
                (head, values)
            }
            Self::Target(PixelTarget::Classes(labels)) => {
                ([CLASSES, labels.width, labels.height, 0, 0, 0, 0, 0], bytemuck::cast_slice(&labels.values))
            }
            Self::Target(PixelTarget::Numbers(labels)) => {
                ([NUMBERS, labels.width, labels.height, 0, 0, 0, 0, 0], bytemuck::cast_slice(&labels.values))
            }
        };
        put(&[bytemuck::cast_slice(&head), values]);
    }

    fn load(&mut self, block: &Block<'_>) -> bool {
        let mut head: Head = [0; 8];
        if !block.copy(0, bytemuck::cast_slice_mut(&mut head)) {
            return false;
        }
        let [kind, width, height, channels, file_width, file_height, denominator, is_scalable] = head;
        let bytes = block.bytes() - Self::HEAD_BYTES;
        match kind {
            BYTES | FLOATS => {
                let image = self.image();
                (image.width, image.height, image.channels) = (width, height, channels as usize);
                let is_read = match kind {
                    BYTES => fill(image.values.u8(), bytes, block),
                    _ => fill(image.values.f32(), bytes, block),
                };
                if let Self::Image(_, found) = self {
                    let extent = Extent { denominator, part: None };
                    *found =
                        Decoded { size: (file_width, file_height), extent, is_scalable: is_scalable > 0 };
                }
                is_read
            }
            CLASSES => fill_labels(self.target().classes(), (width, height), bytes, block),
            NUMBERS => fill_labels(self.target().numbers(), (width, height), bytes, block),
            _ => false,
        }
    }
}

fn fill_labels<T: bytemuck::Pod>(
    labels: &mut Labels<T>,
    size: (u32, u32),
    bytes: usize,
    block: &Block<'_>,
) -> bool {
    (labels.width, labels.height) = size;
    fill(&mut labels.values, bytes, block)
}

/// Copies the values after the head.
fn fill<T: bytemuck::Pod>(values: &mut Vec<T>, bytes: usize, block: &Block<'_>) -> bool {
    values.resize(bytes / size_of::<T>(), T::zeroed());
    block.copy(Part::HEAD_BYTES, bytemuck::cast_slice_mut(values))
}
