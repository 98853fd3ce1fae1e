//! The driver: carries out what the agent decides and tells it what happens.
//!
//! One thread per worker waits for its end, two read its output, one receives signals, one watches the guardian; all of them
//! feed one channel. This, the main thread, blocks on that channel and never on the screen, so that a reader of the output
//! who has stopped reading delays no decision.

use super::Begun;
use super::files::{Files, Sieves, WorkerLogs};
use super::heartbeats::Heartbeats;
use super::plan::Kind;
use super::report;
use super::streams::Routing;
use crate::agent::{Action, Agent, Event, HangPolicy, Policy, SAME_REQUEST, TimeLimit, Verdict};
use crate::guardian::{self, Behind};
use crate::output::{Chunk, Reader, RotatingLog, Screen, Source, Stream, Style, Tail, Unkept};
use crate::process::{Family, Streams, Terminal, Worker, WorkerSpec, descendants, signals, stacks};
use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustix::process::Pid;
use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, PipeReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receives what happens to the launcher itself, over all attempts of a run.
pub(super) struct Supervisor {
    begun: Begun,
    events_out: Sender<Event>,
    events: Receiver<Event>,
    family: Family,
    /// The process group that the shell knows.
    job: Option<Pid>,
}

/// What to supervise: one attempt.
pub(super) struct Job<'a> {
    pub(super) kind: Kind,
    /// By rank.
    pub(super) specs: Vec<WorkerSpec>,
    pub(super) files: &'a Files,
    /// What becomes of their output.
    pub(super) routing: &'a Routing,
    pub(super) shutdown_timeout: Duration,
    pub(super) requeue_code: Option<i32>,
    pub(super) heartbeats: &'a Heartbeats,
    pub(super) hang: Option<HangPolicy>,
    pub(super) limit: Option<TimeLimit>,
}

/// An attempt that is over; some of its output may still wait for the screen.
pub(super) struct Run {
    pub(super) verdict: Verdict,
    /// Process ids by rank; none for a worker that was never started.
    pub(super) pids: Vec<Option<u32>>,
    /// The last lines of standard error by rank.
    pub(super) tails: Vec<Tail>,
    /// The worker that could not be started, and why.
    pub(super) not_started: Option<(usize, io::Error)>,
    /// Logs that are not whole, in words.
    pub(super) unkept: Option<String>,
    events: Receiver<Event>,
    /// The user does not want to wait for the screen.
    given_up: bool,
}

impl Supervisor {
    /// Begins to receive the signals that are `handled` and those by which a shell controls its jobs, and to watch the
    /// guardian.
    ///
    /// # Errors
    /// The system refuses a thread or a handler.
    pub(super) fn new(begun: Begun, behind: &Behind, handled: &[i32]) -> anyhow::Result<Self> {
        descendants::adopt().context("cannot become the parent of processes that workers leave behind")?;
        let (events_out, events) = crossbeam_channel::unbounded();
        let signals_out = events_out.clone();
        let family = Family::default();
        let relatives = family.clone();
        let wanted: Vec<i32> = handled.iter().chain(&signals::JOB).copied().collect();
        signals::listen(&wanted, move |signal| {
            let event = match signal {
                signals::CHLD => return relatives.reap_orphans(),
                signals::CONT => return relatives.resume(),
                signal if signals::SUSPEND.contains(&signal) => return relatives.suspend(),
                signal if signals::STOP.contains(&signal) => Event::Stop { signal },
                signal => Event::Forward { signal },
            };
            // Fails only when the run is over, and then the signal is for nobody.
            let _ = signals_out.send(event);
        })
        .context("cannot receive signals")?;
        signals::survive_file_size_limit().context("cannot receive signals")?;
        let abandoned_out = events_out.clone();
        guardian::watch(behind.guardian, move || {
            let _ = abandoned_out.send(Event::Abandoned);
        })
        .context("cannot watch the process that stands behind the launcher")?;
        Ok(Self {
            begun,
            events_out,
            events,
            family,
            job: behind.job,
        })
    }

    /// Lets `pause` pass between two attempts. A request to stop ends it; the signal is returned.
    pub(super) fn pause(&self, pause: Duration) -> Option<i32> {
        let deadline = Instant::now() + pause;
        loop {
            match self.events.recv_deadline(deadline) {
                Ok(Event::Stop { signal }) => return Some(signal),
                Ok(Event::Abandoned) => return Some(signals::KILL),
                Ok(_) => {}
                Err(_) => return None,
            }
        }
    }

