//! From the values of a sample to its row and its images.

use std::fs;
use std::path::{Path, PathBuf};

use dtrain_recipe::Recipe;
use tch::{Kind, TchError, Tensor};

use super::output::{Output, folder};
use super::parts::failed;
use super::rows::{Cell, Row};
use super::samples::{image_names, names, needs};
use crate::data::encode::{overlay, write_coloured_map, write_map16, write_map32, write_mask, write_picture};
use crate::data::fit::{Frame, unfit_labels};
use crate::data::raster::Labels;
use crate::data::{Needs, Pictures, SampleError, Samples};
use crate::planning::ImageForm;
use crate::setup::error::Result;
use crate::tasks::predict::{Form, Unlabelled};

/// Makes rows, and images in the output's folder.
pub(super) struct Maker {
    pub(super) samples: Samples,
    /// Of the images to write.
    stems: Vec<PathBuf>,
    images: Vec<ImageForm>,
    top: Option<usize>,
    /// The output's folder.
    out: PathBuf,
    needs: Needs,
    recipe: Recipe,
    /// Width and height of the network's images.
    size: (u32, u32),
    /// The colours of all values of a mask.
    colours: Vec<[u8; 3]>,
    /// Where windows begin in each image; None without windows.
    pub(super) corners: Option<Vec<Vec<(u32, u32)>>>,
    /// The sizes of images that are cut into windows.
    pub(super) sizes: Vec<(u32, u32)>,
    pictures: Pictures,
}

/// Returns a number for each pixel as a tensor has them, height x width.
fn labels<T: Copy>(of: &Tensor, values: Vec<T>) -> Labels<T> {
    let size = of.size();
    let [height, width] = [size[size.len() - 2], size[size.len() - 1]];
    Labels { width: width as u32, height: height as u32, values }
}

/// Why an input has no prediction although it can be read.
pub(super) const NOT_FINITE: &str = "the network gives values that are not finite";

/// Returns the most probable of the classes along `dim`, or -1 where a value is not finite.
pub(super) fn most_probable(values: &Tensor, dim: i64) -> Result<Tensor, TchError> {
    let is_finite = values.f_isfinite()?.f_all_dim(dim, false)?;
    let classes = values.f_argmax(dim, false)?.f_to_kind(Kind::Int)?;
    classes.f_where_scalarother(&is_finite, -1)
}

/// Returns the values as floating-point numbers.
pub(super) fn numbers(of: &Tensor) -> Result<Vec<f32>> {
    let flat = of.f_to_kind(Kind::Float)?.f_contiguous()?.f_view([-1])?;
    Ok(Vec::<f32>::try_from(flat)?)
}

impl Maker {
    pub(super) fn new(
        recipe: &Recipe,
        output: &Output,
        (data, form): (Unlabelled, &Form),
        out: PathBuf,
    ) -> Result<Self> {
        let colours = match form {
            Form::Masks { classes, ignore } => data.class_colours((*classes).max(usize::from(*ignore) + 1)),
            _ => Vec::new(),
        };
        let size = data.size().unwrap_or((1, 1));
        let (sizes, overlap) = data.windows();
        let corners = |&image: &(u32, u32)| crate::data::corners(image, size, overlap);
        let corners = (!sizes.is_empty()).then(|| sizes.iter().map(corners).collect());
        let sizes = sizes.to_vec();
        // Opened with samples.
        let samples = data.into_samples().ok_or(crate::tasks::TaskError::NoPrediction)?;
        let names = names(&samples);
        Ok(Self {
            stems: if output.images.is_empty() { Vec::new() } else { image_names(&names) },
            samples,
            images: output.images.clone(),
            top: output.top,
            out,
            needs: needs(recipe),
            recipe: recipe.clone(),
            size,
            colours,
            corners,
            sizes,
            pictures: Pictures::default(),
        })
    }

    /// Makes the row of an input from its values, without the dimension of samples. They are those of the whole image if it was
    /// cut into windows.
    pub(super) fn row(&mut self, at: u32, values: &Tensor, form: &Form) -> Result<Row> {
        match form {
            Form::Classes(names) => {
                let probabilities = numbers(values)?;
                match probabilities.iter().all(|value| value.is_finite()) {
                    true => Ok(Row::of(at, self.classes(&probabilities, names))),
                    false => Ok(Row::failed(at, NOT_FINITE.to_owned())),
                }
            }
            Form::Masks { classes, ignore } => {
                let classes_of =
                    if values.dim() == 3 { most_probable(values, 0)? } else { values.shallow_clone() };
                let flat =
                    Vec::<i64>::try_from(classes_of.f_to_kind(Kind::Int64)?.f_contiguous()?.f_view([-1])?)?;
                if flat.iter().any(|&class| class < 0) {
                    return Ok(Row::failed(at, NOT_FINITE.to_owned()));
                }
                let mask = labels(&classes_of, flat.into_iter().map(|class| class as u16).collect());
                self.mask(at, mask, (*classes, *ignore))
            }
            Form::Maps { black, white } => {
                let map = labels(values, numbers(values)?);
                self.map(at, map, (*black, *white))
            }
            Form::Numbers(_) | Form::Outputs | Form::Tokens { .. } => {
                Ok(Row::of(at, vec![Cell::numbers(&numbers(values)?)]))
            }
        }
    }

