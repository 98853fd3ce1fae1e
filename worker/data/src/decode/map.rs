//! Maps: grey images whose values are numbers, such as heights or depths.

use dtrain_recipe::NoData;
use image::{ColorType, ImageDecoder, ImageFormat};

use super::super::error::{Result, SampleError};
use super::super::raster::Raster;
use super::array::{Array, is_array};
use super::bands::Bands;
use super::format::{format_of, open};
use super::limits::catch_panic;
use super::{Encoding, Extent, decode, finite, header, stated};

/// The name of a map's array in an archive with several.
const MAP: &str = "map";

/// Returns the size that a map's header states, (width, height).
pub fn map_header(bytes: &[u8]) -> Result<(u32, u32)> {
    if is_array(bytes) {
        return catch_panic(|| Array::open(bytes, 1, MAP).map(|array| array.size));
    }
    white(bytes)?;
    header(bytes, 1)
}

/// Decodes a map, and returns how the file stores it. Values without data by `nodata` need not be finite.
pub fn map(bytes: &[u8], nodata: Option<NoData>, raw: &mut Vec<u8>, out: &mut Raster) -> Result<Encoding> {
    let encoding = if is_array(bytes) {
        let array = catch_panic(|| Array::open(bytes, 1, MAP))?;
        let white = array.white();
        catch_panic(|| array.decode(out))?;
        Encoding { white, stated: None }
    } else {
        let encoding = Encoding { white: white(bytes)?, stated: nodata.and_then(|_| stated(bytes)) };
        decode(bytes, 1, Extent::WHOLE, raw, out)?;
        encoding
    };
    finite(out, Extent::WHOLE, encoding.no_data(nodata))?;
    Ok(encoding)
}

/// Returns the largest value of a grey pixel of 8 or 16 bits, or 1 for floating-point values.
fn white(bytes: &[u8]) -> Result<f32> {
    catch_panic(|| {
        if format_of(bytes)? == Some(ImageFormat::Tiff) {
            return Ok(Bands::open_one(bytes, SampleError::ColorMap)?.white());
        }
        match open(bytes)?.color_type() {
            ColorType::L8 => Ok(255.0),
            ColorType::L16 => Ok(65535.0),
            color => Err(SampleError::ColorMap(usize::from(color.channel_count()))),
        }
    })
}
