//! What the values of a mask mean, and that it belongs to its image.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::raster::Labels;
use super::sample_error::SampleError;

/// How the values of a mask file become classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MaskKind {
    /// The value is the class; of a palette image, the place in the palette.
    #[default]
    Index,
    /// Every value but 0 is class 1.
    Binary,
}

/// How masks are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskRule {
    /// What values mean.
    pub kind: MaskKind,
    /// Classes go from 0 to one less than this.
    pub classes: usize,
    /// The value that means no class: in files of [`MaskKind::Index`], and of pixels that a random shift brings in from outside
    /// of the image. The loss leaves it out.
    pub ignore: i64,
}

impl MaskRule {
    /// Turns values into classes.
    pub(super) fn apply(self, labels: &mut Labels) -> Result<(), SampleError> {
        match self.kind {
            MaskKind::Binary => {
                labels
                    .values
                    .iter_mut()
                    .for_each(|value| *value = u16::from(*value != 0));
                Ok(())
            }
            MaskKind::Index => {
                let is_class =
                    |value: u16| usize::from(value) < self.classes || i64::from(value) == self.ignore;
                match labels.values.iter().position(|&value| !is_class(value)) {
                    None => Ok(()),
                    Some(at) => Err(SampleError::MaskValue {
                        value: labels.values[at],
                        column: at % labels.width.max(1) as usize,
                        row: at / labels.width.max(1) as usize,
                        classes: self.classes,
                        ignore: self.ignore,
                    }),
                }
            }
        }
    }
}

/// A mask must have a class for each pixel of its image.
pub(super) fn same_size(
    path: &Path,
    mask_size: (u32, u32),
    image_size: (u32, u32),
) -> Result<(), SampleError> {
    if mask_size == image_size {
        return Ok(());
    }
    Err(SampleError::MaskSize {
        mask: path.display().to_string(),
        mask_size,
        image_size,
    })
}
