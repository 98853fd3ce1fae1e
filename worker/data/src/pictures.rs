//! The input images of predictions, apart from their preparation for a network: their sizes, and their colours.

use dtrain_recipe::Orientation;

use super::error::{Result, SampleError};
use super::inspector::Inspector;
use super::needs::{Depth, Needs};
use super::raster::{Raster, Values};
use super::samples::Samples;

/// Reads images, with working memory for one at a time.
#[derive(Debug, Default)]
pub struct Pictures(Inspector);

impl Pictures {
    /// Returns width and height of a sample's first image in pixels, as it is turned; from its header alone.
    pub fn size(&mut self, samples: &Samples, at: usize, needs: Needs) -> Result<(u32, u32)> {
        self.0.image(&samples.first_image(at), needs, Depth::Header)
    }

    /// Returns a sample's first image as RGB, row by row with three bytes a pixel, and its size.
    pub fn colours(
        &mut self,
        samples: &Samples,
        at: usize,
        mut needs: Needs,
    ) -> Result<(Vec<u8>, (u32, u32))> {
        needs.channels = 3;
        let size = self.0.image(&samples.first_image(at), needs, Depth::Full)?;
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
