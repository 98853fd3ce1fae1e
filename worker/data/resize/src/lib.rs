//! Resizes one plane of an image with antialiasing, as torchvision does.
//!
//! fast_image_resize generates its code in the calling crate, which takes half a minute to compile. Here that happens once, and not
//! again for the tests of the images' crate.

use std::fmt::Display;

pub use fast_image_resize::Resizer;
use fast_image_resize::images::{TypedCroppedImage, TypedImage, TypedImageRef};
use fast_image_resize::pixels::{F32, U8, U8x3};
use fast_image_resize::{FilterType, PixelTrait, ResizeAlg, ResizeOptions};

/// How pixels are interpolated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Filter {
    /// In straight lines.
    #[default]
    Bilinear,
    /// By cubic polynomials with the parameter -0.5, as Pillow and torchvision.
    Bicubic,
}

/// The pixels of a plane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pixel {
    /// Three bytes.
    Rgb,
    /// A byte.
    Grey,
    /// A number of four bytes.
    F32,
}

impl Pixel {
    /// Returns the bytes of a pixel.
    pub fn size(self) -> usize {
        match self {
            Self::Rgb => size_of::<U8x3>(),
            Self::Grey => size_of::<U8>(),
            Self::F32 => size_of::<F32>(),
        }
    }
}

/// The part of a plane that is resized, in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The left edge.
    pub left: f64,
    /// The top edge.
    pub top: f64,
    /// The width.
    pub width: f64,
    /// The height.
    pub height: f64,
    /// The crop of the plane before its part is resized. The part is inside of it. Pixels at the part's edges also take from
    /// their neighbours in the crop.
    pub cut: Rectangle,
}

/// A rectangle of whole pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rectangle {
    /// The left edge.
    pub left: u32,
    /// The top edge.
    pub top: u32,
    /// The width, at least 1.
    pub width: u32,
    /// The height, at least 1.
    pub height: u32,
}

/// Resizes a part of the plane `from` of this width and height to the plane `to` of the size `target`. The error is a reason.
pub fn resize(
    resizer: &mut Resizer,
    pixel: Pixel,
    (from, size): (&[u8], (u32, u32)),
    (to, target): (&mut [u8], (u32, u32)),
    (part, filter): (Part, Filter),
) -> Result<(), String> {
    // The function for pixels of any type has code for all 15 types of the crate, which took minutes to compile.
    let resize = match pixel {
        Pixel::Rgb => resize_typed::<U8x3>,
        Pixel::Grey => resize_typed::<U8>,
        Pixel::F32 => resize_typed::<F32>,
    };
    if filter == Filter::Bilinear {
        return resize(resizer, (from, size), (to, target), part, FilterType::Bilinear);
    }
    // Rows first, as Pillow: cubic polynomials leave the range of bytes, so what is cut off depends on the order.
    let cut = part.cut;
    let rows = Part { top: f64::from(cut.top), height: f64::from(cut.height), ..part };
    let between = (target.0, cut.height);
    let columns = Part {
        left: 0.0,
        width: f64::from(target.0),
        top: part.top - f64::from(cut.top),
        cut: Rectangle { left: 0, top: 0, width: between.0, height: between.1 },
        ..part
    };
    let mut memory = vec![0; between.0 as usize * between.1 as usize * pixel.size()];
    resize(resizer, (from, size), (&mut memory, between), rows, FilterType::CatmullRom)?;
    resize(resizer, (&memory, between), (to, target), columns, FilterType::CatmullRom)
}

/// Computes only the pixels in the part.
fn resize_typed<P: PixelTrait>(
    resizer: &mut Resizer,
    (from, (width, height)): (&[u8], (u32, u32)),
    (to, target): (&mut [u8], (u32, u32)),
    part: Part,
    filter: FilterType,
) -> Result<(), String> {
    let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(filter));
    let reason = |error: &dyn Display| error.to_string();
    let source = TypedImageRef::<P>::from_buffer(width, height, from).map_err(|error| reason(&error))?;
    let mut target = TypedImage::<P>::from_buffer(target.0, target.1, to).map_err(|error| reason(&error))?;
    // The whole image is a part too: another type of images is as much code again.
    let Rectangle { left, top, width, height } = part.cut;
    let options =
        options.crop(part.left - f64::from(left), part.top - f64::from(top), part.width, part.height);
    let cut =
        TypedCroppedImage::from_ref(&source, left, top, width, height).map_err(|error| reason(&error))?;
    resizer.resize_typed(&cut, &mut target, &options).map_err(|error| reason(&error))
}
