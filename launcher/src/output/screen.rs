//! The owner of the launcher's standard output and standard error.

use super::{Chunk, FrameChange, Source, Stream, frame};
use crossbeam_channel::{Receiver, Sender, never, select};
use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, BorrowedFd};

/// Chunks that may wait for the screen; then the readers wait, and with full pipes the workers.
const WAITING_CHUNKS: usize = 32;
/// Columns assumed where the terminal does not tell.
const USUAL_WIDTH: usize = 80;
/// Moves to the first column and erases the line.
const ERASE: &[u8] = b"\r\x1b[2K";

/// The way to the screen. Clones of `chunks` are for the readers, of `notices` for the launcher's own lines; the
/// thread ends when all of them are gone and everything is written, and `done` then disconnects.
#[derive(Debug)]
pub(crate) struct Screen {
    pub(crate) chunks: Sender<Chunk>,
    pub(crate) notices: Sender<String>,
    pub(crate) done: Receiver<()>,
}

impl Screen {
    /// Starts the thread that owns both streams. Nobody else may write to them from here on. `first` is the notice
    /// that stands before everything else.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(first: String) -> io::Result<Self> {
        let (chunks, chunks_in) = crossbeam_channel::bounded(WAITING_CHUNKS);
        let (notices, notices_in) = crossbeam_channel::unbounded();
        let (alive, done) = crossbeam_channel::bounded(0);
        std::thread::Builder::new()
            .name("screen".to_owned())
            .spawn(move || {
                let mut writer = Writer::new();
                writer.notice(&first);
                writer.run(chunks_in, notices_in);
                drop(alive);
            })?;
        Ok(Self {
            chunks,
            notices,
            done,
        })
    }
}

/// Whether progress frames can be shown: standard error is a terminal that can erase a line.
pub(crate) fn shows_frames() -> bool {
    io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

struct Writer {
    stdout_is_terminal: bool,
    stdout_closed: bool,
    stderr_closed: bool,
    /// The progress frame on show, and whose it is.
    frame: Option<(Source, Vec<u8>)>,
}

impl Writer {
    fn new() -> Self {
        let stdout_is_terminal = io::stdout().is_terminal();
        Self {
            stdout_is_terminal,
            stdout_closed: false,
            stderr_closed: false,
            frame: None,
        }
    }

    fn run(mut self, mut chunks: Receiver<Chunk>, mut notices: Receiver<String>) {
        let (mut more_chunks, mut more_notices) = (true, true);
        while more_chunks || more_notices {
            select! {
                recv(chunks) -> chunk => match chunk {
                    Ok(chunk) => self.chunk(chunk),
                    Err(_) => (more_chunks, chunks) = (false, never()),
                },
                recv(notices) -> notice => match notice {
                    Ok(notice) => {
                        // A notice about what a worker did comes after what the worker wrote before.
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

    fn notice(&mut self, notice: &str) {
        self.lines(Stream::Stderr, format!("{notice}\n").as_bytes());
    }

    fn chunk(&mut self, chunk: Chunk) {
        let own_frame = self
            .frame
            .as_ref()
            .is_some_and(|(source, _)| *source == chunk.source);
        match chunk.frame {
            // The line takes the place of the frame, as it would on a terminal.
            FrameChange::Clear if own_frame => self.show(None),
            FrameChange::Show(_) if own_frame && !chunk.lines.is_empty() => self.show(None),
            _ => {}
        }
        self.lines(chunk.source.stream, &chunk.lines);
        if let FrameChange::Show(text) = chunk.frame {
            self.show(Some((chunk.source, text)));
        }
    }

    /// Writes whole lines, around the frame.
    fn lines(&mut self, stream: Stream, lines: &[u8]) {
        if lines.is_empty() {
            return;
        }
        let around = self.frame.is_some() && (stream == Stream::Stderr || self.stdout_is_terminal);
        if around {
            self.write(Stream::Stderr, ERASE);
        }
        self.write(stream, lines);
        if around {
            self.draw();
        }
    }

    /// Puts `frame` in the place of the one on show.
    fn show(&mut self, frame: Option<(Source, Vec<u8>)>) {
        if self.frame.is_some() {
            self.write(Stream::Stderr, ERASE);
        }
        self.frame = frame;
        self.draw();
    }

    fn draw(&mut self) {
        let Some((_, text)) = &self.frame else { return };
        let width = rustix::termios::tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
        let width = if width == 0 { USUAL_WIDTH } else { width };
        match frame::fit(text, width) {
            Some(fitted) => self.write(Stream::Stderr, &fitted),
            None => self.frame = None,
        }
    }

    /// Writes all of `bytes`, unless the stream has been closed by its reader (`dtrain ... | head`): the run goes
    /// on then without it.
    fn write(&mut self, stream: Stream, bytes: &[u8]) {
        let result = match stream {
            Stream::Stdout if self.stdout_closed => return,
            Stream::Stderr if self.stderr_closed => return,
            Stream::Stdout => write_all(io::stdout().as_fd(), bytes),
            Stream::Stderr => write_all(io::stderr().as_fd(), bytes),
        };
        match (stream, result) {
            (_, Ok(())) => {}
            (Stream::Stdout, Err(error)) => {
                self.stdout_closed = true;
                if error != Errno::PIPE {
                    let reason = io::Error::from(error);
                    let told = format!(
                        "dtrain: cannot write to standard output: {reason}; the run goes on, and what the workers \
                         print there is no longer shown\n"
                    );
                    self.lines(Stream::Stderr, told.as_bytes());
                }
            }
            (Stream::Stderr, Err(_)) => self.stderr_closed = true,
        }
    }
}

/// Writes past interruptions, and past a full pipe that another process has made non-blocking.
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
