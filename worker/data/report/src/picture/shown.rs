//! A sample of an evaluation: its images with targets and predictions beside each other, and its other targets in words.

use std::collections::BTreeSet;
use std::io::Cursor;

use dtrain_data::{Column, Field};
use image::{ImageError, ImageFormat, RgbImage};

use super::canvas::Canvas;
use super::sample::cells;
use super::tokens::is_of_text;
use super::words::{Names, split, words};

/// The longest side of a picture. Small ones keep their size.
const SIDES: (u32, u32) = (1, 512);
/// Images beside each other, such as those of an episode.
const MOST: usize = 8;
/// Pixels between images.
const GAP: u32 = 2;

/// A sample as people see it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DrawnSample {
    /// Its picture as a PNG file; None without images.
    pub png: Option<Vec<u8>>,
    /// Its targets that are no pictures.
    pub words: Vec<String>,
}

/// Draws a sample, which has a field of each name in `columns`. A prediction of pixels is one more field.
///
/// # Errors
/// The picture cannot be encoded.
pub fn draw_sample(fields: &[Field], columns: &[Column], names: &Names) -> Result<DrawnSample, ImageError> {
    let (mut drawn, mut drawn_columns, mut words_of) = (Vec::new(), Vec::new(), Vec::new());
    for (field, column) in fields.iter().zip(columns) {
        if field.shape.len() >= 2 {
            drawn.push(field.clone());
            drawn_columns.push(column.clone());
        } else if !is_of_text(field, fields) {
            let is_label = split(&field.name).1 == "label";
            let all = words(field, column, 0, names).into_iter();
            words_of.extend(all.map(|text| if is_label { format!("label {text}") } else { text }));
        }
    }
    let cells = cells(&drawn, &drawn_columns, names, &mut BTreeSet::new(), SIDES);
    words_of.extend(cells.iter().take(MOST).flat_map(|cell| cell.caption.clone()));
    let panels: Vec<RgbImage> = cells.into_iter().take(MOST).flat_map(|cell| cell.panels).collect();
    Ok(DrawnSample { png: beside(&panels).map(encode).transpose()?, words: words_of })
}

/// Returns the images beside each other; None without images.
fn beside(images: &[RgbImage]) -> Option<RgbImage> {
    let height = images.iter().map(RgbImage::height).max()?;
    let width: u32 = images.iter().map(|image| image.width() + GAP).sum();
    let mut canvas = Canvas::new(width - GAP, height);
    let mut left = 0;
    for image in images {
        canvas.paste((left, 0), image);
        left += image.width() + GAP;
    }
    Some(canvas.0)
}

fn encode(image: RgbImage) -> Result<Vec<u8>, ImageError> {
    let mut bytes = Cursor::new(Vec::new());
    image.write_to(&mut bytes, ImageFormat::Png)?;
    Ok(bytes.into_inner())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_prediction_lies_beside_image_and_mask() {
        let fields = [
            Field::f32("image", [1, 2, 3]),
            Field::i64("mask", [2, 3]),
            Field::i64("label", []),
            Field::i64("prediction", [2, 3]),
        ];
        let columns = [
            Column::F32(vec![1.0; 6]),
            Column::I64(vec![0; 6]),
            Column::I64(vec![1]),
            Column::I64(vec![1; 6]),
        ];
        let mut names = Names { normalize: dtrain_data::Normalize::new(&[0.0], &[1.0]), ..Names::default() };
        names.classes.insert("label".to_owned(), vec!["cat".to_owned(), "dog".to_owned()]);
        let drawn = draw_sample(&fields, &columns, &names).unwrap();
        assert_eq!(drawn.words, ["label dog"]);
        let picture = image::load_from_memory(&drawn.png.unwrap()).unwrap().to_rgb8();
        assert_eq!(picture.dimensions(), (3 * 3 + 2 * 2, 2));
        let [image, mask, prediction] = [0, 5, 10].map(|x| picture.get_pixel(x, 1).0);
        assert_eq!(image, [255; 3]);
        assert!(mask != prediction && prediction != image, "{mask:?} {prediction:?}");
        // Without images there are words alone.
        let drawn = draw_sample(&fields[2..3], &columns[2..3], &names).unwrap();
        assert_eq!((drawn.png, drawn.words.len()), (None, 1));
    }
}
