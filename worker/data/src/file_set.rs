//! Files as a data set: images, masks and maps are decoded and prepared, classes and numbers copied.

use std::sync::{Mutex, MutexGuard, PoisonError};

use dtrain_recipe::{Decode, NoData, Orientation, Resize};
use dtrain_resize::Filter;

use super::cache::{Cache, CacheBudget, Part};
use super::changes::{Changes, Drawn, Room};
use super::dataset::{Column, Dataset, Field};
use super::decode::Extent;
use super::error::Result;
use super::fit::{Fitter, Frame};
use super::inspector::{Decoded, Inspector, KEPT_BYTES};
use super::needs::{Depth, Needs};
use super::normalize::Normalize;
use super::pixel_target::PixelRule;
use super::pixels::Pixels;
use super::rng::SampleRng;
use super::samples::{Files, ListValues, PixelSource, Samples};
use super::stored::Stored;
use super::token_lists::TextColumn;

/// Preparation of the images of a set.
#[derive(Debug, Clone)]
pub struct ImageOptions {
    /// Channels; 3 for RGB pictures, else the number that every file has.
    pub channels: usize,
    /// Width and height of every image after resizing, in pixels; at least 1.
    pub size: (u32, u32),
    pub resize: Resize,
    /// The part of the scaled shorter side that [`Resize::Crop`] keeps; above 0 and up to 1.
    pub crop_fraction: f64,
    /// The interpolation of images.
    pub filter: Filter,
    /// Whether images, masks and maps are turned, each as its own EXIF data states.
    pub orientation: Orientation,
    /// The tokens of each text.
    pub context: usize,
    /// Whether JPEG files may be decoded at a smaller size.
    pub decode: Decode,
    /// The value in the file without data, and the one in its place.
    pub nodata: Option<NoData>,
    pub fill: Option<f64>,
    /// The last step; it must have as many channels.
    pub normalize: Normalize,
    /// Random changes, applied if a sample is loaded with a generator.
    pub changes: Changes,
    pub cache: CacheBudget,
}

impl ImageOptions {
    /// Returns RGB squares of `side` pixels, as torchvision's weights expect, without changes and cache.
    pub fn square(side: u32) -> Self {
        Self {
            channels: 3,
            size: (side, side),
            resize: Resize::Crop,
            crop_fraction: 1.0,
            filter: Filter::default(),
            orientation: Orientation::Stored,
            context: 0,
            decode: Decode::Exact,
            nodata: None,
            fill: None,
            normalize: Normalize::default(),
            changes: Changes::default(),
            cache: CacheBudget::default(),
        }
    }
}

/// Samples of files, prepared alike.
///
/// A mask or map changes like the sample's first image: the same resizing, by the nearest pixel, and the same random
/// choices. Pixels that a random change brings in from outside of the image are [`super::MaskRule::ignore`] or, in a
/// map, NaN. Random changes leave classes and numbers as they are.
#[derive(Debug)]
pub struct FileSet {
    samples: Samples,
    options: ImageOptions,
    fields: Vec<Field>,
    /// The columns of each list, if it has texts.
    texts: Vec<Vec<TextColumn>>,
    /// Decoded files before random changes: resized, or original if a random crop comes before resizing. Those of one
    /// sample follow each other.
    cache: Cache<Part>,
    /// Working memory of idle threads; as many as the most threads that loaded at once.
    idle: Mutex<Vec<Scratch>>,
}

#[derive(Debug, Default)]
struct Scratch {
    decoded: Inspector,
    fitter: Fitter,
    changed: Room,
    /// From the cache that ranks share.
    kept: Part,
}

impl Scratch {
    fn held_bytes(&self) -> usize {
        let cached = self.changed.held_bytes() + self.kept.held_bytes();
        self.decoded.held_bytes() + self.fitter.held_bytes() + cached
    }
}

