//! What of one stream is shown, and when: whole lines at once, a begun line after a moment, and the frames of a progress bar
//! in place or now and then. No thread, stream or clock in it.

use super::split::{LONGEST_LINE, Piece, Splitter};
use super::stream::{FrameChange, Output, Start};
use std::time::{Duration, Instant};

/// A frame of a progress bar is shown as a line so often where it cannot be drawn in place.
const FRAME_PERIOD: Duration = Duration::from_secs(5);

/// How a stream is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Not at all.
    Hidden,
    /// Byte by byte as it comes, as without a launcher: nobody else writes to the same place, and it is no terminal.
    Raw,
    /// Line by line with the prefix, so that no other worker's line is torn.
    Lines {
        /// What becomes of the frames of progress bars.
        frames: Frames,
        /// So long is waited for the rest of a line that has begun.
        patience: Duration,
    },
}

/// What becomes of the frames of progress bars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frames {
    /// Drawn in place on a terminal.
    Drawn,
    /// Dropped, since another worker's are drawn.
    Dropped,
    /// One at a time as a line, where nothing can be drawn in place.
    Lines,
}

/// Turns the bytes of one stream into what is shown of them.
#[derive(Debug)]
pub(super) struct Presenter {
    splitter: Splitter,
    style: Style,
    prefix: Vec<u8>,
    /// Bytes of the begun line that are shown already.
    shown: usize,
    /// The newest frame that is to be shown as a line.
    frame: Option<Vec<u8>>,
    /// The last frame that was shown as a line, and when.
    last_frame: Option<(Vec<u8>, Instant)>,
    /// Since when something is held back.
    since: Option<Instant>,
}

impl Presenter {
    pub(super) fn new(style: Style, prefix: Vec<u8>) -> Self {
        Self {
            splitter: Splitter::new(LONGEST_LINE),
            style,
            prefix,
            shown: 0,
            frame: None,
            last_frame: None,
            since: None,
        }
    }

    /// Takes in `bytes`, or without them the end of the stream. `each` gets every whole line.
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
                each(line);
            }
        });
        (self.style == Style::Raw).then(|| Output::new(bytes.unwrap_or_default().to_vec(), Start::Raw))
    }

    fn lines(
        &mut self,
        frames: Frames,
        bytes: Option<&[u8]>,
        now: Instant,
        mut each: impl FnMut(&[u8]),
    ) -> Option<Output> {
        let mut output = Output::new(Vec::new(), Start::Line);
        self.splitter.take(bytes, &mut |piece| match piece {
            Piece::Line(line) => {
                each(line);
                output.frame = FrameChange::Clear;
                (self.frame, self.since) = (None, None);
                let shown = std::mem::take(&mut self.shown).min(line.len());
                if shown > 0 {
                    output.start = Start::Continued(self.prefix.clone());
                } else if self.last_frame.take().is_some_and(|(last, _)| last == line.trim_ascii_end()) {
                    return;
                } else {
                    output.text.extend_from_slice(&self.prefix);
                }
                output.text.extend_from_slice(&line[shown..]);
                if !line.ends_with(b"\n") {
                    output.text.push(b'\n');
                }
            }
            Piece::Frame(text) => {
                let already = std::mem::take(&mut self.shown) > 0;
                match frames {
                    Frames::Drawn => output.frame = FrameChange::Show(text.to_vec()),
                    Frames::Lines => self.frame = (!already).then(|| text.to_vec()),
                    Frames::Dropped => {}
                }
            }
        });
        if let Some(text) = self.splitter.frame_in_the_making() {
            match frames {
                Frames::Drawn => output.frame = FrameChange::Show(text.to_vec()),
                Frames::Lines => self.frame = Some(text.to_vec()),
                Frames::Dropped => {}
            }
        }
        let held = self.frame.is_some() || self.begun().is_some();
        self.since = held.then(|| self.since.unwrap_or(now));
        if bytes.is_none() {
            output.text.extend(self.frame_as_line(now).into_iter().flatten());
        }
        (!output.text.is_empty() || output.frame != FrameChange::Keep).then_some(output)
    }

    /// When [`Presenter::overdue`] is to be called, unless more comes before.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let Style::Lines { patience, .. } = self.style else {
            return None;
        };
        let waited = self.since? + patience;
        match &self.last_frame {
            Some((_, at)) if self.begun().is_none() => Some(waited.max(*at + FRAME_PERIOD)),
            _ => Some(waited),
        }
    }

    /// What has been held back until its deadline.
    pub(super) fn overdue(&mut self, now: Instant) -> Option<Output> {
        self.since = None;
        let (text, start) = match self.begun() {
            Some(rest) if self.shown > 0 => (rest.to_vec(), Start::Continued(self.prefix.clone())),
            Some(rest) => ([&self.prefix, rest].concat(), Start::Line),
            None => (self.frame_as_line(now)?, Start::Line),
        };
        self.shown = self.splitter.line_in_the_making().map_or(0, <[u8]>::len);
        Some(Output::new(text, start))
    }

    /// What of the line in the making is not shown yet.
    fn begun(&self) -> Option<&[u8]> {
        let rest = self.splitter.line_in_the_making()?.get(self.shown..)?;
        (!rest.is_empty()).then_some(rest)
    }

    /// The frame that is held back, as a line; none for a blank one, with which a program wipes its bar away.
    fn frame_as_line(&mut self, now: Instant) -> Option<Vec<u8>> {
        let frame = self.frame.take()?;
        let text = frame.trim_ascii_end();
        let known = self.last_frame.as_ref().is_some_and(|(last, _)| last == text);
        if text.is_empty() || known {
            return None;
        }
        let line = [&self.prefix, text, b"\n"].concat();
        self.last_frame = Some((text.to_vec(), now));
        Some(line)
    }
}

#[cfg(test)]
mod tests;
