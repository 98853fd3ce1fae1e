//! Colours of the launcher's lines on a terminal.

use anstyle::{AnsiColor, Style};
use std::borrow::Cow;

pub const DIM: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default().bold();
pub const WARNING: Style = AnsiColor::Yellow.on_default().bold();
pub const ERROR: Style = AnsiColor::Red.on_default().bold();

/// Returns the text with escape codes, for a stream that shows them.
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}

pub(super) fn painted(style: Style, text: &[u8]) -> Vec<u8> {
    [style.render().to_string().as_bytes(), text, style.render_reset().to_string().as_bytes()].concat()
}

/// The first word of a warning or an error.
#[derive(Clone, Copy, Debug)]
pub(super) enum Label {
    Warning,
    Error,
}

impl Label {
    fn text(self) -> &'static [u8] {
        match self {
            Self::Warning => b"warning: ",
            Self::Error => b"error: ",
        }
    }

    fn style(self) -> Style {
        match self {
            Self::Warning => WARNING,
            Self::Error => ERROR,
        }
    }

    /// Returns the text after the label, if the line has it.
    pub(super) fn strip(self, line: &[u8]) -> Option<&[u8]> {
        line.strip_prefix(self.text())
    }

    /// Returns the line with its label in colour, if it has one.
    pub(super) fn paint(line: &[u8]) -> Cow<'_, [u8]> {
        let labelled = |label: Self| Some((label, label.strip(line)?));
        match [Self::Warning, Self::Error].into_iter().find_map(labelled) {
            Some((label, rest)) => {
                Cow::Owned([&painted(label.style(), label.text().trim_ascii_end()), &b" "[..], rest].concat())
            }
            None => Cow::Borrowed(line),
        }
    }
}
