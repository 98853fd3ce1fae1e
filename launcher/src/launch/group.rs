//! The workers of one attempt: starts, signals and reads them.

use super::files::{ByStream, Files, read_error};
use super::inbox::Inbox;
use crate::executable::is_temporary;
use crate::plan::{Routing, Sinks};
use crossbeam_channel::Sender;
use dtrain_agent::cause::{self, Evidence};
use dtrain_agent::io::output::{
    Chunk, FailedLogs, Input, LineFilter, Message, Reader, RotatingLog, Source, Stream, Style, Tail,
};
use dtrain_agent::io::process::{
    Channel, Mirror, Streams, Terminal, Wiring, Worker, WorkerSpec, handlers, stacks,
};
use dtrain_agent::local::{Event, INSPECTION, KILLED, Outcome};
use std::fs;
use std::io::{self, PipeReader};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The workers of one attempt, by rank.
pub(super) struct Group<'a> {
    inbox: &'a Inbox,
    specs: Vec<WorkerSpec>,
    /// The rank of the first worker.
    first_rank: usize,
    files: &'a Files,
    logs: Vec<ByStream<RotatingLog>>,
    workers: Vec<Option<Worker>>,
    /// Signals that workers get when they have a handler.
    pub(super) pending_signals: Vec<(usize, i32)>,
    pub(super) tails: Vec<Tail>,
    pub(super) not_started: Option<(usize, io::Error)>,
    /// The killed workers that do not end, for the user.
    pub(super) stuck: Option<String>,
    pub(super) capture: Capture<'a>,
}

impl<'a> Group<'a> {
    pub(super) fn new(
        inbox: &'a Inbox,
        specs: Vec<WorkerSpec>,
        first_rank: usize,
        files: &'a Files,
        capture: Capture<'a>,
    ) -> anyhow::Result<Self> {
        let ranks = 0..specs.len();
        let logs = ranks.clone().map(|rank| files.open_logs(rank));
        Ok(Self {
            logs: logs.collect::<Result<_, _>>()?,
            workers: ranks.clone().map(|_| None).collect(),
            tails: ranks.map(|_| Tail::default()).collect(),
            inbox,
            specs,
            first_rank,
            files,
            pending_signals: Vec::new(),
            not_started: None,
            stuck: None,
            capture,
        })
    }

    /// Starts the worker of this rank and returns the event of its start.
    pub(super) fn start(&mut self, rank: usize) -> Event {
        match self.try_start(rank) {
            Ok(worker) => {
                self.workers[rank] = Some(worker);
                Event::Started { rank }
            }
            Err(error) => {
                let temporary = is_temporary(&error);
                self.not_started = Some((rank, error));
                Event::NotStarted { rank, temporary }
            }
        }
    }

    fn try_start(&mut self, rank: usize) -> io::Result<Worker> {
        let (mut worker, streams) = self.inbox.family.start(&self.specs[rank])?;
        let logs = std::mem::take(&mut self.logs[rank]);
        let (events, start_time) = (self.inbox.sender.clone(), self.inbox.start_time);
        let (tail, error_file) = (self.tails[rank].clone(), self.files.error_file(rank));
        let terminal = self.inbox.job.filter(|_| self.specs[rank].inherit_stdin).and_then(Terminal::at_stdin);
        let lent = terminal.clone();
        let ended = move |worker, outcome| {
            let at = start_time.elapsed();
            if lent.is_some_and(|terminal| terminal.ended(worker, outcome)) {
                let _ = events.send(Event::Interrupted);
            }
            let lost_peer = reports_lost_peer(outcome, &tail, &error_file);
            // Fails only if the run is over.
            let _ = events.send(Event::Ended { rank, outcome, at, lost_peer });
        };
        let attached = self
            .attach(rank, &worker, streams, logs)
            // If the worker is already stopped for its first read, the lending still sees that.
            .and_then(|()| match terminal {
                Some(terminal) => terminal.lend(&worker, self.inbox.family.clone()),
                None => Ok(()),
            })
            .and_then(|()| worker.watch(ended));
        if let Err(error) = attached {
            self.inbox.family.sweep(&mut worker, KILLED);
            return Err(error);
        }
        Ok(worker)
    }

    /// Starts to read the worker's output.
    fn attach(
        &self,
        rank: usize,
        worker: &Worker,
        streams: Streams,
        logs: ByStream<RotatingLog>,
    ) -> io::Result<()> {
        let Self { inbox, capture, .. } = self;
        let (routing, wiring, sinks) = (capture.routing, self.specs[rank].wiring, Sinks::now());
        let has_errors = |stream| stream == Stream::Stderr || matches!(wiring, Wiring::Together(_));
        let mut inputs = Vec::new();
        for ((stream, file), log) in Stream::BOTH.into_iter().zip(streams).zip(logs) {
            let Some(file) = file else { continue };
            let style = routing.style(rank, stream, sinks, wiring);
            let line_filter = capture.line_filters[stream.index()].clone();
            let mirror = (wiring.channel(stream) == Channel::Pty)
                .then(|| Mirror::new(&file, stream, worker, inbox.family.clone(), inbox.job));
            inputs.push(Input {
                source: Source { rank, stream },
                stream: file,
                style,
                form: routing.form(rank, stream),
                log,
                line_filter: line_filter.filter(|_| style != Style::Hidden),
                tail: has_errors(stream).then(|| self.tails[rank].clone()),
                // Without pseudo terminals in the system, this is a pipe.
                follow: mirror.and_then(Result::ok).map(|mut mirror| Box::new(move || mirror.follow()) as _),
            });
        }
        let reader = Reader {
            inputs,
            chunks: capture.chunks.clone(),
            failed_logs: capture.failed_logs.clone(),
            _alive: capture.alive.clone(),
        };
        reader.start(Arc::clone(&capture.stop))
    }

