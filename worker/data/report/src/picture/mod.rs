//! A picture of samples as a network gets them: images after random changes, with their targets.

mod canvas;
mod colours;
mod sample;
mod shown;
mod tokens;
mod words;

use std::collections::BTreeSet;
use std::path::Path;

use dtrain_data::Batch;
use image::{ImageError, RgbImage};

use self::canvas::{BLACK, CHARACTER, Canvas, GREY, LINE, RED, broken, end_of};
use self::colours::of_class;
use self::sample::{Cell, cells, sides};
pub use self::shown::{DrawnSample, draw_sample};
pub use self::tokens::Decode;
use self::tokens::TokenTile;
pub use self::words::Names;
use crate::values::image;

/// The width of the picture, in pixels, unless a sample is wider.
const WIDTH: u32 = 1400;
/// Pixels between things.
const GAP: u32 = 8;
/// Images of a sample beside each other.
const ROW: usize = 10;
/// Characters of a sample's caption: a tile is at least as wide.
const CAPTION: usize = 18;
/// Classes in the legend.
const LEGEND: usize = 40;

/// A picture in the making.
#[derive(Default)]
pub struct Picture {
    sections: Vec<(String, Vec<Tile>)>,
    names: Names,
    decode: Option<Decode>,
    /// Classes of masks that occur.
    seen: BTreeSet<i64>,
}

/// A sample.
struct Tile {
    content: Content,
    /// Lines below it, and where it is from.
    caption: Vec<String>,
    place: String,
}

enum Content {
    Cells(Vec<Cell>),
    Tokens(TokenTile),
    /// A sample that cannot be read, with the reason.
    Broken(String),
}

impl Picture {
    /// Begins a picture; `decode` is there if samples have tokens.
    pub fn new(names: Names, decode: Option<Decode>) -> Self {
        Self { names, decode, ..Self::default() }
    }

    /// Begins a section with a heading.
    pub fn section(&mut self, title: String) {
        self.sections.push((title, Vec::new()));
    }

    /// Adds a sample to the last section: a batch of one. `place` says where it is from.
    pub fn add(&mut self, batch: &Batch, place: String) {
        let tile =
            self.decode.as_ref().and_then(|decode| tokens::tile(&batch.fields, &batch.columns, decode));
        let (content, caption) = match (batch.bad.first(), tile) {
            (Some(bad), _) => {
                let reason = format!("{} cannot be read: {}", bad.sample.path, bad.sample.reason);
                (Content::Broken(reason), Vec::new())
            }
            (None, Some(tile)) if !batch.fields.iter().any(|field| image(field).is_some()) => {
                let note = vec![tile.note.clone()];
                (Content::Tokens(tile), note)
            }
            (None, tile) => {
                let sides = sides(&batch.fields);
                let mut cells = cells(&batch.fields, &batch.columns, &self.names, &mut self.seen, sides);
                if let (Some(tile), Some(cell)) = (tile, cells.last_mut()) {
                    cell.caption.extend([tile.text(), tile.note]);
                }
                (Content::Cells(cells), Vec::new())
            }
        };
        if let Some((_, tiles)) = self.sections.last_mut() {
            tiles.push(Tile { content, caption, place });
        }
    }

    /// Writes the picture as a PNG file.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(&self, path: &Path) -> Result<(), ImageError> {
        let mut bytes = std::io::Cursor::new(Vec::new());
        self.draw().write_to(&mut bytes, image::ImageFormat::Png)?;
        dtrain_common::files::write_atomic(path, bytes.get_ref()).map_err(ImageError::IoError)
    }

    fn draw(&self) -> RgbImage {
        let mut placed = Vec::new();
        let (mut width, mut top) = (WIDTH, GAP);
        for (title, tiles) in &self.sections {
            placed.push(((GAP, top), None, title.as_str()));
            top += LINE + GAP;
            let (mut left, mut row) = (GAP, 0);
            for tile in tiles {
                let (wide, high) = tile.size();
                if left > GAP && left + wide + GAP > WIDTH {
                    (left, top, row) = (GAP, top + row + GAP, 0);
                }
                placed.push(((left, top), Some(tile), ""));
                width = width.max(left + wide + GAP);
                left += wide + GAP;
                row = row.max(high);
            }
            top += row + 2 * GAP;
        }
        let classes: Vec<i64> = self.seen.iter().copied().take(LEGEND).collect();
        let legend = top;
        let labels: Vec<String> = classes.iter().map(|class| self.label(*class)).collect();
        let spots = spots(&labels, width);
        top += spots.last().map_or(0, |(_, y)| y + LINE + GAP);
        let mut canvas = Canvas::new(width, top);
        for (at, tile, title) in placed {
            match tile {
                None => canvas.text(at, title, BLACK),
                Some(tile) => tile.draw(&mut canvas, at),
            }
        }
        for ((class, label), (x, y)) in classes.iter().zip(&labels).zip(spots) {
            canvas.fill((x, legend + y + 2), (LINE - 4, LINE - 4), of_class(*class));
            canvas.text((x + LINE, legend + y), label, BLACK);
        }
        canvas.0
    }

    /// Returns the name of a class of masks.
    fn label(&self, class: i64) -> String {
        let names = self.names.classes.get("mask");
        let name = names.and_then(|names| names.get(usize::try_from(class).ok()?));
        name.map_or_else(|| format!("class {class}"), |name| format!("{class} {name}"))
    }
}

