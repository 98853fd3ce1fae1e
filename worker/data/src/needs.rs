//! What a check asks of the images of a data set.

use dtrain_recipe::{NoData, Orientation, Resize};

/// Depth of the check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// The header: a known format and a size within the limit. Other damage is found when loading.
    Header,
    /// The whole image is decoded.
    Full,
}

/// Up to this many images are decoded in full, which takes seconds; more would take minutes.
const FULL_UP_TO: usize = 10_000;

impl Depth {
    /// Returns the depth for a split of `images`.
    pub fn for_len(images: usize) -> Self {
        if images <= FULL_UP_TO { Depth::Full } else { Depth::Header }
    }
}

/// Requirements for the images of a data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Needs {
    /// Channels of every image; 3 for RGB pictures.
    pub channels: usize,
    /// With [`Resize::None`], all images must have the same size.
    pub resize: Resize,
    /// Whether images are turned as their EXIF data states.
    pub orientation: Orientation,
    /// The value in the file without data, and the one in its place.
    pub nodata: Option<NoData>,
    pub fill: Option<f64>,
}
