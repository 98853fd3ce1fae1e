//! Reading and decoding of one file at a time: for the check before training, and for loading.

use std::mem::take;

use dtrain_recipe::Orientation;

use super::class_counts::ClassCounts;
use super::color_table::Strangers;
use super::decode::{self, Extent};
use super::error::{Result, SampleError};
use super::marks::Marks;
use super::mask_rule::MaskKind;
use super::moments::Moments;
use super::needs::{Depth, Needs};
use super::pixel_target::{PixelRule, PixelTarget};
use super::raster::Raster;
use super::regular::First;
use super::stored::Stored;
use super::tally::Tally;
use super::turn::Turn;

/// Largest working memory that is kept for the next image, so that one huge image does not keep its memory.
pub(super) const KEPT_BYTES: usize = 64 << 20;

/// Returns what is needed of an image of the size (width, height).
pub(super) type Choose<'a> = &'a mut dyn FnMut((u32, u32)) -> Result<Extent>;

/// What was decoded of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Decoded {
    /// The size of the whole image in pixels, (width, height).
    pub(super) size: (u32, u32),
    pub(super) extent: Extent,
    /// Whether the file can be decoded at other sizes.
    pub(super) is_scalable: bool,
}

/// The working memory of one decoding thread.
#[derive(Debug, Default)]
pub struct Inspector {
    file: Vec<u8>,
    raw: Vec<u8>,
    /// The colours of a mask, three values a pixel.
    colors: Vec<u8>,
    pub(super) image: Raster,
    pub(super) target: PixelTarget,
    pub(super) class_counts: ClassCounts,
    /// Statistics of each map, by sample.
    pub(super) moments: Vec<(usize, Moments)>,
    map: Raster,
    /// Files to warn of; only for a check.
    pub(super) marks: Option<Marks>,
    /// Counts for people; only for a check in detail.
    pub(super) tally: Option<Tally>,
}

impl Inspector {
    /// Makes the memory of a check, which marks files.
    pub(super) fn for_check() -> Self {
        Self { marks: Some(Marks::default()), ..Self::default() }
    }

    /// Returns the approximate memory held after the last sample, in bytes.
    pub(super) fn held_bytes(&self) -> usize {
        let files = self.file.capacity() + self.raw.capacity() + self.colors.capacity();
        let images = self.image.values.held_bytes() + self.map.values.held_bytes();
        files + images + self.target.held_bytes()
    }

    /// Frees the memory of the last sample if it is too large to keep. Results stay.
    pub(super) fn free_excess(&mut self) {
        if self.held_bytes() > KEPT_BYTES {
            (self.file, self.raw, self.colors) = Default::default();
            (self.image, self.map, self.target) = Default::default();
        }
    }

    /// Checks an image and returns its size; with [`Depth::Full`] its pixels are in `image`.
    pub(super) fn image(&mut self, stored: &Stored, needs: Needs, depth: Depth) -> Result<(u32, u32)> {
        if depth == Depth::Full {
            return Ok(self.part(stored, needs, None)?.size);
        }
        let mut file = take(&mut self.file);
        let decoded = stored.decode(first(depth), &mut file, |bytes| {
            let size = decode::header(bytes, needs.channels)?;
            let turn = turn_of(bytes, needs.orientation)?;
            if let Some(tally) = &mut self.tally {
                tally.image(bytes, decode::kind(bytes, "image"));
            }
            Ok::<_, SampleError>((size, turn))
        });
        self.file = file;
        let (size, turn) = decoded?;
        self.mark_turned(stored, turn);
        let size = if needs.orientation == Orientation::Exif { turn.size(size) } else { size };
        if let Some(tally) = &mut self.tally {
            tally.size(size);
        }
        Ok(size)
    }

    /// Decodes what is needed of an image into `image`. `choose` returns that from the image's size, (width, height); without
    /// it, all is needed.
    pub(super) fn part(
        &mut self,
        stored: &Stored,
        needs: Needs,
        mut choose: Option<Choose<'_>>,
    ) -> Result<Decoded> {
        let mut file = take(&mut self.file);
        let decoded = stored.decode(First::Whole, &mut file, |bytes| {
            let turns = |turn: Turn| needs.orientation == Orientation::Exif && turn != Turn::NONE;
            let (mut size, mut extent, mut is_scalable) = (None, Extent::WHOLE, true);
            if let Some(choose) = &mut choose {
                let (stored, turn) =
                    (decode::header(bytes, needs.channels)?, turn_of(bytes, needs.orientation)?);
                let wanted = choose(if turns(turn) { turn.size(stored) } else { stored })?;
                // A rectangle of a turned image is another one of the file.
                let wanted = if turns(turn) { Extent { part: None, ..wanted } } else { wanted };
                (size, extent) = (Some(stored), decode::possible(bytes, needs.channels, wanted)?);
                let small = Extent { denominator: 8, part: None };
                is_scalable = decode::possible(bytes, needs.channels, small)? == small;
            }
            let (raw, image) = (&mut self.raw, &mut self.image);
            match needs.nodata {
                None => decode::part(bytes, needs.channels, extent, raw, image)?,
                Some(nodata) => {
                    decode::filled(bytes, needs.channels, extent, (nodata, needs.fill), raw, image)?
                }
            }
            let size = size.unwrap_or((self.image.width, self.image.height));
            let turn = turn_of(bytes, needs.orientation)?;
            let size = if turns(turn) { turn.size(size) } else { size };
            if let Some(tally) = &mut self.tally {
                tally.image(bytes, decode::kind(bytes, "image"));
                tally.size(size);
            }
            Ok::<_, SampleError>((Decoded { size, extent, is_scalable }, turn))
        });
        self.file = file;
        let (decoded, turn) = decoded?;
        self.mark_turned(stored, turn);
        if needs.orientation == Orientation::Exif {
            turn.image(&mut self.image);
        }
        Ok(decoded)
    }