    /// Starts the workers of `job` and stays with them until the last has ended, what they left behind too, and their
    /// output has been read.
    ///
    /// # Errors
    /// The launcher's own threads, pipes or log files cannot be made; nothing has been started then.
    pub(super) fn attempt(&self, job: Job<'_>, screen: &Screen) -> anyhow::Result<Run> {
        attempt(self, job, screen)
    }
}

fn attempt(supervisor: &Supervisor, job: Job<'_>, screen: &Screen) -> anyhow::Result<Run> {
    let workers = job.specs.len();
    let logs: Vec<_> = (0..workers)
        .map(|rank| job.files.open_logs(rank))
        .collect::<Result<_, _>>()?;
    let sieves = job.files.open_sieves()?;
    let unkept = Unkept::new(screen.notices.clone());
    let (begun, events) = (supervisor.begun, supervisor.events.clone());
    let (stop, stop_out) = io::pipe().context("cannot make a pipe")?;
    let (alive, readers_done) = crossbeam_channel::bounded(0);
    let mut group = Group {
        begun,
        specs: job.specs,
        logs: logs.into_iter().map(Some).collect(),
        workers: (0..workers).map(|_| None).collect(),
        tails: (0..workers).map(|_| Tail::default()).collect(),
        not_started: None,
        events: supervisor.events_out.clone(),
        family: supervisor.family.clone(),
        job: supervisor.job,
        capture: Capture {
            routing: job.routing,
            sieves,
            chunks: screen.chunks.clone(),
            unkept: unkept.clone(),
            stop: Arc::new(stop),
            alive,
        },
    };

    let policy = Policy {
        workers,
        shutdown_timeout: job.shutdown_timeout,
        requeue_code: job.requeue_code,
        hang: job.hang,
        limit: job.limit,
    };
    let beats = supervisor.events_out.clone();
    let _watching = job
        .hang
        .map(|_| {
            job.heartbeats.watch(workers, move |rank| {
                // Fails only when the run is over.
                let _ = beats.send(Event::Beat { rank });
            })
        })
        .transpose()?;
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
                if let Some(text) = report::notice(&notice, job.kind, workers, job.shutdown_timeout) {
                    let _ = screen.notices.send(text);
                }
                continue;
            }
            Some(Action::Inspect { ranks }) => {
                inspect(&group, job.files, &ranks, screen);
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
                    .and_then(|deadline| begun.at.checked_add(deadline)),
            ),
        };
        actions.extend(agent.on(&event, begun.elapsed()));
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
    let waited = wait(&readers_done, &events);
    Ok(Run {
        verdict: Verdict {
            asked_to_stop: verdict.asked_to_stop || waited.asked_to_stop,
            ..verdict
        },
        pids,
        tails,
        not_started,
        unkept: unkept.report(),
        events,
        given_up: waited.given_up,
    })
}

/// Writes down where the workers are that hang, for each beside its logs, or tells all where no logs are kept. A debugger takes
/// its time, so it is done on threads; the agent hears when it is done.
fn inspect(group: &Group, files: &Files, ranks: &[usize], screen: &Screen) {
    let pids = group.pids();
    let hanging: Vec<_> = ranks
        .iter()
        .filter_map(|&rank| Some((rank, pids[rank]?, files.stacks_path(rank))))
        .collect();
    let (notices, events) = (screen.notices.clone(), group.events.clone());
    let look = move || {
        std::thread::scope(|scope| {
            for (rank, pid, path) in &hanging {
                let notices = notices.clone();
                scope.spawn(move || {
                    // Both fail only when the run is over.
                    let _ = notices.send(where_it_is(*rank, *pid, path.as_deref()));
                });
            }
        });
        let _ = events.send(Event::Inspected);
    };
    let thread = std::thread::Builder::new().name("inspect".to_owned());
    if thread.spawn(look).is_err() {
        let _ = group.events.send(Event::Inspected);
    }
}