/// Returns the places of the legend's entries.
fn spots(labels: &[String], width: u32) -> Vec<(u32, u32)> {
    let (mut x, mut y) = (GAP, 0);
    let mut spots = Vec::new();
    for label in labels {
        let wide = LINE + label.chars().count() as u32 * CHARACTER + 2 * GAP;
        if x > GAP && x + wide > width {
            (x, y) = (GAP, y + LINE);
        }
        spots.push((x, y));
        x += wide;
    }
    spots
}

impl Cell {
    fn size(&self) -> (u32, u32) {
        let width: u32 = self.panels.iter().map(|panel| panel.width() + 2).sum();
        let height = self.panels.iter().map(RgbImage::height).max().unwrap_or(0);
        (width.max(CHARACTER * 4), height + self.caption_lines(width) * LINE)
    }

    /// Returns the lines of its caption in a cell of this width.
    fn lines(&self, width: u32) -> Vec<String> {
        let characters = (width / CHARACTER).max(CAPTION as u32) as usize;
        self.caption.iter().flat_map(|text| broken(text, characters)).collect()
    }

    fn caption_lines(&self, width: u32) -> u32 {
        self.lines(width).len() as u32
    }
}

impl Tile {
    /// Returns the size of what is above its caption.
    fn content_size(&self) -> (u32, u32) {
        match &self.content {
            Content::Tokens(tile) => tile.size(),
            Content::Broken(_) => (GAP * 20, GAP * 16),
            Content::Cells(cells) => {
                let rows = cells.chunks(ROW).map(|row| {
                    let sizes = row.iter().map(Cell::size);
                    sizes.fold((0, 0), |(width, height), (wide, high)| (width + wide + 2, high.max(height)))
                });
                rows.fold((0, 0), |(width, height), (wide, high)| (wide.max(width), height + high + 2))
            }
        }
    }

    fn size(&self) -> (u32, u32) {
        let (width, height) = self.content_size();
        (width.max(CHARACTER * CAPTION as u32), height + (self.caption.len() as u32 + 1) * LINE)
    }

    fn draw(&self, canvas: &mut Canvas, (left, top): (u32, u32)) {
        let size = self.content_size();
        match &self.content {
            Content::Tokens(tile) => tile.draw(canvas, (left, top)),
            Content::Broken(reason) => {
                canvas.fill((left, top), size, [255, 235, 235]);
                canvas.cross((left, top), size, [240, 190, 190]);
                canvas.frame((left, top), size, RED);
                let characters = ((size.0 - GAP) / CHARACTER) as usize;
                let most = ((size.1 - GAP) / LINE) as usize;
                for (number, line) in (0..).zip(broken(reason, characters).iter().take(most)) {
                    canvas.text((left + GAP / 2, top + GAP / 2 + number * LINE), line, RED);
                }
            }
            Content::Cells(cells) => {
                let mut y = top;
                for row in cells.chunks(ROW) {
                    let mut x = left;
                    for cell in row {
                        cell.draw(canvas, (x, y));
                        x += cell.size().0 + 2;
                    }
                    y += row.iter().map(|cell| cell.size().1).max().unwrap_or(0) + 2;
                }
            }
        }
        let below = top + size.1;
        let characters = (self.size().0 / CHARACTER) as usize;
        for (number, line) in (0..).zip(&self.caption) {
            canvas.text((left, below + number * LINE), line, BLACK);
        }
        let at = (left, below + self.caption.len() as u32 * LINE);
        canvas.text(at, &end_of(&self.place, characters), GREY);
    }
}

impl Cell {
    fn draw(&self, canvas: &mut Canvas, (left, top): (u32, u32)) {
        let mut x = left;
        for panel in &self.panels {
            canvas.paste((x, top), panel);
            x += panel.width() + 2;
        }
        let height = self.panels.iter().map(RgbImage::height).max().unwrap_or(0);
        for (number, line) in (0..).zip(self.lines(self.size().0)) {
            canvas.text((left, top + height + number * LINE), &line, BLACK);
        }
    }
}

#[cfg(test)]
mod tests;
