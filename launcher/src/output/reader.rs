//! Reading one stream of one worker: whole lines go to the log file and to the [`Screen`](super::Screen).

use super::split::{LONGEST_LINE, Piece, Splitter};
use super::tail::Tail;
use super::{Chunk, FrameChange, Source};
use crate::process::SMALL_STACK;
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;

/// Bytes read at a time; a pipe's usual capacity.
const READ_BYTES: usize = 64 * 1024;
/// The most that a pipe can hold without privileges: what may still be read after the stop.
const PIPE_BYTES: usize = 1 << 20;

/// A file that gets every line of the stream, byte by byte.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
}

/// What to do with a stream.
pub(crate) struct Reader {
    pub(crate) source: Source,
    pub(crate) stream: File,
    /// Put before every line.
    pub(crate) prefix: Vec<u8>,
    /// Whether a last line without an end gets one on the screen.
    pub(crate) end_last_line: bool,
    /// Whether progress frames are passed on.
    pub(crate) frames: bool,
    pub(crate) log: Option<Log>,
    pub(crate) tail: Option<Tail>,
    pub(crate) chunks: Sender<Chunk>,
    pub(crate) notices: Sender<String>,
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
        let (mut screen, mut logged) = (Vec::new(), Vec::new());
        let mut frame = FrameChange::Keep;
        {
            let (prefix, end_last_line, frames) = (&self.prefix, self.end_last_line, self.frames);
            let keep_log = self.log.is_some() && (end_last_line || !prefix.is_empty());
            let mut tail = self.tail.as_ref().map(Tail::adding);
            let mut each = |piece: Piece<'_>| match piece {
                Piece::Line(line) => {
                    screen.extend_from_slice(prefix);
                    screen.extend_from_slice(line);
                    if end_last_line && !line.ends_with(b"\n") {
                        screen.push(b'\n');
                    }
                    if keep_log {
                        logged.extend_from_slice(line);
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
        // Where the screen gets the lines exactly as they are, one copy serves both.
        let for_log = if logged.is_empty() { &screen } else { &logged };
        if let Some(log) = &mut self.log
            && let Err(error) = log.file.write_all(for_log)
        {
            let path = log.path.display();
            let _ = self.notices.send(format!(
                "dtrain: cannot write {path}: {error}; its output is shown but no longer kept"
            ));
            self.log = None;
        }
        if !self.frames {
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