    /// Checks a mask or map and returns its size; with [`Depth::Full`] its values are in `target`.
    pub(super) fn pixels(
        &mut self,
        stored: &Stored,
        rule: &PixelRule,
        orientation: Orientation,
        depth: Depth,
    ) -> Result<(u32, u32)> {
        let mut file = take(&mut self.file);
        let decoded = stored.decode(first(depth), &mut file, |bytes| {
            let size = match (depth, rule) {
                (Depth::Header, PixelRule::Mask(rule)) => {
                    rule.check_loss(decode::lossy(bytes)?)?;
                    match rule.kind {
                        MaskKind::Index | MaskKind::Binary => decode::mask_header(bytes)?,
                        MaskKind::Threshold(_) | MaskKind::Colors(_) => decode::colors_header(bytes)?,
                    }
                }
                (Depth::Header, PixelRule::Map(_)) => decode::map_header(bytes)?,
                (Depth::Full, rule) => self.decode_target(bytes, rule)?,
            };
            let lossy = if matches!(rule, PixelRule::Map(_)) { decode::lossy(bytes)? } else { None };
            if let Some(tally) = &mut self.tally {
                tally.file(rule.word(), decode::kind(bytes, rule.word()));
            }
            let states_nodata = match rule {
                PixelRule::Map(map) if self.marks.is_some() && map.nodata.is_none() => decode::stated(bytes),
                _ => None,
            };
            let marks = (lossy.is_some(), states_nodata.is_some());
            Ok::<_, SampleError>((size, turn_of(bytes, orientation)?, marks))
        });
        self.file = file;
        let (size, turn, (is_lossy, states_nodata)) =
            decoded.map_err(|error| error.of(rule.word(), stored))?;
        self.mark_turned(stored, turn);
        if let (true, Some(marks)) = (is_lossy, &mut self.marks) {
            marks.lossy_maps.add(stored);
        }
        if let (true, Some(marks)) = (states_nodata, &mut self.marks) {
            marks.with_nodata.add(stored);
        }
        match (orientation, depth) {
            (Orientation::Stored, _) => Ok(size),
            (Orientation::Exif, Depth::Header) => Ok(turn.size(size)),
            (Orientation::Exif, Depth::Full) => {
                self.target.turn(turn);
                Ok(self.target.size())
            }
        }
    }

    fn decode_target(&mut self, bytes: &[u8], rule: &PixelRule) -> Result<(u32, u32)> {
        match rule {
            PixelRule::Mask(rule) => {
                rule.check_loss(decode::lossy(bytes)?)?;
                let classes = self.target.classes();
                match &rule.kind {
                    MaskKind::Index | MaskKind::Binary => {
                        decode::mask(bytes, &mut self.raw, classes)?;
                        rule.apply(classes)?;
                    }
                    MaskKind::Threshold(level) => {
                        decode::above(bytes, *level, &mut self.raw, &mut self.colors, classes)?;
                    }
                    MaskKind::Colors(table) => {
                        (classes.width, classes.height) =
                            decode::colors(bytes, &mut self.raw, &mut self.colors)?;
                        let strangers = self.marks.as_mut().map(|marks| &mut marks.strangers);
                        table.apply(&self.colors, classes, strangers.unwrap_or(&mut Strangers::default()))?;
                    }
                }
            }
            PixelRule::Map(rule) => {
                let encoding = decode::map(bytes, rule.nodata, &mut self.raw, &mut self.map)?;
                rule.apply(&self.map, encoding, self.target.numbers());
            }
        }
        Ok(self.target.size())
    }

    fn mark_turned(&mut self, stored: &Stored, turn: Turn) {
        if let (true, Some(marks)) = (turn != Turn::NONE, &mut self.marks) {
            marks.turned.add(stored);
        }
    }

    /// Adds the values in `target` to the statistics. Classes of the value `ignore` do not count.
    pub(super) fn count(&mut self, sample: usize, ignore: i64) {
        match &self.target {
            PixelTarget::Classes(labels) => self.class_counts.count(&labels.values, ignore),
            PixelTarget::Numbers(labels) => {
                self.moments.push((sample, Moments::of(labels.values.iter().copied())))
            }
        }
    }
}

fn first(depth: Depth) -> First {
    match depth {
        Depth::Header => First::Header,
        Depth::Full => First::Whole,
    }
}

/// Returns the turn that a file's tag states. A tag that is further on is an error only if it has an effect.
fn turn_of(bytes: &[u8], orientation: Orientation) -> Result<Turn> {
    match orientation {
        Orientation::Exif => decode::turn(bytes),
        Orientation::Stored => Ok(decode::turn(bytes).unwrap_or(Turn::NONE)),
    }
}

#[cfg(test)]
mod tests;
