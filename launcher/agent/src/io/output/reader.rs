//! Reads the output of one worker for its log files and the [`Screen`](super::Screen).

use super::form::{Form, message_of};
use super::present::{Presenter, Style};
use super::stream::Output;
use super::{Chunk, FailedLogs, LineFilter, RotatingLog, Source, Tail};
use crate::io::thread;
use crossbeam_channel::Sender;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::fs::File;
use std::io::{self, PipeReader, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes read at a time; a pipe's usual capacity.
const READ_BYTES: usize = 64 * 1024;
/// The most bytes of a pipe without privileges, and so the most bytes to read after the stop.
const PIPE_BYTES: usize = 1 << 20;
/// The longest time between two calls of [`Input::follow`].
const FOLLOW_PERIOD: Duration = Duration::from_millis(250);

/// The wait after a failed call of poll.
const POLL_AGAIN: Duration = Duration::from_millis(10);

/// The streams of a worker and the uses of their bytes.
pub struct Reader {
    /// Standard output before standard error, or both as one.
    pub inputs: Vec<Input>,
    pub chunks: Sender<Chunk>,
    pub failed_logs: FailedLogs,
    /// Dropped at the end of the streams.
    pub _alive: Sender<()>,
}

/// A stream, and the uses of its bytes.
pub struct Input {
    pub source: Source,
    /// The launcher's end of the stream's pipe or terminal.
    pub stream: File,
    pub style: Style,
    /// What its lines look like on the screen.
    pub form: Form,
    /// Gets every byte on arrival.
    pub log: Option<RotatingLog>,
    pub line_filter: Option<LineFilter>,
    pub tail: Option<Tail>,
    /// Called from time to time, and before bytes are shown.
    pub follow: Option<Box<dyn FnMut() + Send>>,
}

impl Reader {
    /// Reads on a new thread until the streams end. After the other end of `stop` is closed, reads only the bytes
    /// that are there: a daemon left by a worker may hold a stream open for ever.
    ///
    /// Bytes of a worker's standard output are never shown after later bytes of its standard error.
    pub fn start(self, stop: Arc<PipeReader>) -> io::Result<()> {
        let rank = self.inputs.first().map_or(0, |input| input.source.rank);
        thread::start(format!("read-{rank}"), move || self.run(&stop))
    }

    fn run(self, stop: &PipeReader) {
        let mut lanes: Vec<_> = self.inputs.into_iter().map(Lane::new).collect();
        let mut left_after_stop = None;
        while !lanes.is_empty() && left_after_stop != Some(0) {
            let until = match left_after_stop {
                Some(_) => Some(Instant::now()),
                None => lanes.iter().filter_map(Lane::deadline).min(),
            };
            let ready = wait(&lanes, left_after_stop.is_none().then_some(stop), until);
            lanes.iter_mut().for_each(Lane::follow);
            let outputs = match ready {
                Ready::Stop => {
                    left_after_stop = Some(PIPE_BYTES * lanes.len());
                    continue;
                }
                Ready::Nothing if left_after_stop.is_some() => break,
                Ready::Nothing => lanes.iter_mut().map(Lane::overdue).collect(),
                Ready::Streams(readable) => {
                    let counts = read(&mut lanes, &readable);
                    let sum: usize = counts.iter().flatten().sum();
                    left_after_stop = left_after_stop.map(|left: usize| left.saturating_sub(sum));
                    let lanes = lanes.iter_mut().zip(counts);
                    lanes.map(|(lane, count)| lane.pass_on(count?, &self.failed_logs)).collect()
                }
            };
            show(&self.chunks, &lanes, outputs);
            lanes.retain(|lane| !lane.has_ended);
        }
        let outputs = lanes.iter_mut().map(|lane| lane.pass_on(0, &self.failed_logs)).collect();
        show(&self.chunks, &lanes, outputs);
    }
}

fn show(chunks: &Sender<Chunk>, lanes: &[Lane], outputs: Vec<Option<Output>>) {
    for (lane, output) in lanes.iter().zip(outputs) {
        if let Some(output) = output {
            // Fails only if the screen was given up; the log is still written.
            let _ = chunks.send(Chunk { source: lane.input.source, output });
        }
    }
}

/// Reads all readable streams, the last first: then the earlier ones have all that was written before.
fn read(lanes: &mut [Lane], readable: &[bool]) -> Vec<Option<usize>> {
    let mut counts = vec![None; lanes.len()];
    let mut has_read = false;
    for index in (0..lanes.len()).rev() {
        let lane = &mut lanes[index];
        if readable[index] || has_read && lane.is_readable() {
            counts[index] = lane.read();
            has_read = true;
        }
    }
    counts
}

/// A stream that is being read.
struct Lane {
    input: Input,
    presenter: Presenter,
    buffer: Vec<u8>,
    follow_at: Option<Instant>,
    has_ended: bool,
}

impl Lane {
    fn new(input: Input) -> Self {
        Self {
            presenter: Presenter::new(input.style, input.form.clone()),
            buffer: vec![0; READ_BYTES],
            follow_at: input.follow.is_some().then(Instant::now),
            has_ended: false,
            input,
        }
    }

    fn deadline(&self) -> Option<Instant> {
        [self.presenter.deadline(), self.follow_at].into_iter().flatten().min()
    }

    fn follow(&mut self) {
        if let Some(follow) = &mut self.input.follow {
            follow();
            self.follow_at = Some(Instant::now() + FOLLOW_PERIOD);
        }
    }

    fn is_readable(&self) -> bool {
        let now = Some(Instant::now());
        matches!(wait(std::slice::from_ref(self), None, now), Ready::Streams(_))
    }

    /// Returns the number of bytes read, 0 at the end; `None` if interrupted.
    fn read(&mut self) -> Option<usize> {
        match self.input.stream.read(&mut self.buffer) {
            Ok(count) => Some(count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => None,
            // A terminal whose other end is closed fails.
            Err(_) => Some(0),
        }
    }

    /// Returns the output that was held back until now.
    fn overdue(&mut self) -> Option<Output> {
        let now = Instant::now();
        self.presenter.deadline().filter(|deadline| *deadline <= now)?;
        self.presenter.overdue(now)
    }

    /// Passes on this number of bytes that were read, 0 at the end of the stream. Returns the output to show.
    fn pass_on(&mut self, count: usize, failed_logs: &FailedLogs) -> Option<Output> {
        self.has_ended = count == 0;
        let Self { input, presenter, buffer, .. } = self;
        let bytes = &buffer[..count];
        if let Some(log) = &mut input.log
            && let Err(error) = log.write(bytes)
        {
            let consequence = match input.style {
                Style::Hidden => "the rest of this output is lost",
                _ => "this output is shown but no longer logged",
            };
            failed_logs.add(&log.path, &error, consequence);
            input.log = None;
        }
        let mut caught = Vec::new();
        let output = presenter.push((count > 0).then_some(bytes), Instant::now(), |line| {
            if let Some(tail) = &input.tail {
                tail.add(&message_of(line));
            }
            if input.line_filter.as_ref().is_some_and(|line_filter| line_filter.matches(line)) {
                caught.extend_from_slice(&input.form.prefix);
                caught.extend_from_slice(line);
                if !line.ends_with(b"\n") {
                    caught.push(b'\n');
                }
            }
        });
        if let Some(line_filter) = input.line_filter.as_ref().filter(|_| !caught.is_empty())
            && let Err((path, error)) = line_filter.write(&caught)
        {
            failed_logs.add(&path, &error, "lines are shown but no longer copied there");
        }
        output
    }
}

enum Ready {
    /// By lane.
    Streams(Vec<bool>),
    Stop,
    Nothing,
}

/// Blocks until a stream is readable, until `until`, or until `stop`.
fn wait(lanes: &[Lane], stop: Option<&PipeReader>, until: Option<Instant>) -> Ready {
    let readable = |fd: &PollFd<'_>| fd.revents().intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    let streams = lanes.iter().map(|lane| PollFd::new(&lane.input.stream, PollFlags::IN));
    let mut watched: Vec<_> = streams.chain(stop.map(|stop| PollFd::new(stop, PollFlags::IN))).collect();
    loop {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        match rustix::event::poll(&mut watched, left.as_ref()) {
            Err(rustix::io::Errno::INTR) => {}
            // The system has no memory for the call at the moment.
            Err(_) => std::thread::sleep(POLL_AGAIN),
            Ok(_) => {
                let ready: Vec<_> = watched.iter().map(readable).collect();
                let streams = ready[..lanes.len()].to_vec();
                return match ready {
                    _ if streams.contains(&true) => Ready::Streams(streams),
                    ready if ready.contains(&true) => Ready::Stop,
                    _ => Ready::Nothing,
                };
            }
        }
    }
}
