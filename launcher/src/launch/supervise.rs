//! The driver: carries out what the agent decides and tells it what happens.
//!
//! One thread per worker waits for its end, two read its output, one receives signals; all of them feed one channel.
//! This, the main thread, blocks on that channel and never on the screen, so that a reader of the output who has
//! stopped reading delays no decision.

use super::Begun;
use super::files::{Files, WorkerLogs};
use super::report;
use crate::agent::{Action, Agent, Event, Policy, SAME_REQUEST, Verdict};
use crate::output::{Chunk, Log, Reader, Screen, Source, Stream, Tail, shows_frames};
use crate::process::{Streams, Worker, WorkerSpec, signals};
use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IsTerminal, PipeReader};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What to supervise.
pub(super) struct Job<'a> {
    /// By rank.
    pub(super) specs: Vec<WorkerSpec>,
    pub(super) files: &'a Files,
    pub(super) begun: Begun,
    pub(super) shutdown_timeout: Duration,
    pub(super) requeue_code: Option<i32>,
    /// The signals that are handled.
    pub(super) signals: Vec<i32>,
}

/// A run that is over; some of its output may still wait for the screen.
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// Process ids by rank; none for a worker that was never started.
    pub(super) pids: Vec<Option<u32>>,
    /// The last lines of standard error by rank.
    pub(super) tails: Vec<Tail>,
    /// The worker that could not be started, and why.
    pub(super) not_started: Option<(usize, io::Error)>,
    events: Receiver<Event>,
    /// The user does not want to wait for the screen.
    given_up: bool,
}

/// Starts the workers of `job` and stays with them until the last has ended and its output has been read.
///
/// # Errors
/// The launcher's own threads, pipes or log files cannot be made; nothing has been started then.
pub(super) fn supervise(job: Job<'_>, screen: &Screen) -> anyhow::Result<Run> {
    let workers = job.specs.len();
    let logs: Vec<_> = (0..workers)
        .map(|rank| job.files.open_logs(rank))
        .collect::<Result<_, _>>()?;
    let (events_out, events) = crossbeam_channel::unbounded();
    let signals_out = events_out.clone();
    signals::listen(&job.signals, move |signal| {
        let event = if signals::STOP.contains(&signal) {
            Event::Stop { signal }
        } else {
            Event::Forward { signal }
        };
        // Fails only when the run is over, and then the signal is for nobody.
        let _ = signals_out.send(event);
    })
    .context("cannot receive signals")?;
    let (stop, stop_out) = io::pipe().context("cannot make a pipe")?;
    let (alive, readers_done) = crossbeam_channel::bounded(0);
    let mut group = Group {
        begun: job.begun,
        specs: job.specs,
        logs: logs.into_iter().map(Some).collect(),
        workers: (0..workers).map(|_| None).collect(),
        tails: (0..workers).map(|_| Tail::default()).collect(),
        not_started: None,
        events: events_out,
        capture: Capture {
            several: workers > 1,
            frames: shows_frames(),
            chunks: screen.chunks.clone(),
            notices: screen.notices.clone(),
            stop: Arc::new(stop),
            alive,
        },
    };

    let policy = Policy {
        workers,
        shutdown_timeout: job.shutdown_timeout,
        requeue_code: job.requeue_code,
    };
    let mut agent = Agent::new(policy);
    let mut actions = VecDeque::from(agent.begin());
    let verdict = loop {
        let event = match actions.pop_front() {
            Some(Action::Finish(verdict)) => break verdict,
            Some(Action::Start { rank }) => group.start(rank),
            Some(Action::Signal { rank, signal }) => {
                group.signal(rank, signal);
                continue;
            }
            Some(Action::Tell(notice)) => {
                if let Some(text) = report::notice(&notice, workers, job.shutdown_timeout) {
                    let _ = screen.notices.send(text);
                }
                continue;
            }
            Some(Action::Sweep) => {
                group.sweep();
                continue;
            }
            None => next_event(
                &events,
                agent
                    .deadline()
                    .and_then(|deadline| job.begun.at.checked_add(deadline)),
            ),
        };
        actions.extend(agent.on(&event, job.begun.elapsed()));
    };

    let pids = group.pids();
    let Group {
        tails,
        not_started,
        capture,
        ..
    } = group;
    // No worker writes any more. What a daemon that left its process group may still write is not waited for.
    drop(stop_out);
    drop(capture);
    let given_up = !wait(&readers_done, &events);
    Ok(Run {
        verdict,
        pids,
        tails,
        not_started,
        events,
        given_up,
    })
}

