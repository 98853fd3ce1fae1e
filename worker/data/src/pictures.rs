//! The input images of predictions, apart from their preparation for a network: their sizes, and their colours.

use std::path::Path;

use dtrain_recipe::Orientation;

use super::error::{Result, SampleError};
use super::inspector::Inspector;
use super::needs::{Depth, Needs};
use super::raster::{Raster, Values};
use super::stored::Stored;

/// Reads images, with working memory for one at a time.
#[derive(Debug, Default)]
pub struct Pictures(Inspector);

impl Pictures {
    /// Returns width and height of an image in pixels, as it is turned; from its header alone.
    pub fn size(&mut self, path: &Path, needs: Needs) -> Result<(u32, u32)> {
        self.0.image(&Stored::from(path), needs, Depth::Header)
    }

    /// Returns an image as RGB, row by row with three bytes a pixel, and its size.
    pub fn colours(&mut self, path: &Path, mut needs: Needs) -> Result<(Vec<u8>, (u32, u32))> {
        needs.channels = 3;
        let size = self.0.image(&Stored::from(path), needs, Depth::Full)?;
        let Raster { values, .. } = std::mem::take(&mut self.0.image);
        let Values::U8(values) = values else {
            return Err(SampleError::Unsupported(
                "an image of floating-point numbers as a picture".to_owned(),
            ));
        };
        Ok((values, size))
    }

    /// Returns the needs of an image with as many channels, whatever its size.
    pub fn needs(channels: usize, orientation: Orientation) -> Needs {
        Needs { channels, resize: dtrain_recipe::Resize::Stretch, orientation, nodata: None, fill: None }
    }
}
