//! A message of the launcher to the user.

use super::paint::{DIM, ERROR, GOOD, WARNING, paint};
use anstyle::Style;
use dtrain_common::log_line::{Level, LogFormat, LogLine};
use serde_json::{Map, Value};
use std::io::{self, Write};

/// The prefix of the launcher's lines.
const NAME: &str = "dtrain: ";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Plain,
    Good,
    Warning,
    Error,
}

/// A message for standard error, which may have several lines.
#[derive(Clone, Debug)]
pub struct Message {
    kind: Kind,
    text: String,
    fields: Map<String, Value>,
}

impl From<String> for Message {
    fn from(text: String) -> Self {
        Self::of(Kind::Plain, text)
    }
}

impl Message {
    fn of(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), fields: Map::new() }
    }

    pub fn good(text: impl Into<String>) -> Self {
        Self::of(Kind::Good, text)
    }

    pub fn warning(text: impl Into<String>) -> Self {
        Self::of(Kind::Warning, text)
    }

    pub fn error(text: impl Into<String>) -> Self {
        Self::of(Kind::Error, text)
    }

    #[must_use]
    pub fn with_fields(self, fields: Map<String, Value>) -> Self {
        Self { fields, ..self }
    }

    pub fn text(&self) -> &str {
        &self.text
    }

    /// Returns the message with its line feed.
    pub fn render(&self, format: LogFormat, has_colours: bool) -> String {
        match format {
            LogFormat::Json => {
                let level = match self.kind {
                    Kind::Plain | Kind::Good => Level::Info,
                    Kind::Warning => Level::Warn,
                    Kind::Error => Level::Error,
                };
                let lines: Vec<_> =
                    self.text.lines().map(|line| line.strip_prefix(NAME).unwrap_or(line)).collect();
                LogLine::now(level, lines.join("\n")).with_fields(self.fields.clone()).to_json()
            }
            LogFormat::Text if has_colours => {
                let style = match self.kind {
                    Kind::Plain => Style::new(),
                    Kind::Good => GOOD,
                    Kind::Warning => WARNING,
                    Kind::Error => ERROR,
                };
                let mut out: String = self
                    .text
                    .lines()
                    .enumerate()
                    .map(|(number, line)| coloured(line, number == 0, style))
                    .collect();
                if out.is_empty() {
                    out.push('\n');
                }
                out
            }
            LogFormat::Text => format!("{}\n", self.text),
        }
    }

    /// Writes the message to standard error, for a process without a [`Screen`](super::Screen). If standard error is closed, no
    /// message is possible.
    pub fn print(&self, format: LogFormat) {
        let _ = io::stderr().write_all(self.render(format, super::Stream::Stderr.has_colours()).as_bytes());
    }
}

/// Returns a line with a dim name. Its first words, up to a colon, have the style of the message if it is the first line.
fn coloured(line: &str, is_first: bool, style: Style) -> String {
    let (name, rest) = match line.strip_prefix(NAME) {
        Some(rest) => (paint(DIM, NAME.trim_end()) + " ", rest),
        None => (String::new(), line),
    };
    if !is_first || style == Style::new() {
        return format!("{name}{rest}\n");
    }
    let (head, rest) = rest.split_at(rest.find(": ").map_or(rest.len(), |at| at + 1));
    format!("{name}{}{rest}\n", paint(style, head))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_colours_or_is_one_object() {
        let notice = Message::error("dtrain: rank 1 failed: exit code 3\n  log: a.log");
        assert_eq!(
            notice.render(LogFormat::Text, false),
            "dtrain: rank 1 failed: exit code 3\n  log: a.log\n"
        );
        let coloured = notice.render(LogFormat::Text, true);
        assert_eq!(
            coloured,
            "\x1b[2mdtrain:\x1b[0m \x1b[1m\x1b[31mrank 1 failed:\x1b[0m exit code 3\n  log: a.log\n"
        );
        let json = notice.render(LogFormat::Json, true);
        let line = LogLine::parse(json.trim_end().as_bytes());
        let found = line.map(|line| (line.level, line.message.into_owned()));
        assert_eq!(found, Some((Level::Error, "rank 1 failed: exit code 3\n  log: a.log".into())));
        let plain = Message::from("dtrain: 2 workers".to_owned());
        assert_eq!(plain.render(LogFormat::Text, true), "\x1b[2mdtrain:\x1b[0m 2 workers\n");
    }
}
