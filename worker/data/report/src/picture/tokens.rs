//! A sample of text: its tokens in lines.

use dtrain_data::{Column, Field};

use crate::values::is_of_tokens;

use super::canvas::{BLACK, CHARACTER, Canvas, Colour, GREY, LINE};

/// Characters of a line, and lines of a sample; further tokens are only counted.
const WIDTH: usize = 168;
const LINES: usize = 8;
/// The backgrounds of neighbouring documents, or of neighbouring tokens.
const GROUNDS: [Colour; 2] = [[255, 255, 255], [228, 236, 248]];

/// A sample of text as it is drawn.
pub(super) struct TokenTile {
    /// Lines of characters, each with its colours.
    lines: Vec<Vec<(char, Colour, Colour)>>,
    pub(super) note: String,
}

/// Turns a token into its text.
pub type Decode = Box<dyn Fn(u32) -> String>;

/// Returns whether a field holds the tokens of a text, or belongs to them.
pub(super) fn is_of_text(field: &Field, fields: &[Field]) -> bool {
    const BESIDE: [&str; 2] = ["attention_mask", "labels"];
    let name = &*field.name;
    let has = |name: &str| fields.iter().any(|other| other.name == name && other.shape == field.shape);
    // Numbers may be named `targets`, too.
    let of_tokens = (is_of_tokens(field) || BESIDE.contains(&name)) && has("tokens");
    let of_another = name.strip_suffix("_mask").is_some_and(has) || has(&format!("{name}_mask"));
    field.shape.len() == 1 && (of_tokens || of_another)
}

/// Returns the tile of a sample with tokens; None for other samples.
pub(super) fn tile(fields: &[Field], columns: &[Column], decode: &Decode) -> Option<TokenTile> {
    let column = |name: &str| {
        let at = fields.iter().position(|field| field.name == name && field.shape.len() == 1)?;
        columns[at].as_i64()
    };
    // Else the only text under another name.
    let name = fields.iter().map(|field| &*field.name).find(|name| column(&format!("{name}_mask")).is_some());
    let (tokens, filled) = match column("tokens") {
        Some(tokens) => (tokens, column("documents").or_else(|| column("attention_mask"))),
        None => (column(name?)?, column(&format!("{}_mask", name?))),
    };
    let (targets, documents) = (column("targets"), column("documents"));
    let mut lines = vec![Vec::new()];
    let padding = filled.map_or(0, |filled| filled.iter().filter(|filled| **filled == 0).count());
    let mut drawn = 0;
    for (at, &token) in tokens.iter().enumerate() {
        if filled.is_some_and(|filled| filled[at] == 0) {
            continue;
        }
        let ground = documents.map_or(at, |documents| documents[at] as usize) % 2;
        // Tokens that no prediction follows are grey.
        let colour = if targets.is_some_and(|targets| targets[at] < 0) { GREY } else { BLACK };
        let text = u32::try_from(token).map(decode).unwrap_or_default();
        for character in text.chars() {
            if lines.last().is_some_and(|line| line.len() >= WIDTH) {
                lines.push(Vec::new());
            }
            let shown = match character {
                '\n' => '\u{b6}',
                '\t' | '\r' => '\u{b7}',
                other => other,
            };
            if let Some(line) = lines.last_mut() {
                line.push((shown, colour, GROUNDS[ground]));
            }
        }
        if lines.len() > LINES {
            break;
        }
        drawn += 1;
    }
    lines.truncate(LINES);
    let mut note = format!("{} tokens", tokens.len() - padding);
    if drawn + padding < tokens.len() {
        note += &format!(", the first {drawn} shown");
    }
    if padding > 0 {
        note += &format!(", then {padding} of padding");
    }
    Some(TokenTile { lines, note })
}

impl TokenTile {
    /// Returns the text without its colours.
    pub(super) fn text(&self) -> String {
        self.lines.iter().flatten().map(|(character, ..)| character).collect()
    }

    pub(super) fn size(&self) -> (u32, u32) {
        let widest = self.lines.iter().map(Vec::len).max().unwrap_or(0) as u32;
        (widest * CHARACTER, self.lines.len() as u32 * LINE)
    }

    pub(super) fn draw(&self, canvas: &mut Canvas, (left, top): (u32, u32)) {
        for (row, line) in (0..).zip(&self.lines) {
            for (column, (character, colour, ground)) in (0..).zip(line) {
                let at = (left + column * CHARACTER, top + row * LINE);
                canvas.fill(at, (CHARACTER, LINE), *ground);
                canvas.character(at, *character, *colour);
            }
        }
    }
}