fn where_it_is(rank: usize, pid: u32, path: Option<&Path>) -> String {
    let found = stacks::of(pid);
    let indented: String = found.lines().map(|line| format!("\n    {line}")).collect();
    match path.map(|path| (path, fs::write(path, &found))) {
        Some((path, Ok(()))) => format!("dtrain: where rank {rank} is: {}", path.display()),
        Some((_, Err(error))) => format!("dtrain: where rank {rank} is (cannot be kept: {error}):{indented}"),
        None => format!("dtrain: where rank {rank} is:{indented}"),
    }
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

/// How a wait for output came to its end.
struct Waited {
    /// INT or TERM came first: whoever reads the output does not go on reading, and the user wants to go.
    given_up: bool,
    /// A stop signal came meanwhile.
    asked_to_stop: bool,
}

/// Waits until `done` disconnects, or the user does not want to wait.
fn wait(done: &Receiver<()>, events: &Receiver<Event>) -> Waited {
    let begun = Instant::now();
    let mut waited = Waited {
        given_up: false,
        asked_to_stop: false,
    };
    loop {
        crossbeam_channel::select! {
            recv(done) -> _ => return waited,
            recv(events) -> event => match event {
                Ok(Event::Stop { signal }) => {
                    waited.asked_to_stop = true;
                    waited.given_up =
                        matches!(signal, signals::INT | signals::TERM) && begun.elapsed() >= SAME_REQUEST;
                }
                Ok(Event::Abandoned) => (waited.asked_to_stop, waited.given_up) = (true, true),
                Ok(_) => {}
                Err(_) => {
                    waited.given_up = done.recv().is_ok();
                    return waited;
                }
            },
        }
        if waited.given_up {
            return waited;
        }
    }
}

/// The workers, and what is needed to start one.
struct Group<'a> {
    begun: Begun,
    specs: Vec<WorkerSpec>,
    logs: Vec<Option<WorkerLogs>>,
    workers: Vec<Option<Worker>>,
    tails: Vec<Tail>,
    not_started: Option<(usize, io::Error)>,
    events: Sender<Event>,
    family: Family,
    /// The process group that the shell knows.
    job: Option<Pid>,
    capture: Capture<'a>,
}

impl Group<'_> {
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
        let (mut worker, streams) = self.family.start(&self.specs[rank])?;
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
            .and_then(|()| worker.watch(ended))
            .and_then(|()| self.lend_terminal(rank, &worker));
        if let Err(error) = attached {
            self.family.sweep(&mut worker);
            return Err(error);
        }
        Ok(worker)
    }

    /// Lets a worker that has the terminal at its standard input read from it.
    fn lend_terminal(&self, rank: usize, worker: &Worker) -> io::Result<()> {
        let job = self.job.filter(|_| self.specs[rank].inherit_stdin);
        match job.and_then(Terminal::at_stdin) {
            Some(terminal) => terminal.lend(worker, self.family.clone()),
            None => Ok(()),
        }
    }

    fn signal(&self, rank: usize, signal: i32) {
        if let Some(worker) = &self.workers[rank] {
            worker.signal(signal);
        }
    }

    fn sweep(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            self.family.sweep(worker);
        }
        // All workers are reaped: what is left below the launcher was started by them.
        self.family.end_orphans();
    }

    fn pids(&self) -> Vec<Option<u32>> {
        self.workers
            .iter()
            .map(|worker| worker.as_ref().map(Worker::pid))
            .collect()
    }
}

/// What the readers of all workers share.
struct Capture<'a> {
    routing: &'a Routing,
    sieves: Sieves,
    chunks: Sender<Chunk>,
    unkept: Unkept,
    stop: Arc<PipeReader>,
    alive: Sender<()>,
}

impl Capture<'_> {
    fn attach(&self, rank: usize, streams: Streams, logs: WorkerLogs, tail: &Tail) -> io::Result<()> {
        if let Some(stdout) = streams.stdout {
            self.read(rank, Stream::Stdout, stdout, logs.stdout, None)?;
        }
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
        log: Option<RotatingLog>,
        tail: Option<Tail>,
    ) -> io::Result<()> {
        let sieve = match stream {
            Stream::Stdout => &self.sieves.stdout,
            Stream::Stderr => &self.sieves.stderr,
        };
        let style = self.routing.style(rank, stream);
        let reader = Reader {
            source: Source { rank, stream },
            stream: pipe,
            style,
            prefix: self.routing.prefix(rank).as_bytes().to_vec(),
            log,
            sieve: sieve.clone().filter(|_| style != Style::Hidden),
            tail,
            chunks: self.chunks.clone(),
            unkept: self.unkept.clone(),
            _alive: self.alive.clone(),
        };
        reader.start(Arc::clone(&self.stop))
    }
}
