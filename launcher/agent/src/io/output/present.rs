//! Which output of a stream is shown, and when: whole lines at once, unfinished lines after a moment, frames
//! of a progress bar in place or from time to time. Without threads, streams and clocks.

use super::form::Form;
use super::frame::split_bar;
use super::split::{LONGEST_LINE, Piece, Splitter, last_end};
use super::stream::{FrameChange, Output, Start};
use std::time::{Duration, Instant};

/// The shortest time between two frames shown as lines, if frames cannot be drawn in place.
const FRAME_PERIOD: Duration = Duration::from_secs(5);

/// The form in which a stream is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not shown.
    Hidden,
    /// Byte by byte, as without a launcher: no other stream of a worker is shown on the same output.
    Raw,
    /// As [`Style::Raw`], but in whole lines and frames, between those of the worker's other stream.
    Whole {
        /// The time to wait for the rest of an unfinished line or frame.
        line_timeout: Duration,
    },
    /// Line by line with the prefix, so that the lines of all workers stay whole.
    Lines {
        frames: FrameStyle,
        /// The time to wait for the rest of an unfinished line.
        line_timeout: Duration,
    },
}

/// How frames of progress bars are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameStyle {
    /// Drawn in place on a terminal.
    Drawn,
    /// Dropped, because another worker's frames are drawn.
    Dropped,
    /// One at a time as a line, if frames cannot be drawn in place.
    Lines,
}

/// Converts the bytes of one stream into the output to show.
#[derive(Debug)]
pub(super) struct Presenter {
    splitter: Splitter,
    style: Style,
    form: Form,
    /// Bytes of the unfinished line that are already shown.
    shown: usize,
    /// The unfinished line or frame of [`Style::Whole`].
    held: Vec<u8>,
    /// The newest frame that waits to be shown as a line.
    frame: Option<Vec<u8>>,
    /// The last frame that was shown as a line, if no line followed.
    last_frame: Option<Vec<u8>>,
    /// The time when a frame was last shown as a line.
    frame_shown: Option<Instant>,
    /// The time since which output is held back.
    since: Option<Instant>,
}

impl Presenter {
    pub(super) fn new(style: Style, form: Form) -> Self {
        Self {
            splitter: Splitter::new(LONGEST_LINE),
            style,
            form,
            shown: 0,
            held: Vec::new(),
            frame: None,
            last_frame: None,
            frame_shown: None,
            since: None,
        }
    }

    /// Takes `bytes`, or `None` at the end of the stream. `each` gets every whole line.
    pub(super) fn push(
        &mut self,
        bytes: Option<&[u8]>,
        now: Instant,
        mut each: impl FnMut(&[u8]),
    ) -> Option<Output> {
        if let Style::Lines { frames, .. } = self.style {
            return self.lines(frames, bytes, now, each);
        }
        self.splitter.take(bytes, &mut |piece| {
            if let Piece::Line(line) = piece {
                each(split_bar(line).1);
            }
        });
        match self.style {
            Style::Raw => Some(Output::new(bytes.unwrap_or_default().to_vec(), Start::Raw)),
            Style::Whole { .. } => self.whole(bytes, now),
            Style::Hidden | Style::Lines { .. } => None,
        }
    }

    /// Returns the bytes up to the end of the last line or frame, or at the end of the stream all.
    fn whole(&mut self, bytes: Option<&[u8]>, now: Instant) -> Option<Output> {
        self.held.extend_from_slice(bytes.unwrap_or_default());
        let end = match bytes {
            Some(_) if self.held.len() < LONGEST_LINE => last_end(&self.held),
            _ => Some(self.held.len()),
        };
        let text: Vec<u8> = self.held.drain(..end.unwrap_or(0)).collect();
        let since = if text.is_empty() { self.since } else { None };
        self.since = (!self.held.is_empty()).then(|| since.unwrap_or(now));
        (!text.is_empty()).then(|| Output::new(text, Start::Raw))
    }