    fn classes(&self, probabilities: &[f32], names: &[String]) -> Vec<Cell> {
        let mut order: Vec<usize> = (0..probabilities.len()).collect();
        // The first of equal ones, as argmax.
        order.sort_by(|&a, &b| probabilities[b].total_cmp(&probabilities[a]));
        let name = |class: usize| names.get(class).cloned().unwrap_or_else(|| class.to_string());
        let best = order.iter().take(self.top.unwrap_or(1));
        let cells = best.flat_map(|&class| [Cell::Text(name(class)), Cell::number(probabilities[class])]);
        let all = self.top.is_none().then(|| Cell::numbers(probabilities));
        cells.chain(all).collect()
    }

    /// Returns the size of an image, and the frame of the network's input in it; no frame of an image in windows.
    fn frame(&mut self, at: u32) -> Result<((u32, u32), Option<Frame>), SampleError> {
        let image = self.pictures.size(&self.samples, at as usize, self.needs)?;
        if self.corners.is_some() {
            return Ok((image, None));
        }
        let data = &self.recipe.data;
        let frame = Frame::new(data.resize, data.crop_fraction, image, self.size)?;
        Ok((image, Some(frame)))
    }

    fn path(&self, at: u32, form: ImageForm) -> Result<(PathBuf, String)> {
        let ending = if form == ImageForm::Tiff { "tif" } else { "png" };
        let mut name = folder(form).to_owned() + "/" + &self.stems[at as usize].display().to_string();
        name += ".";
        name += ending;
        let path = self.out.join(&name);
        let parent = path.parent().unwrap_or(Path::new("")).to_owned();
        fs::create_dir_all(&parent).map_err(failed(&parent))?;
        Ok((path, name))
    }

    fn mask(&mut self, at: u32, mask: Labels, (classes, ignore): (usize, u16)) -> Result<Row> {
        let (size, frame) = match self.frame(at) {
            Ok(found) => found,
            Err(error) => return Ok(Row::failed(at, error.to_string())),
        };
        let mask = frame.map_or_else(|| mask.clone(), |frame| unfit_labels(&mask, frame, size, ignore));
        let mut cells = Vec::new();
        for form in self.images.clone() {
            let (path, name) = self.path(at, form)?;
            let written = match form {
                ImageForm::Mask => write_mask(&path, &mask, &self.colours),
                _ => match self.pictures.colours(&self.samples, at as usize, self.needs) {
                    Ok((mut rgb, size)) => {
                        overlay(&mut rgb, &mask, &self.colours[..classes]);
                        write_picture(&path, size, &rgb)
                    }
                    // An image of other channels than a picture's has no colours to lie under.
                    Err(error) => {
                        cells.push(Cell::Text(format!("no overlay: {error}")));
                        continue;
                    }
                },
            };
            written.map_err(failed(&path))?;
            cells.push(Cell::Text(name));
        }
        let mut counts = vec![0usize; classes];
        mask.values.iter().for_each(|&class| {
            if let Some(count) = counts.get_mut(usize::from(class)) {
                *count += 1;
            }
        });
        let pixels = mask.values.len().max(1) as f32;
        let shares: Vec<f32> = counts.iter().map(|&count| count as f32 / pixels).collect();
        cells.push(Cell::numbers(&shares));
        Ok(Row::of(at, cells))
    }

    fn map(&mut self, at: u32, map: Labels<f32>, range: (f32, f32)) -> Result<Row> {
        let (size, frame) = match self.frame(at) {
            Ok(found) => found,
            Err(error) => return Ok(Row::failed(at, error.to_string())),
        };
        let map = frame.map_or_else(|| map.clone(), |frame| unfit_labels(&map, frame, size, f32::NAN));
        let finite = || map.values.iter().copied().filter(|value| value.is_finite());
        let (least, most) = finite().fold((f32::MAX, f32::MIN), |(a, b), value| (a.min(value), b.max(value)));
        let (sum, count) =
            finite().fold((0.0, 0usize), |(sum, count), value| (sum + f64::from(value), count + 1));
        let (mut cells, mut beyond) = (Vec::new(), 0);
        for form in self.images.clone() {
            let (path, name) = self.path(at, form)?;
            let written = match form {
                ImageForm::Png => write_map16(&path, &map, range).map(|count| beyond = count),
                ImageForm::Tiff => write_map32(&path, &map),
                _ => write_coloured_map(&path, &map, (least, most)),
            };
            written.map_err(failed(&path))?;
            cells.push(Cell::Text(name));
        }
        let mean = if count > 0 { (sum / count as f64) as f32 } else { f32::NAN };
        cells.extend(
            [least, most, mean].map(|value| if count > 0 { Cell::number(value) } else { Cell::Number(None) }),
        );
        cells.push(Cell::number(beyond as f32));
        Ok(Row::of(at, cells))
    }
}
