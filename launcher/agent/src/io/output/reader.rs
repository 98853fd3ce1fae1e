//! Reads one stream of one worker for its log file and the [`Screen`](super::Screen).

use super::present::{Presenter, Style};
use super::stream::Output;
use super::{Chunk, FailedLogs, LineFilter, RotatingLog, Source, Tail};
use crate::io::thread;
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::time::Instant;

/// Bytes read at a time; a pipe's usual capacity.
const READ_BYTES: usize = 64 * 1024;
/// The most bytes of a pipe without privileges, and so the most bytes to read after the stop.
const PIPE_BYTES: usize = 1 << 20;

/// A stream and the uses of its bytes.
pub struct Reader {
    pub source: Source,
    /// The read end of the stream's pipe.
    pub stream: File,
    pub style: Style,
    /// Put before every line on the screen.
    pub prefix: Vec<u8>,
    /// Gets every byte on arrival.
    pub log: Option<RotatingLog>,
    pub line_filter: Option<LineFilter>,
    pub tail: Option<Tail>,
    pub chunks: Sender<Chunk>,
    pub failed_logs: FailedLogs,
    /// Dropped at the end of the stream.
    pub _alive: Sender<()>,
}

impl Reader {
    /// Reads on a new thread until the stream ends. After the other end of `stop` is closed, reads only the
    /// bytes already in the pipe: a daemon left by a worker may hold the stream open for ever.
    pub fn start(mut self, stop: Arc<PipeReader>) -> io::Result<()> {
        let name = format!("read-{}-{}", self.source.rank, self.source.stream.name());
        thread::start(name, move || {
            let mut presenter = Presenter::new(self.style, self.prefix.clone());
            let mut buffer = vec![0; READ_BYTES];
            let mut left_after_stop = None;
            while left_after_stop != Some(0) {
                let until = match left_after_stop {
                    Some(_) => Some(Instant::now()),
                    None => presenter.deadline(),
                };
                match wait(&self.stream, &stop, left_after_stop.is_none(), until) {
                    Ready::Stop => left_after_stop = Some(PIPE_BYTES),
                    Ready::Nothing if left_after_stop.is_some() => break,
                    Ready::Nothing => self.show(presenter.overdue(Instant::now())),
                    Ready::Stream => match self.stream.read(&mut buffer) {
                        Ok(0) => break,
                        Ok(count) => {
                            self.pass_on(&mut presenter, Some(&buffer[..count]));
                            left_after_stop = left_after_stop.map(|left| left.saturating_sub(count));
                        }
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                        Err(_) => break,
                    },
                }
            }
            self.pass_on(&mut presenter, None);
        })
    }

    /// Passes on `bytes`, or at the end of the stream the rest.
    fn pass_on(&mut self, presenter: &mut Presenter, bytes: Option<&[u8]>) {
        self.log(bytes.unwrap_or_default());
        let mut caught = Vec::new();
        let output = presenter.push(bytes, Instant::now(), |line| {
            if let Some(tail) = &self.tail {
                tail.add(line);
            }
            if self.line_filter.as_ref().is_some_and(|line_filter| line_filter.matches(line)) {
                caught.extend_from_slice(&self.prefix);
                caught.extend_from_slice(line);
                if !line.ends_with(b"\n") {
                    caught.push(b'\n');
                }
            }
        });
        if let Some(line_filter) = self.line_filter.as_ref().filter(|_| !caught.is_empty())
            && let Err((path, error)) = line_filter.write(&caught)
        {
            self.failed_logs.add(&path, &error, "lines are shown but no longer copied there");
        }
        self.show(output);
    }

    fn show(&self, output: Option<Output>) {
        if let Some(output) = output {
            // Fails only if the screen was given up; the log is still written.
            let _ = self.chunks.send(Chunk { source: self.source, output });
        }
    }

    fn log(&mut self, bytes: &[u8]) {
        if let Some(log) = &mut self.log
            && let Err(error) = log.write(bytes)
        {
            let consequence = match self.style {
                Style::Hidden => "the rest of this output is lost",
                _ => "this output is shown but no longer logged",
            };
            self.failed_logs.add(&log.path, &error, consequence);
            self.log = None;
        }
    }
}

enum Ready {
    Stream,
    Stop,
    Nothing,
}

/// Blocks until the stream is readable, until `until`, or, if `stoppable`, until the stop.
fn wait(stream: &File, stop: &PipeReader, stoppable: bool, until: Option<Instant>) -> Ready {
    let readable = |flags: PollFlags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    let watched = if stoppable { 2 } else { 1 };
    loop {
        let mut both = [PollFd::new(stream, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut both[..watched], left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            // If polling fails for lack of memory, a plain read still works.
            Err(_) => return Ready::Stream,
            Ok(_) if readable(both[0].revents()) => return Ready::Stream,
            Ok(_) if stoppable && readable(both[1].revents()) => return Ready::Stop,
            Ok(_) => return Ready::Nothing,
        }
    }
}
