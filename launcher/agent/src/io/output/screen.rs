//! The owner of the launcher's standard output and standard error.

use super::frame;
use super::message::Message;
use super::stream::{Chunk, FrameChange, Output, Source, Start, Stream};
use crate::io::thread;
use crossbeam_channel::{Receiver, Sender, never, select};
use dtrain_common::log_line::LogFormat;
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::BorrowedFd;

/// Chunks that may wait for the screen; if more come, the readers wait, and then the workers.
const WAITING_CHUNKS: usize = 32;
/// Columns assumed if the terminal reports no width.
const USUAL_WIDTH: usize = 80;
/// Moves to the first column and erases the line.
const ERASE: &[u8] = b"\r\x1b[2K";

/// The channels to the screen. Its thread ends after all senders are dropped and all text is written.
#[derive(Debug)]
pub struct Screen {
    pub chunks: Sender<Chunk>,
    pub notices: Sender<Message>,
    pub done: Receiver<()>,
}

impl Screen {
    /// Starts the thread that owns both streams; no other thread may write to them. `first` is written first.
    pub fn start(first: Vec<Message>, format: LogFormat) -> io::Result<Self> {
        let (chunks, chunks_in) = crossbeam_channel::bounded(WAITING_CHUNKS);
        let (notices, notices_in) = crossbeam_channel::unbounded();
        let (alive, done) = crossbeam_channel::bounded(0);
        thread::start("screen", move || {
            let mut writer = Writer::new(format);
            first.iter().for_each(|notice| writer.notice(notice));
            writer.run(chunks_in, notices_in);
            drop(alive);
        })?;
        Ok(Self { chunks, notices, done })
    }
}

/// Returns whether progress frames can be drawn: the stream is a terminal that can erase a line.
pub fn can_draw_frames(stream: Stream) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

struct Writer {
    format: LogFormat,
    /// Whether standard error shows colours.
    has_colours: bool,
    terminals: [bool; 2],
    /// Whether both streams are the same file.
    shared: bool,
    closed: [bool; 2],
    /// The source of the unfinished line on either stream; if both are one file, index 0 counts.
    open: [Option<Source>; 2],
    /// The visible progress frame and its source.
    frame: Option<(Source, Vec<u8>)>,
}

impl Writer {
    fn new(format: LogFormat) -> Self {
        Self {
            format,
            has_colours: Stream::Stderr.has_colours(),
            terminals: Stream::BOTH.map(Stream::is_terminal),
            shared: Stream::are_one(),
            closed: [false; 2],
            open: [None; 2],
            frame: None,
        }
    }

    fn run(mut self, mut chunks: Receiver<Chunk>, mut notices: Receiver<Message>) {
        let (mut more_chunks, mut more_notices) = (true, true);
        while more_chunks || more_notices {
            select! {
                recv(chunks) -> chunk => match chunk {
                    Ok(chunk) => self.chunk(chunk),
                    Err(_) => (more_chunks, chunks) = (false, never()),
                },
                recv(notices) -> notice => match notice {
                    Ok(notice) => {
                        // A notice about a worker follows the worker's earlier output.
                        for _ in 0..chunks.len() {
                            if let Ok(chunk) = chunks.try_recv() {
                                self.chunk(chunk);
                            }
                        }
                        self.notice(&notice);
                    }
                    Err(_) => (more_notices, notices) = (false, never()),
                },
            }
        }
        self.show(None);
    }

    fn notice(&mut self, notice: &Message) {
        let text = notice.render(self.format, self.has_colours);
        self.around_frame(Stream::Stderr, |writer| {
            writer.close_line(Stream::Stderr);
            writer.write(Stream::Stderr, text.as_bytes());
        });
    }

    fn chunk(&mut self, Chunk { source, output }: Chunk) {
        let Output { text, start, frame } = output;
        // A line replaces the frame of its source, as it would on a terminal.
        let is_replaced = match frame {
            FrameChange::Clear => true,
            FrameChange::Show(_) => !text.is_empty(),
            FrameChange::Keep => false,
        };
        if is_replaced && self.frame.as_ref().is_some_and(|(of, _)| *of == source) {
            self.show(None);
        }
        if !text.is_empty() {
            self.around_frame(source.stream, |writer| writer.text(source, &start, &text));
        }
        if let FrameChange::Show(text) = frame {
            self.show(Some((source, text)));
        }
    }

    fn text(&mut self, source: Source, start: &Start, text: &[u8]) {
        let stream = source.stream;
        let index = self.open_index(stream);
        match start {
            Start::Raw | Start::Continued(_) if self.open[index] == Some(source) => {}
            // Another source has ended the line since.
            Start::Continued(_) if matches!(text, b"\n" | b"\r\n") => return,
            Start::Continued(prefix) => {
                self.close_line(stream);
                self.write(stream, prefix);
            }
            Start::Raw | Start::Line => self.close_line(stream),
        }
        self.write(stream, text);
        self.open[index] = (!text.ends_with(b"\n")).then_some(source);
    }

    /// Ends the unfinished line of the stream.
    fn close_line(&mut self, stream: Stream) {
        let index = self.open_index(stream);
        if self.open[index].take().is_some() {
            self.write(stream, b"\n");
        }
    }

    /// Returns the index in `open` for a stream.
    fn open_index(&self, stream: Stream) -> usize {
        if self.shared { 0 } else { stream.index() }
    }

    /// Writes to a stream; erases a frame in the way before, and draws it again after.
    fn around_frame(&mut self, stream: Stream, write: impl FnOnce(&mut Self)) {
        let around = self.terminals[stream.index()];
        if around {
            self.erase_frame();
        }
        write(self);
        if around {
            self.draw();
        }
    }

    /// Replaces the visible frame by `frame`.
    fn show(&mut self, frame: Option<(Source, Vec<u8>)>) {
        self.erase_frame();
        if let Some((source, _)) = &frame {
            let index = self.open_index(source.stream);
            // The frame replaces its own unfinished line, but ends an unfinished line of another source.
            if self.open[index] == Some(*source) {
                self.open[index] = None;
                self.write(source.stream, ERASE);
            } else {
                self.close_line(source.stream);
            }
        }
        self.frame = frame;
        self.draw();
    }

    fn erase_frame(&mut self) {
        if let Some((source, _)) = &self.frame
            && self.open[self.open_index(source.stream)].is_none()
        {
            self.write(source.stream, ERASE);
        }
    }

    /// Draws the frame, unless a line is open there.
    fn draw(&mut self) {
        let Some((source, text)) = &self.frame else { return };
        let stream = source.stream;
        if self.open[self.open_index(stream)].is_some() {
            return;
        }
        let size = stream.with_fd(|fd| rustix::termios::tcgetwinsize(fd));
        let width = size.map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { USUAL_WIDTH } else { width };
        match frame::fit(text, width) {
            Some(fitted) => self.write(stream, &fitted),
            None => self.frame = None,
        }
    }

    /// Writes all of `bytes`, unless the reader has closed the stream (`dtrain ... | head`).
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        if self.closed[stream.index()] {
            return;
        }
        let written = stream.with_fd(|fd| write_all(fd, bytes));
        self.closed[stream.index()] = written.is_err();
        if let Err(error) = written
            && stream == Stream::Stdout
            && error != Errno::PIPE
        {
            self.notice(&Message::warning(format!(
                "dtrain: cannot write to standard output: {}; the run continues without showing standard output",
                io::Error::from(error)
            )));
        }
    }
}

/// Retries after interruptions, and if the pipe is full and another process has made it non-blocking.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => match rustix::event::poll(&mut [PollFd::new(&to, PollFlags::OUT)], None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            },
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