impl Run {
    /// Waits until the screen has taken everything, unless the user asks a second time to stop.
    pub(super) fn finish(self, screen: Screen) {
        let Screen {
            chunks,
            notices,
            done,
        } = screen;
        drop((chunks, notices));
        if !self.given_up {
            wait(&done, &self.events);
        }
    }
}

/// The next thing that happens, or the timer at `deadline`.
fn next_event(events: &Receiver<Event>, deadline: Option<Instant>) -> Event {
    match deadline {
        // The group holds a sender, so that the channel cannot close.
        None => events.recv().unwrap_or(Event::Timer),
        Some(deadline) => match events.recv_deadline(deadline) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => Event::Timer,
        },
    }
}

/// Waits until `done` disconnects. False when INT or TERM came first: whoever reads the output does not go on reading,
/// and the user wants to go.
fn wait(done: &Receiver<()>, events: &Receiver<Event>) -> bool {
    let begun = Instant::now();
    loop {
        crossbeam_channel::select! {
            recv(done) -> _ => return true,
            recv(events) -> event => match event {
                Ok(Event::Stop { signal: signals::INT | signals::TERM }) if begun.elapsed() >= SAME_REQUEST => return false,
                Ok(_) => {}
                Err(_) => return done.recv().is_err(),
            },
        }
    }
}

/// The workers, and what is needed to start one.
struct Group {
    begun: Begun,
    specs: Vec<WorkerSpec>,
    logs: Vec<Option<WorkerLogs>>,
    workers: Vec<Option<Worker>>,
    tails: Vec<Tail>,
    not_started: Option<(usize, io::Error)>,
    events: Sender<Event>,
    capture: Capture,
}

impl Group {
    fn start(&mut self, rank: usize) -> Event {
        match self.try_start(rank) {
            Ok(worker) => {
                self.workers[rank] = Some(worker);
                Event::Started { rank }
            }
            Err(error) => {
                self.not_started = Some((rank, error));
                Event::NotStarted { rank }
            }
        }
    }

    fn try_start(&mut self, rank: usize) -> io::Result<Worker> {
        let (mut worker, streams) = Worker::start(&self.specs[rank])?;
        let logs = self.logs[rank].take().unwrap_or_default();
        let (events, begun) = (self.events.clone(), self.begun);
        let ended = move |outcome| {
            let at = begun.elapsed();
            // Fails only when the run is over.
            let _ = events.send(Event::Ended { rank, outcome, at });
        };
        let attached = self
            .capture
            .attach(rank, streams, logs, &self.tails[rank])
            .and_then(|()| worker.watch(ended));
        if let Err(error) = attached {
            worker.sweep();
            return Err(error);
        }
        Ok(worker)
    }

    fn signal(&self, rank: usize, signal: i32) {
        if let Some(worker) = &self.workers[rank] {
            worker.signal(signal);
        }
    }

    fn sweep(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            worker.sweep();
        }
    }

    fn pids(&self) -> Vec<Option<u32>> {
        self.workers
            .iter()
            .map(|worker| worker.as_ref().map(Worker::pid))
            .collect()
    }
}

/// What the readers of all workers share.
struct Capture {
    /// There is more than one worker, so that lines need their rank.
    several: bool,
    frames: bool,
    chunks: Sender<Chunk>,
    notices: Sender<String>,
    stop: Arc<PipeReader>,
    alive: Sender<()>,
}

impl Capture {
    fn attach(&self, rank: usize, streams: Streams, logs: WorkerLogs, tail: &Tail) -> io::Result<()> {
        self.read(rank, Stream::Stdout, streams.stdout, logs.stdout, None)?;
        self.read(
            rank,
            Stream::Stderr,
            streams.stderr,
            logs.stderr,
            Some(tail.clone()),
        )
    }

    fn read(
        &self,
        rank: usize,
        stream: Stream,
        pipe: File,
        log: Option<Log>,
        tail: Option<Tail>,
    ) -> io::Result<()> {
        let is_terminal = match stream {
            Stream::Stdout => io::stdout().is_terminal(),
            Stream::Stderr => io::stderr().is_terminal(),
        };
        let reader = Reader {
            source: Source { rank, stream },
            stream: pipe,
            prefix: if self.several {
                format!("[rank {rank}] ").into_bytes()
            } else {
                Vec::new()
            },
            end_last_line: self.several || is_terminal,
            frames: self.frames && rank == 0,
            log,
            tail,
            chunks: self.chunks.clone(),
            notices: self.notices.clone(),
            _alive: self.alive.clone(),
        };
        reader.start(Arc::clone(&self.stop))
    }
}