    pub(super) fn deliver_pending(&mut self) {
        let workers = &self.workers;
        self.pending_signals.retain(|&(rank, signal)| match &workers[rank] {
            Some(worker) if handlers::is_handled_by(worker.pid(), signal) => {
                worker.signal(signal);
                false
            }
            _ => true,
        });
    }

    pub(super) fn signal(&self, rank: usize, signal: i32) {
        if let Some(worker) = &self.workers[rank] {
            worker.signal(signal);
        }
    }

    /// Kills and reaps the rest of the workers, which have all ended.
    pub(super) fn sweep(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            self.inbox.family.sweep(worker, Duration::ZERO);
        }
        // All workers are reaped: the remaining descendants were started by them.
        let _ = self.inbox.family.end_orphans();
    }

    /// Returns the process ids; `None` for a worker that was not started.
    pub(super) fn pids(&self) -> Vec<Option<u32>> {
        let workers = self.workers.iter();
        workers.map(|worker| worker.as_ref().map(Worker::pid)).collect()
    }

    /// Describes killed workers that do not end.
    pub(super) fn describe_stuck(&mut self, ranks: &[usize]) -> String {
        let described = |&rank: &usize| {
            let pid = self.workers[rank].as_ref().map_or(0, Worker::pid);
            format!("rank {} (process {pid}: {})", self.first_rank + rank, stacks::wait_channel(pid))
        };
        let described = ranks.iter().map(described).collect::<Vec<_>>().join(", ");
        let text = format!(
            "{described} did not end within {} s after SIGKILL, and may keep its GPU and files; a device or file server does \
             not answer",
            KILLED.as_secs()
        );
        self.stuck = Some(text.clone());
        text
    }

    /// Collects the stacks of these workers in files beside their logs, or shows them if no logs are kept.
    /// Debuggers are slow, so threads do it; the agent gets `number` afterwards.
    pub(super) fn inspect(&self, ranks: &[usize], number: u32, notices: &Sender<Message>) {
        let pids = self.pids();
        let of = |&rank: &usize| Some((self.first_rank + rank, pids[rank]?, self.files.stacks_path(rank)));
        let hanging: Vec<_> = ranks.iter().filter_map(of).collect();
        let (notices, events) = (notices.clone(), self.inbox.sender.clone());
        let look = move || {
            std::thread::scope(|scope| {
                for (rank, pid, path) in &hanging {
                    // Fails only if the run is over.
                    scope.spawn(|| drop(notices.send(collect_stacks(*rank, *pid, path.as_deref()).into())));
                }
            });
            let _ = events.send(Event::Inspected { number });
        };
        if std::thread::Builder::new().name("inspect".to_owned()).spawn(look).is_err() {
            let _ = self.inbox.sender.send(Event::Inspected { number });
        }
    }
}

fn collect_stacks(rank: usize, pid: u32, path: Option<&Path>) -> String {
    let found = stacks::of(pid, INSPECTION);
    let indented: String = found.lines().map(|line| format!("\n    {line}")).collect();
    match path.map(|path| (path, fs::write(path, &found))) {
        Some((path, Ok(()))) => format!("dtrain: thread stacks of rank {rank}: {}", path.display()),
        Some((path, Err(error))) => {
            format!(
                "dtrain: thread stacks of rank {rank} (cannot write {}: {error}):{indented}",
                path.display()
            )
        }
        None => format!("dtrain: thread stacks of rank {rank}:{indented}"),
    }
}

/// Returns whether a failed worker's last messages report another worker as gone.
fn reports_lost_peer(outcome: Outcome, tail: &Tail, error_file: &Path) -> bool {
    if !matches!(outcome, Outcome::Exited(1..)) {
        return false;
    }
    let error_file = read_error(error_file);
    let evidence = Evidence {
        outcome,
        sent: &[],
        stderr: &tail.lines(),
        error_file: error_file.as_deref(),
        memory_kill: None,
    };
    cause::cause(&evidence).is_some_and(|cause| cause.peer_lost)
}

/// Resources shared by the readers of all workers.
pub(super) struct Capture<'a> {
    pub(super) routing: &'a Routing,
    pub(super) line_filters: ByStream<LineFilter>,
    pub(super) chunks: Sender<Chunk>,
    pub(super) failed_logs: FailedLogs,
    pub(super) stop: Arc<PipeReader>,
    pub(super) alive: Sender<()>,
}
