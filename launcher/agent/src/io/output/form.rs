//! What a worker's line looks like on the screen: with prefix and colours, or as a JSON object. Repeated warnings of
//! dtrain's trainer are left out.

use super::Stream;
use super::paint::{DIM, Label, painted};
use super::warnings::{Seen, Warnings};
use dtrain_common::log_line::{Level, LogFormat, LogLine};
use std::borrow::Cow;

/// The form of the lines of one stream of a worker.
#[derive(Clone, Debug, Default)]
pub struct Form {
    /// Put before every line of text.
    pub prefix: Vec<u8>,
    pub format: LogFormat,
    /// Whether the launcher's stream shows colours.
    pub has_colours: bool,
    /// For dtrain's trainer: the warnings of the whole launch. The lines of a program stay as they are.
    pub warnings: Option<Warnings>,
    /// The rank among all workers, and the stream.
    pub rank: usize,
    pub stream: Option<Stream>,
}

impl Form {
    pub fn of_text(prefix: impl Into<Vec<u8>>) -> Self {
        Self { prefix: prefix.into(), ..Self::default() }
    }

    pub(super) fn is_json(&self) -> bool {
        self.format == LogFormat::Json
    }

    /// Returns the prefix for the screen.
    pub(super) fn shown_prefix(&self) -> Vec<u8> {
        match self.has_colours && !self.prefix.is_empty() {
            true => painted(DIM, &self.prefix),
            false => self.prefix.clone(),
        }
    }

    /// Returns the text for the screen of a whole line, which may lack its line feed. `None` for a warning that the user
    /// has already seen.
    pub(super) fn line(&self, line: &[u8]) -> Option<Vec<u8>> {
        let text = line.trim_ascii_end();
        let own = self.is_json().then(|| LogLine::parse(text)).flatten();
        if let Some(warnings) = &self.warnings {
            let warning = match &own {
                Some(own) => (own.level == Level::Warn).then_some(own.message.as_bytes()),
                None => Label::Warning.strip(text),
            };
            if warnings.see(self.rank, warning, text) == Seen::Before {
                return None;
            }
        }
        Some(match (own, self.is_json()) {
            (Some(_), _) => [text, b"\n"].concat(),
            (None, true) => self.wrapped(text).into_bytes(),
            (None, false) => {
                let end: &[u8] = if line.ends_with(b"\n") { b"" } else { b"\n" };
                let labels = self.has_colours && self.warnings.is_some();
                let line = if labels { Label::paint(line) } else { Cow::Borrowed(line) };
                [&self.shown_prefix(), line.as_ref(), end].concat()
            }
        })
    }

    /// Returns the line as an object.
    fn wrapped(&self, text: &[u8]) -> String {
        let stream = self.stream.map(|stream| stream.name().into());
        let line = LogLine::now(Level::Info, String::from_utf8_lossy(text)).of_rank(self.rank);
        LogLine { stream, ..line }.to_json()
    }
}

/// Returns the message of a worker's line, which may be an object.
pub(super) fn message_of(line: &[u8]) -> Cow<'_, [u8]> {
    match LogLine::parse(line.trim_ascii_end()) {
        Some(own) if own.level == Level::Info => Cow::Owned(own.message.into_owned().into_bytes()),
        Some(own) => Cow::Owned(format!("{}: {}", own.level.word(), own.message).into_bytes()),
        None => Cow::Borrowed(line),
    }
}