    fn lines(
        &mut self,
        frames: FrameStyle,
        bytes: Option<&[u8]>,
        now: Instant,
        mut each: impl FnMut(&[u8]),
    ) -> Option<Output> {
        let mut output = Output::new(Vec::new(), Start::Line);
        self.splitter.take(bytes, &mut |piece| match piece {
            Piece::Line(line) => {
                let (bar, line) = split_bar(line);
                each(line);
                output.frame = FrameChange::Clear;
                (self.frame, self.since) = (None, None);
                match frames {
                    _ if bar.is_empty() => {}
                    FrameStyle::Drawn => output.frame = FrameChange::Show(bar.to_vec()),
                    FrameStyle::Lines => self.frame = Some(bar.to_vec()),
                    FrameStyle::Dropped => {}
                }
                let shown = std::mem::take(&mut self.shown).min(line.len());
                if shown > 0 {
                    output.start = Start::Continued(self.form.shown_prefix());
                    output.text.extend_from_slice(&line[shown..]);
                    if !line.ends_with(b"\n") {
                        output.text.push(b'\n');
                    }
                } else if self.last_frame.take().is_none_or(|last| last != line.trim_ascii_end()) {
                    output.text.extend(self.form.line(line).into_iter().flatten());
                }
            }
            Piece::Frame(text) => {
                let already = std::mem::take(&mut self.shown) > 0;
                match frames {
                    FrameStyle::Drawn => output.frame = FrameChange::Show(text.to_vec()),
                    FrameStyle::Lines => self.frame = (!already).then(|| text.to_vec()),
                    FrameStyle::Dropped => {}
                }
            }
        });
        if let Some(text) = self.splitter.unfinished_frame() {
            match frames {
                FrameStyle::Drawn => output.frame = FrameChange::Show(text.to_vec()),
                FrameStyle::Lines => self.frame = Some(text.to_vec()),
                FrameStyle::Dropped => {}
            }
        }
        let held = self.frame.is_some() || self.unfinished_text().is_some();
        self.since = held.then(|| self.since.unwrap_or(now));
        if bytes.is_none() {
            output.text.extend(self.frame_as_line(now).into_iter().flatten());
        }
        (!output.text.is_empty() || output.frame != FrameChange::Keep).then_some(output)
    }

    /// Returns the time to call [`Presenter::overdue`], unless more bytes come before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let (Style::Lines { line_timeout, .. } | Style::Whole { line_timeout }) = self.style else {
            return None;
        };
        let waited = self.since? + line_timeout;
        match self.frame_shown {
            Some(at) if self.unfinished_text().is_none() => Some(waited.max(at + FRAME_PERIOD)),
            _ => Some(waited),
        }
    }

    /// Returns the output that was held back until its deadline.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<Output> {
        self.since = None;
        if !self.held.is_empty() {
            return Some(Output::new(std::mem::take(&mut self.held), Start::Raw));
        }
        let (text, start) = match self.unfinished_text() {
            Some(rest) if self.shown > 0 => (rest.to_vec(), Start::Continued(self.form.shown_prefix())),
            Some(rest) => ([&self.form.shown_prefix(), rest].concat(), Start::Line),
            None => (self.frame_as_line(now)?, Start::Line),
        };
        self.shown = self.splitter.unfinished_line().map_or(0, <[u8]>::len);
        Some(Output::new(text, start))
    }

    /// Returns the part of the unfinished line that is not shown yet. An object is shown whole.
    fn unfinished_text(&self) -> Option<&[u8]> {
        if self.form.is_json() {
            return None;
        }
        let rest = self.splitter.unfinished_line()?.get(self.shown..)?;
        (!rest.is_empty()).then_some(rest)
    }

    /// Returns the held-back frame as a line; `None` for a blank frame, which erases a bar.
    fn frame_as_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        let frame = self.frame.take()?;
        let text = frame.trim_ascii_end();
        let known = self.last_frame.as_ref().is_some_and(|last| last == text);
        if text.is_empty() || known {
            return None;
        }
        let line = self.form.line(text)?;
        (self.last_frame, self.frame_shown) = (Some(text.to_vec()), Some(now));
        Some(line)
    }
}

#[cfg(test)]
mod tests;
