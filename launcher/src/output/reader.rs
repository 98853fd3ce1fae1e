//! Reading one stream of one worker: whole lines go to the log file and to the [`Screen`](super::Screen).

use super::split::{LONGEST_LINE, Piece, Splitter};
use super::tail::Tail;
use super::{Chunk, FrameChange, RotatingLog, Sieve, Source, Unkept};
use crate::process::SMALL_STACK;
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::sync::Arc;

/// Bytes read at a time; a pipe's usual capacity.
const READ_BYTES: usize = 64 * 1024;
/// The most that a pipe can hold without privileges: what may still be read after the stop.
const PIPE_BYTES: usize = 1 << 20;

/// What to do with a stream.
pub(crate) struct Reader {
    pub(crate) source: Source,
    pub(crate) stream: File,
    /// Whether it goes to the screen at all.
    pub(crate) shown: bool,
    /// Put before every line on the screen.
    pub(crate) prefix: Vec<u8>,
    /// Whether a last line without an end gets one on the screen.
    pub(crate) end_last_line: bool,
    /// Whether progress frames are passed on.
    pub(crate) frames: bool,
    /// Gets every line, byte by byte.
    pub(crate) log: Option<RotatingLog>,
    /// Gets some of the lines, as the screen does.
    pub(crate) sieve: Option<Sieve>,
    pub(crate) tail: Option<Tail>,
    pub(crate) chunks: Sender<Chunk>,
    pub(crate) unkept: Unkept,
    /// Dropped when the stream has been read to its end.
    pub(crate) _alive: Sender<()>,
}

impl Reader {
    /// Reads on a thread of its own until the stream ends. When the other end of `stop` is closed, it reads only
    /// what is in the pipe already: a daemon that a worker left behind may hold the stream open for ever.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(crate) fn start(mut self, stop: Arc<PipeReader>) -> io::Result<()> {
        let name = format!("read-{}-{}", self.source.rank, self.source.stream.name());
        std::thread::Builder::new()
            .name(name)
            .stack_size(SMALL_STACK)
            .spawn(move || {
                let mut splitter = Splitter::new(LONGEST_LINE);
                let mut buffer = vec![0; READ_BYTES];
                let mut left_after_stop = None;
                while left_after_stop != Some(0) {
                    match wait(&self.stream, &stop, left_after_stop.is_some()) {
                        Ready::Stop => left_after_stop = Some(PIPE_BYTES),
                        Ready::Nothing => break,
                        Ready::Stream => match self.stream.read(&mut buffer) {
                            Ok(0) => break,
                            Ok(count) => {
                                self.pass_on(&mut splitter, Some(&buffer[..count]));
                                left_after_stop = left_after_stop.map(|left| left.saturating_sub(count));
                            }
                            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                            Err(_) => break,
                        },
                    }
                }
                self.pass_on(&mut splitter, None);
            })?;
        Ok(())
    }

    /// Cuts up `bytes`, or what is left at the end of the stream, and passes it on.
    fn pass_on(&mut self, splitter: &mut Splitter, bytes: Option<&[u8]>) {
        let (mut screen, mut logged, mut caught) = (Vec::new(), Vec::new(), Vec::new());
        let mut frame = FrameChange::Keep;
        let frames = self.frames && self.shown;
        // Where the screen gets the lines exactly as they are, one copy serves both.
        let as_they_are = self.shown && self.prefix.is_empty() && !self.end_last_line;
        {
            let (prefix, end_last_line, shown) = (&self.prefix, self.end_last_line, self.shown);
            let keep_log = self.log.is_some() && !as_they_are;
            let sieve = self.sieve.as_ref();
            let mut tail = self.tail.as_ref().map(Tail::adding);
            let mut each = |piece: Piece<'_>| match piece {
                Piece::Line(line) => {
                    if shown {
                        screen.extend_from_slice(prefix);
                        screen.extend_from_slice(line);
                        if end_last_line && !line.ends_with(b"\n") {
                            screen.push(b'\n');
                        }
                    }
                    if keep_log {
                        logged.extend_from_slice(line);
                    }
                    if sieve.is_some_and(|sieve| sieve.catches(line)) {
                        caught.extend_from_slice(prefix);
                        caught.extend_from_slice(line);
                        if !line.ends_with(b"\n") {
                            caught.push(b'\n');
                        }
                    }
                    if let Some(tail) = &mut tail {
                        tail.add(line);
                    }
                    frame = FrameChange::Clear;
                }
                Piece::Frame(text) if frames => frame = FrameChange::Show(text.to_vec()),
                Piece::Frame(_) => {}
            };
            match bytes {
                Some(bytes) => splitter.push(bytes, &mut each),
                None => splitter.finish(&mut each),
            }
            if frames && let Some(text) = splitter.frame_in_the_making() {
                frame = FrameChange::Show(text.to_vec());
            }
        }
        self.keep(if as_they_are { &screen } else { &logged }, &caught);
        if !frames {
            frame = FrameChange::Keep;
        }
        if !screen.is_empty() || frame != FrameChange::Keep {
            // It fails only when the screen has been given up; the log goes on.
            let _ = self.chunks.send(Chunk {
                source: self.source,
                lines: screen,
                frame,
            });
        }
    }

    /// Writes lines to the log, and those that were caught to the log of such.
    fn keep(&mut self, lines: &[u8], caught: &[u8]) {
        if let Some(log) = &mut self.log
            && let Err(error) = log.write(lines)
        {
            let consequence = if self.shown {
                "its output is shown but no longer kept"
            } else {
                "the rest of its output is neither kept nor shown"
            };
            self.unkept.add(log.path(), &error, consequence);
            self.log = None;
        }
        if !caught.is_empty()
            && let Some(Err((path, error))) = self.sieve.as_ref().map(|sieve| sieve.keep(caught))
        {
            self.unkept
                .add(&path, &error, "lines are shown but no longer copied there");
        }
    }
}

enum Ready {
    Stream,
    Stop,
    Nothing,
}

/// Blocks until there is something to read or the stop; after the stop it does not block.
fn wait(stream: &File, stop: &PipeReader, stopped: bool) -> Ready {
    let readable = |flags: PollFlags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    loop {
        let mut both = [
            PollFd::new(stream, PollFlags::IN),
            PollFd::new(stop, PollFlags::IN),
        ];
        let polled = if stopped {
            rustix::event::poll(
                &mut both[..1],
                Some(&Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                }),
            )
        } else {
            rustix::event::poll(&mut both, None)
        };
        match polled {
            Err(rustix::io::Errno::INTR) => {}
            // Without memory for polling, a plain read still works.
            Err(_) => return Ready::Stream,
            Ok(_) if readable(both[0].revents()) => return Ready::Stream,
            Ok(_) if !stopped && readable(both[1].revents()) => return Ready::Stop,
            Ok(_) => return Ready::Nothing,
        }
    }
}
