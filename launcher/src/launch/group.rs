//! The workers of one attempt: how they are started, signalled and read, by the orders of [`supervise`](super::supervise).

use super::files::{Files, Sieves, WorkerLogs, read_error};
use super::streams::Routing;
use crossbeam_channel::Sender;
use dtrain_agent::cause::{self, Evidence};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::output::{Chunk, Reader, RotatingLog, Source, Stream, Style, Tail, Unkept};
use dtrain_agent::io::process::{Family, ShellJob, Streams, Terminal, Worker, WorkerSpec, handlers};
use dtrain_agent::local::{Event, Outcome};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, PipeReader};
use std::path::Path;
use std::sync::Arc;

/// The workers, and what is needed to start one.
pub(super) struct Group<'a> {
    pub(super) begun: Begun,
    pub(super) specs: Vec<WorkerSpec>,
    pub(super) files: &'a Files,
    pub(super) logs: Vec<Option<WorkerLogs>>,
    pub(super) workers: Vec<Option<Worker>>,
    /// Signals that workers get as soon as they have a handler for them.
    pub(super) owed: Vec<(usize, i32)>,
    pub(super) tails: Vec<Tail>,
    pub(super) not_started: Option<(usize, io::Error)>,
    pub(super) events: Sender<Event>,
    pub(super) family: Family,
    /// What the shell knows.
    pub(super) job: Option<ShellJob>,
    pub(super) capture: Capture<'a>,
}

impl Group<'_> {
    /// Starts the worker of this rank and answers whether it runs.
    pub(super) fn start(&mut self, rank: usize) -> Event {
        match self.try_start(rank) {
            Ok(worker) => {
                self.workers[rank] = Some(worker);
                Event::Started { rank }
            }
            Err(error) => {
                let passing = is_passing(&error);
                self.not_started = Some((rank, error));
                Event::NotStarted { rank, passing }
            }
        }
    }

    fn try_start(&mut self, rank: usize) -> io::Result<Worker> {
        let (mut worker, streams) = self.family.start(&self.specs[rank])?;
        let logs = self.logs[rank].take().unwrap_or_default();
        let (events, begun) = (self.events.clone(), self.begun);
        let (tail, error_file) = (self.tails[rank].clone(), self.files.error_file(rank));
        let job = self.job.filter(|_| self.specs[rank].inherit_stdin);
        let terminal = job.and_then(Terminal::at_stdin);
        let lent = terminal.clone();
        let ended = move |worker, outcome| {
            let at = begun.elapsed();
            if lent.is_some_and(|terminal| terminal.ended(worker, outcome)) {
                let _ = events.send(Event::Interrupted);
            }
            let lost_peer = says_that_it_lost_a_peer(outcome, &tail, &error_file);
            // Fails only when the run is over.
            let _ = events.send(Event::Ended {
                rank,
                outcome,
                at,
                lost_peer,
            });
        };
        let attached = self
            .capture
            .attach(rank, streams, logs, &self.tails[rank])
            // The worker may have been stopped for its first read already, which is not forgotten.
            .and_then(|()| terminal.map_or(Ok(()), |terminal| terminal.lend(&worker, self.family.clone())))
            .and_then(|()| worker.watch(ended));
        if let Err(error) = attached {
            self.family.sweep(&mut worker);
            return Err(error);
        }
        Ok(worker)
    }

    /// Sends what is owed to those workers that have a handler for it by now.
    pub(super) fn pay(&mut self) {
        let workers = &self.workers;
        self.owed.retain(|&(rank, signal)| match &workers[rank] {
            Some(worker) if handlers::is_handled_by(worker.pid(), signal) => {
                worker.signal(signal);
                false
            }
            _ => true,
        });
    }

    /// Sends the signal to the worker's process group, if it was started.
    pub(super) fn signal(&self, rank: usize, signal: i32) {
        if let Some(worker) = &self.workers[rank] {
            worker.signal(signal);
        }
    }

    /// Kills and reaps what is left of the workers, which have all ended.
    pub(super) fn sweep(&mut self) {
        for worker in self.workers.iter_mut().flatten() {
            self.family.sweep(worker);
        }
        // All workers are reaped: what is left below the launcher was started by them.
        self.family.end_orphans();
    }

    /// Process ids by rank; none for a worker that was not started.
    pub(super) fn pids(&self) -> Vec<Option<u32>> {
        self.workers
            .iter()
            .map(|worker| worker.as_ref().map(Worker::pid))
            .collect()
    }
}

/// Whether the system refused only for now.
pub(super) fn is_passing(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    [Errno::AGAIN, Errno::NOMEM, Errno::NFILE, Errno::MFILE]
        .map(Some)
        .contains(&errno)
}

/// Whether the last words of a worker that failed are that another one is gone.
fn says_that_it_lost_a_peer(outcome: Outcome, tail: &Tail, error_file: &Path) -> bool {
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

/// What the readers of all workers share.
pub(super) struct Capture<'a> {
    pub(super) routing: &'a Routing,
    pub(super) sieves: Sieves,
    pub(super) chunks: Sender<Chunk>,
    pub(super) unkept: Unkept,
    pub(super) stop: Arc<PipeReader>,
    pub(super) alive: Sender<()>,
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
