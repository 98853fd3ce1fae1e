//! The driver: carries out what the agent decides and tells it what happens.
//!
//! One thread per worker waits for its end, two read its output, one receives signals, one watches the guardian; all of them
//! feed one channel. This, the main thread, blocks on that channel and never on the screen, so that a reader of the output
//! who has stopped reading delays no decision. It wakes at least twice a second, to look at the workers' heartbeats and so that
//! the agent notices when the launcher itself did not run.

use super::files::Files;
use super::group::{Capture, Group};
use super::inspect::inspect;
use super::plan::{Kind, Plan};
use super::report;
use super::streams::Routing;
use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dtrain_agent::clock::Begun;
use dtrain_agent::io::guardian::{self, Behind};
use dtrain_agent::io::heartbeats::Heartbeats;
use dtrain_agent::io::output::{Screen, Tail, Unkept};
use dtrain_agent::io::process::{Family, ShellJob, WorkerSpec, descendants, handlers};
use dtrain_agent::io::store::{Met, Place, Serving};
use dtrain_agent::local::{
    Action, Agent, Asked, Cause, Event, HangPolicy, Policy, Restarts, SAME_REQUEST, TICK, TimeLimit, Verdict,
};
use dtrain_agent::signals;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Receives what happens to the launcher itself, over all attempts of a run.
pub(super) struct Supervisor {
    begun: Begun,
    events_out: Sender<Event>,
    events: Receiver<Event>,
    family: Family,
    /// What the shell knows.
    job: Option<ShellJob>,
}

/// What to supervise: one attempt.
pub(super) struct Job<'a> {
    pub(super) kind: Kind,
    /// By rank.
    pub(super) specs: Vec<WorkerSpec>,
    /// Where a store is to be served to them.
    pub(super) store: Option<Place>,
    pub(super) files: &'a Files,
    /// What becomes of their output.
    pub(super) routing: &'a Routing,
    pub(super) shutdown_timeout: Duration,
    pub(super) requeue_code: Option<i32>,
    pub(super) heartbeats: &'a Heartbeats,
    pub(super) hang: Option<HangPolicy>,
    pub(super) limit: Option<TimeLimit>,
    pub(super) plan: &'a Plan,
    /// Signals for the workers that came before they were started.
    pub(super) notices: Vec<i32>,
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
    /// Who came to the store, where one was served.
    pub(super) met: Option<Met>,
    /// Whether any worker gave a sign of life.
    beaten: bool,
    events: Receiver<Event>,
    /// The user does not want to wait for the screen.
    given_up: bool,
}

/// What came of work before anything was started.
pub(super) enum Early<T> {
    Done(T),
    /// This signal asked the launcher to stop, and the work did not end.
    Stopped {
        signal: i32,
    },
}