impl FileSet {
    /// Makes the set of `samples`. Panics if the normalisation has another number of channels.
    pub fn new(samples: Samples, options: ImageOptions) -> Self {
        let (channels, size) = (options.channels, (options.size.0 as usize, options.size.1 as usize));
        assert_eq!(
            options.normalize.channels(),
            channels,
            "a mean and a standard deviation for each channel"
        );
        Self {
            fields: samples.fields(channels, size, &options.normalize, options.context),
            texts: samples
                .lists
                .iter()
                .map(|list| match &list.values {
                    ListValues::Tokens(tokens) => kinds(tokens.columns(&list.field, &samples.names())),
                    _ => Vec::new(),
                })
                .collect(),
            cache: Cache::new(samples.count() * samples.files(), options.cache.clone()),
            options,
            idle: Mutex::default(),
            samples,
        }
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Scratch>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a sample. Its images and masks get the same random choices.
    fn load_in(
        &self,
        scratch: &mut Scratch,
        index: usize,
        random: Option<&SampleRng>,
        out: &mut [Column],
    ) -> Result<()> {
        let mut numbers = 0..;
        let mut number = || numbers.next().unwrap_or_default();
        let (mut first, mut draws) = (None, Draws { random, first: None });
        let mut columns = out.iter_mut();
        for (list, texts) in self.samples.lists.iter().zip(&self.texts) {
            if let ListValues::Tokens(tokens) = &list.values {
                for (column, out) in texts.iter().zip(&mut columns) {
                    tokens.write_column(index, *column, out.i64());
                }
                continue;
            }
            let Some(out) = columns.next() else { break };
            match &list.values {
                ListValues::Images(images) => {
                    let file = |files| File { files, sample: index, number: number() };
                    let images: Vec<_> = images.iter().map(file).collect();
                    let size = self.images(scratch, &images, &mut draws, out.pixels())?;
                    first.get_or_insert(size);
                }
                ListValues::Pixels(files, rule) => {
                    let source = PixelSource::Files(files);
                    let target = Target { source, rule, sample: index, number: number() };
                    self.target(scratch, target, first, &mut draws, out)?;
                }
                ListValues::Drawn(drawings, rule) => {
                    let source = PixelSource::Drawings(drawings);
                    let target = Target { source, rule, sample: index, number: number() };
                    self.target(scratch, target, first, &mut draws, out)?;
                }
                ListValues::Classes { numbers, .. } => out.i64()[0] = i64::from(numbers[index]),
                ListValues::ClassSets { sets, .. } => {
                    out.f32().fill(0.0);
                    sets.of(index).iter().for_each(|&class| out.f32()[class as usize] = 1.0);
                }
                ListValues::Numbers { names, values } => {
                    out.f32().copy_from_slice(&values[index * names.len()..][..names.len()]);
                }
                // A survey makes tokens of all texts.
                ListValues::Texts(..) | ListValues::Tokens(_) => out.i64().fill(0),
            }
        }
        Ok(())
    }

    /// Writes the images of a field, and returns the size of the first before it was resized.
    fn images(
        &self,
        scratch: &mut Scratch,
        files: &[File<'_>],
        draws: &mut Draws<'_>,
        out: &mut Pixels,
    ) -> Result<(u32, u32)> {
        if let [file] = files {
            return self.image(scratch, *file, draws, out);
        }
        let length = out.values().len() / files.len().max(1);
        out.resize(length * files.len());
        let mut one = out.sized(length);
        let mut first = None;
        for (number, file) in files.iter().enumerate() {
            let size = self.image(scratch, *file, draws, &mut one)?;
            first.get_or_insert(size);
            out.copy(number * length..(number + 1) * length, &one);
        }
        Ok(first.unwrap_or_default())
    }

    /// Writes an image, and returns its size before it was resized.
    fn image(
        &self,
        scratch: &mut Scratch,
        file: File<'_>,
        draws: &mut Draws<'_>,
        out: &mut Pixels,
    ) -> Result<(u32, u32)> {
        let written = self.write_image(scratch, file, draws, out);
        written.map_err(|error| match file.number {
            // A message names the sample by its first image.
            0 => error,
            _ => error.of("image", &file.stored(&self.samples)),
        })
    }

    fn write_image(
        &self,
        scratch: &mut Scratch,
        file: File<'_>,
        draws: &mut Draws<'_>,
        out: &mut Pixels,
    ) -> Result<(u32, u32)> {
        let Scratch { decoded, fitter, changed, kept } = scratch;
        let takes_parts = self.options.changes.need_decoded();
        if let Some(Part::Image(image, found)) = self.cache.get(self.slot(file.sample, file.number), kept) {
            let (frame, drawn) = self.choose(found.size, !takes_parts, draws)?;
            // Another part may need another scale.
            if !takes_parts || found.extent.denominator == self.denominator(frame) || !found.is_scalable {
                // Else it was resized before it was kept.
                let frame = if takes_parts { frame.scaled(found.extent.denominator) } else { frame };
                let view = fitter.fit(image, frame)?;
                out.write(drawn.changed(view, changed), drawn.placement);
                return Ok(found.size);
            }
        }
        // A random crop shows another part each time, so the whole image is kept.
        let mut keeps = takes_parts;
        let found = loop {
            match self.decode(decoded, file, keeps, draws) {
                // Damage outside of the part must not depend on the cache.
                Err(_) if keeps => keeps = false,
                found => break found?,
            }
        };
        let (frame, drawn) = self.choose(found.size, false, draws)?;
        let frame = frame.scaled(found.extent.denominator);
        let image = &decoded.image;
        let view = fitter.fit(image, if found.extent.part.is_some() { frame.of_cut() } else { frame })?;
        if found.extent.part.is_none() {
            let view = if takes_parts { image.view() } else { view };
            let bytes = view.value_bytes();
            self.cache.insert_with(self.slot(file.sample, file.number), bytes, || {
                Part::Image(view.to_raster(), found)
            });
        }
        out.write(drawn.changed(view, changed), drawn.placement);
        Ok(found.size)
    }

    /// Decodes an image: only what is drawn of it, unless all of it is to be kept.
    fn decode(
        &self,
        inspector: &mut Inspector,
        file: File<'_>,
        keeps: bool,
        draws: &mut Draws<'_>,
    ) -> Result<Decoded> {
        let ImageOptions { channels, resize, orientation, decode, nodata, fill, ref changes, .. } =
            self.options;
        let needs = Needs { channels, resize, orientation, nodata, fill };
        let mut choose = |size: (u32, u32)| {
            let frame = self.choose(size, false, draws)?.0;
            let extent = frame.extent(decode == Decode::Scaled);
            let bytes = size.0 as usize * size.1 as usize * channels;
            let is_whole = !changes.need_decoded()
                || keeps && self.cache.has_room(self.slot(file.sample, file.number), bytes);
            Ok(if is_whole { Extent { part: None, ..extent } } else { extent })
        };
        let is_simple = decode == Decode::Exact && !changes.need_decoded();
        inspector.part(&file.stored(&self.samples), needs, if is_simple { None } else { Some(&mut choose) })
    }

    /// Returns the part of its size at which a JPEG file is decoded for this frame.
    fn denominator(&self, frame: Frame) -> u32 {
        frame.extent(self.options.decode == Decode::Scaled).denominator
    }

    /// Writes a mask or map of an image of the size `image`.
    fn target(
        &self,
        scratch: &mut Scratch,
        target: Target<'_>,
        image: Option<(u32, u32)>,
        draws: &mut Draws<'_>,
        out: &mut Column,
    ) -> Result<()> {
        let Target { source, rule, sample, number } = target;
        let slot = self.slot(sample, number);
        let kept = self.cache.get(slot, &mut scratch.kept);
        let target = match kept {
            Some(Part::Target(target)) => target,
            _ => {
                let (decoded, orientation) = (&mut scratch.decoded, self.options.orientation);
                let read = self.samples.target(source, sample, rule, orientation, Depth::Full, decoded);
                let (size, file) = read?;
                rule.check_size(&file, size, image.unwrap_or(size))?;
                &scratch.decoded.target
            }
        };
        let (frame, drawn) = self.choose(target.size(), kept.is_some(), draws)?;
        let fitted = target.fit(frame);
        if kept.is_none() {
            let all = if self.options.changes.need_decoded() { target } else { &fitted };
            self.cache.insert_with(slot, all.value_bytes(), || Part::Target(all.clone()));
        }
        drawn.write(&fitted, rule.outside(), out);
        Ok(())
    }

    /// Returns the place of a file in the cache.
    fn slot(&self, sample: usize, number: usize) -> usize {
        sample * self.samples.files() + number
    }

    /// Returns the part of an image of the size `source`, which may be from the cache, and what was drawn. The first file of a
    /// sample decides what the others share.
    fn choose(&self, source: (u32, u32), is_cached: bool, draws: &mut Draws<'_>) -> Result<(Frame, Drawn)> {
        let ImageOptions { size, resize, crop_fraction, filter, ref changes, .. } = self.options;
        let plain = match is_cached && !changes.need_decoded() {
            // It was resized before it was cached.
            true => Frame::rectangle((0, 0), size, size),
            // Also with a random crop instead: an image of a wrong size is an error.
            false => Frame::new(resize, crop_fraction, source, size)?,
        };
        let source = if changes.need_decoded() { source } else { size };
        if draws.random.is_some() {
            changes.check(size)?;
        }
        let draw = |random: &SampleRng| changes.draw(&mut random.clone(), source, size);
        let mut drawn = draws.random.map_or_else(Drawn::default, draw);
        match &draws.first {
            // A rectangle depends on the file's size, and with it the draws that follow.
            Some(first) => drawn = first.with_frame(drawn.frame),
            None => draws.first = Some(drawn.clone()),
        }
        let frame = match (drawn.frame, drawn.place) {
            (Some(frame), _) => frame,
            (None, Some(_)) => Frame::placed(resize, crop_fraction, source, size, drawn.place)?,
            (None, None) => plain,
        };
        Ok((frame.by(filter), drawn))
    }
}

fn kinds(columns: Vec<(String, TextColumn)>) -> Vec<TextColumn> {
    columns.into_iter().map(|(_, column)| column).collect()
}

/// The random choices of a sample.
struct Draws<'a> {
    random: Option<&'a SampleRng>,
    /// Those of its first file.
    first: Option<Drawn>,
}

/// A file of a sample.
#[derive(Clone, Copy)]
struct File<'a> {
    files: &'a Files,
    sample: usize,
    /// Its number among the sample's files.
    number: usize,
}

/// The targets of a sample's pixels.
#[derive(Clone, Copy)]
struct Target<'a> {
    source: PixelSource<'a>,
    rule: &'a PixelRule,
    sample: usize,
    /// Its number among the sample's files.
    number: usize,
}

impl File<'_> {
    fn stored(self, samples: &Samples) -> Stored {
        samples.stored(self.files, self.sample)
    }
}

impl Dataset for FileSet {
    fn len(&self) -> usize {
        self.samples.count()
    }

    fn fields(&self) -> &[Field] {
        &self.fields
    }

    fn load(&self, index: usize, random: Option<&mut SampleRng>, out: &mut [Column]) -> Result<()> {
        assert_eq!(out.len(), self.fields.len(), "a column for each field");
        let mut scratch = self.idle().pop().unwrap_or_default();
        let loaded = self.load_in(&mut scratch, index, random.as_deref(), out);
        if scratch.held_bytes() <= KEPT_BYTES {
            self.idle().push(scratch);
        }
        loaded
    }

    fn describe(&self, index: usize) -> String {
        self.samples.describe(index)
    }
}

#[cfg(test)]
mod tests;
