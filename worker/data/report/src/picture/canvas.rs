//! A picture to draw text and images into.

use image::{Rgb, RgbImage};
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

pub(super) type Colour = [u8; 3];

pub(super) const WHITE: Colour = [255, 255, 255];
pub(super) const BLACK: Colour = [20, 20, 20];
pub(super) const GREY: Colour = [120, 120, 120];
pub(super) const RED: Colour = [200, 30, 30];

/// The height of a line of text and the width of a character, in pixels.
pub(super) const LINE: u32 = 16;
pub(super) const CHARACTER: u32 = get_raster_width(FontWeight::Regular, RasterHeight::Size16) as u32;

pub(super) struct Canvas(pub(super) RgbImage);

impl Canvas {
    pub(super) fn new(width: u32, height: u32) -> Self {
        Self(RgbImage::from_pixel(width.max(1), height.max(1), Rgb(WHITE)))
    }

    fn put(&mut self, x: u32, y: u32, colour: Colour, part: u8) {
        if let Some(Rgb(below)) = self.0.get_pixel_mut_checked(x, y) {
            *below = blend(*below, colour, f32::from(part) / 255.0);
        }
    }

    pub(super) fn fill(&mut self, (left, top): (u32, u32), (width, height): (u32, u32), colour: Colour) {
        for y in top..top + height {
            for x in left..left + width {
                self.put(x, y, colour, 255);
            }
        }
    }

    /// Draws a rectangle's border, 2 pixels wide, inside of it.
    pub(super) fn frame(&mut self, (left, top): (u32, u32), (width, height): (u32, u32), colour: Colour) {
        let thick = 2.min(width).min(height);
        self.fill((left, top), (width, thick), colour);
        self.fill((left, top + height - thick), (width, thick), colour);
        self.fill((left, top), (thick, height), colour);
        self.fill((left + width - thick, top), (thick, height), colour);
    }

    /// Draws the diagonals of a rectangle.
    pub(super) fn cross(&mut self, (left, top): (u32, u32), (width, height): (u32, u32), colour: Colour) {
        let steps = width.max(height).max(1);
        for step in 0..steps {
            let (x, y) = (step * width / steps, step * height / steps);
            for x in [x, width.saturating_sub(1 + x)] {
                self.fill((left + x, top + y), (2, 1), colour);
            }
        }
    }

    pub(super) fn paste(&mut self, (left, top): (u32, u32), image: &RgbImage) {
        for (x, y, Rgb(pixel)) in image.enumerate_pixels() {
            self.put(left + x, top + y, *pixel, 255);
        }
    }

    /// Writes one line of text.
    pub(super) fn text(&mut self, (left, top): (u32, u32), text: &str, colour: Colour) {
        for (number, character) in (0..).zip(text.chars()) {
            self.character((left + number * CHARACTER, top), character, colour);
        }
    }

    /// Writes a character; one that the font lacks is a box.
    pub(super) fn character(&mut self, (left, top): (u32, u32), character: char, colour: Colour) {
        let of = |character| get_raster(character, FontWeight::Regular, RasterHeight::Size16);
        let Some(raster) = of(character).or_else(|| of(char::REPLACEMENT_CHARACTER)) else {
            return self.frame((left, top + 3), (CHARACTER - 1, LINE - 6), colour);
        };
        for (y, row) in (0..).zip(raster.rows()) {
            for (x, part) in (0..).zip(row) {
                self.put(left + x, top + y, colour, *part);
            }
        }
    }
}

/// Mixes `part` of `above` into `below`.
pub(super) fn blend(below: Colour, above: Colour, part: f32) -> Colour {
    std::array::from_fn(|at| {
        let (below, above) = (f32::from(below[at]), f32::from(above[at]));
        (below + (above - below) * part).round() as u8
    })
}

/// Breaks a text into lines of at most `characters`, at spaces where possible.
pub(super) fn broken(text: &str, characters: usize) -> Vec<String> {
    let characters = characters.max(4);
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let mut word: Vec<char> = word.chars().collect();
        while !word.is_empty() {
            let Some(line) = lines.last_mut() else { break };
            let used = line.chars().count();
            let space = usize::from(used > 0);
            if used + space + word.len() <= characters {
                if space == 1 {
                    line.push(' ');
                }
                line.extend(word.drain(..));
            } else if used == 0 {
                line.extend(word.drain(..characters));
                lines.push(String::new());
            } else {
                lines.push(String::new());
            }
        }
    }
    if lines.len() > 1 && lines.last().is_some_and(String::is_empty) {
        lines.pop();
    }
    lines
}

/// Returns the end of a text, in at most `characters`.
pub(super) fn end_of(text: &str, characters: usize) -> String {
    let count = text.chars().count();
    match count > characters {
        true => "..".chars().chain(text.chars().skip(count + 2 - characters.max(3))).collect(),
        false => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_at_spaces_and_long_words_anywhere() {
        assert_eq!(broken("one two three", 8), ["one two", "three"]);
        assert_eq!(broken("abcdefghij k", 4), ["abcd", "efgh", "ij k"]);
        assert_eq!(broken("abcd", 4), ["abcd"]);
        assert_eq!(broken("", 9), [""]);
        assert_eq!(end_of("train/dark/0001.png", 11), "../0001.png");
        assert_eq!(end_of("short", 11), "short");
    }

    #[test]
    fn nothing_is_drawn_outside_of_the_picture() {
        let mut canvas = Canvas::new(10, 10);
        canvas.text((5, 5), "\u{4e2d}W", BLACK);
        canvas.cross((4, 4), (20, 20), RED);
        canvas.frame((8, 8), (9, 9), RED);
        assert!(canvas.0.pixels().any(|pixel| pixel.0 != WHITE));
    }
}