/// Work that was begun before a request to stop is waited for so long: its result may be that a later launch goes on from a checkpoint.
const LAST_CHECKS: Duration = Duration::from_secs(2);

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
        let latest = handlers::LatestOfJob::watch().context("cannot receive signals")?;
        handlers::listen(&wanted, move |signal| {
            let event = match signal {
                signals::CHLD => return relatives.reap_orphans(),
                signals::CONT => return relatives.resume(),
                signal if signals::SUSPEND.contains(&signal) => return relatives.suspend(&latest),
                signal if signals::STOP.contains(&signal) => Event::Stop { signal },
                signal => Event::Forward { signal },
            };
            // Fails only when the run is over, and then the signal is for nobody.
            let _ = signals_out.send(event);
        })
        .context("cannot receive signals")?;
        handlers::survive_file_size_limit().context("cannot receive signals")?;
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

    /// Does `work` on a thread of its own, which is left alone if it does not end soon after a request to stop, or if nobody is there
    /// any more who wants it. What comes meanwhile is kept for [`Supervisor::pause`].
    ///
    /// # Errors
    /// The thread cannot be started, or panicked.
    pub(super) fn while_nothing_runs<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<Early<T>> {
        let (done, result) = crossbeam_channel::bounded(1);
        std::thread::Builder::new()
            .name("checks".to_owned())
            .spawn(move || done.send(work()))
            .context("cannot start a thread")?;
        let (mut kept, mut stopped, mut give_up) = (Vec::new(), None, crossbeam_channel::never());
        let result = loop {
            crossbeam_channel::select! {
                recv(result) -> result => break result.context("the checks before the start ended by a bug of dtrain")?,
                recv(self.events) -> event => {
                    let event = event.unwrap_or(Event::Abandoned);
                    match (&event, stopped) {
                        (Event::Abandoned, _) => return Ok(Early::Stopped { signal: signals::KILL }),
                        (Event::Stop { signal }, None) => {
                            stopped = Some((*signal, Instant::now()));
                            give_up = crossbeam_channel::after(LAST_CHECKS);
                        }
                        (Event::Stop { signal: signals::INT | signals::TERM }, Some((signal, first)))
                            if first.elapsed() >= SAME_REQUEST =>
                        {
                            return Ok(Early::Stopped { signal });
                        }
                        _ => {}
                    }
                    kept.push(event);
                }
                recv(give_up) -> _ => {
                    let (signal, _) = stopped.unwrap_or((signals::TERM, Instant::now()));
                    return Ok(Early::Stopped { signal });
                }
            }
        };
        for event in kept {
            // It cannot fail: this holds the receiver.
            let _ = self.events_out.send(event);
        }
        Ok(Early::Done(result))
    }

    /// Lets `pause` pass between two attempts, unless something comes that ends it.
    pub(super) fn pause(&self, pause: Duration, restarts: &mut Restarts) {
        let deadline = Instant::now() + pause;
        let mut is_over = restarts.is_asked();
        // What has come already is heard even where there is no pause.
        while let Ok(event) = match is_over {
            true => self.events.try_recv().map_err(|_| RecvTimeoutError::Timeout),
            false => self.events.recv_deadline(deadline),
        } {
            is_over |= restarts.heard(&event);
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
    let notices = screen.notices.clone();
    let serve = |store: Place| store.serve(move |text| drop(notices.send(format!("dtrain: {text}"))));
    let store = job.store.map(serve).transpose();
    let store = store.context("cannot serve the workers' store")?;
    let (alive, readers_done) = crossbeam_channel::bounded(0);
    let mut group = Group {
        begun,
        specs: job.specs,
        logs: logs.into_iter().map(Some).collect(),
        files: job.files,
        workers: (0..workers).map(|_| None).collect(),
        owed: Vec::new(),
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
        notices: job.notices,
    };
    let mut watch = job.heartbeats.watch(workers, begun);
    let look_every = job.hang.map_or(TICK, |hang| hang.look_every());
    let mut agent = Agent::new(policy);
    let mut actions = VecDeque::from(agent.begin(begun.elapsed()));
    let mut evicted = false;
    let verdict = loop {
        let event = match actions.pop_front() {
            Some(Action::Finish(verdict)) => break verdict,
            Some(Action::Start { rank }) => group.start(rank),
            Some(Action::Signal { rank, signal }) => {
                group.signal(rank, signal);
                continue;
            }
            Some(Action::Notify { rank, signal }) => {
                group.owed.push((rank, signal));
                continue;
            }
            Some(Action::Tell(notice)) => {
                if let Some(text) = report::notice(&notice, job.kind, workers, job.shutdown_timeout) {
                    let _ = screen.notices.send(text);
                }
                continue;
            }
            Some(Action::Inspect { ranks, number }) => {
                inspect(&group, &ranks, number, &screen.notices);
                continue;
            }
            Some(Action::Sweep) => {
                group.sweep();
                continue;
            }
            None => {
                let look = Instant::now() + look_every;
                let deadline = agent
                    .deadline()
                    .and_then(|deadline| begun.at.checked_add(deadline));
                let event = next_event(&events, deadline.map_or(look, |deadline| deadline.min(look)));
                if !evicted && job.plan.is_evicted() {
                    evicted = true;
                    let _ = screen.notices.send(report::evicted(job.plan));
                    actions.extend(agent.on(&Event::Evicted, begun.elapsed()));
                }
                if let Some(trouble) = job.plan.trouble() {
                    let _ = screen.notices.send(format!("dtrain: {trouble}"));
                }
                group.pay();
                // Nobody is taken for hanging, or killed, who has beaten before this event.
                for beat in watch.look(begun) {
                    actions.extend(agent.on(&beat, begun.elapsed()));
                }
                event
            }
        };
        actions.extend(agent.on(&event, begun.elapsed()));
    };

    let met = store.map(Serving::end);
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
    let mut verdict = verdict;
    let waited = wait(&readers_done, &events);
    let asked = waited.stopped.map(|signal| Asked::Request { signal });
    verdict.asked = verdict.asked.or(asked);
    verdict.notices.extend(&waited.notices);
    Ok(Run {
        verdict,
        pids,
        tails,
        not_started,
        unkept: unkept.report(),
        met,
        beaten: watch.has_seen_any(),
        events,
        given_up: waited.given_up,
    })
}

impl Run {
    /// Whether the workers were stopped by SIGTERM, as batch systems do, before they had done anything that could be lost.
    pub(super) fn is_stopped_before_its_first_step(&self) -> bool {
        let signal = signals::TERM;
        self.verdict.cause == (Cause::Stopped { signal }) && !self.beaten
    }

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
fn next_event(events: &Receiver<Event>, deadline: Instant) -> Event {
    // The group holds a sender, so that the channel cannot close.
    events.recv_deadline(deadline).unwrap_or(Event::Timer)
}

/// How a wait for output came to its end.
struct Waited {
    /// INT or TERM came first: whoever reads the output does not go on reading, and the user wants to go.
    given_up: bool,
    /// This stop signal came meanwhile.
    stopped: Option<i32>,
    /// Signals for the workers, of which none runs.
    notices: Vec<i32>,
}

/// Waits until `done` disconnects, or the user does not want to wait.
fn wait(done: &Receiver<()>, events: &Receiver<Event>) -> Waited {
    let begun = Instant::now();
    let mut waited = Waited {
        given_up: false,
        stopped: None,
        notices: Vec::new(),
    };
    loop {
        crossbeam_channel::select! {
            recv(done) -> _ => return waited,
            recv(events) -> event => match event {
                Ok(Event::Stop { signal }) => {
                    waited.stopped = Some(signal);
                    waited.given_up =
                        matches!(signal, signals::INT | signals::TERM) && begun.elapsed() >= SAME_REQUEST;
                }
                Ok(Event::Abandoned) => (waited.stopped, waited.given_up) = (Some(signals::KILL), true),
                Ok(Event::Forward { signal }) => waited.notices.push(signal),
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

#[cfg(test)]
mod tests;
