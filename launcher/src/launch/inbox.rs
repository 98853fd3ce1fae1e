//! Events of the launcher, over all attempts of a run.

use super::cluster::order::Order;
use anyhow::Context;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dtrain_agent::clock::StartTime;
use dtrain_agent::io::guardian::{self, GuardianInfo};
use dtrain_agent::io::process::{Family, ShellJob, descendants, handlers, sender};
use dtrain_agent::local::{Event, Requests, Restarts, SAME_REQUEST, Way};
use dtrain_agent::signals;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The receiver of all events.
pub(super) struct Inbox {
    pub(super) start_time: StartTime,
    pub(super) sender: Sender<Event>,
    events: Receiver<Event>,
    pub(super) family: Family,
    pub(super) job: Option<ShellJob>,
    /// The latest sender of each signal for the workers.
    senders: Senders,
}

/// By signal: the process that sent it, in words.
type Senders = Arc<Mutex<BTreeMap<i32, String>>>;

/// An input of the main thread.
pub(super) enum Incoming {
    Event(Event),
    /// From the leader of several nodes.
    Order(Order),
}

/// The result of work before the start, or the signal that stopped the launcher before.
pub(super) type BeforeStart<T> = Result<T, i32>;
/// The end of a wait for output.
#[derive(Default)]
pub(super) struct Waited {
    /// INT or TERM came first: the user does not want to wait.
    pub(super) abandoned: bool,
    /// A request to stop, or the guardian's death, during the wait.
    pub(super) stopped: Option<Event>,
    /// Signals for the workers while no worker runs.
    pub(super) notices: Vec<i32>,
}

/// The longest wait for running checks after a request to stop: they may find a checkpoint.
const LAST_CHECKS: Duration = Duration::from_secs(2);

impl Inbox {
    /// Starts to receive the `handled` signals and those of job control, and to watch the guardian.
    pub(super) fn open(
        start_time: StartTime,
        guardian_info: &GuardianInfo,
        handled: &[i32],
    ) -> anyhow::Result<Self> {
        descendants::adopt().context("cannot become the parent of orphaned processes")?;
        let (sender, events) = crossbeam_channel::unbounded();
        let (signals_out, abandoned_out) = (sender.clone(), sender.clone());
        let relatives = Family::default();
        let family = relatives.clone();
        let wanted: Vec<i32> = handled.iter().chain(&signals::JOB).copied().collect();
        let latest = handlers::LatestOfJob::watch().context("cannot receive signals")?;
        let senders = Senders::default();
        let signalled_by = Arc::clone(&senders);
        let (guardian, mut requests) = (guardian_info.guardian, Requests::default());
        handlers::listen(&wanted, move |signal, sender| {
            let event = match signal {
                signals::CHLD => return relatives.reap_orphans(),
                signals::CONT => return relatives.resume(),
                signal if signals::SUSPEND.contains(&signal) => return relatives.suspend(&latest),
                signal if signals::URGENT.contains(&signal) => {
                    let way = if sender == Some(guardian) { Way::Guardian } else { Way::Direct };
                    let Some(again) = requests.on(way, start_time.elapsed()) else { return };
                    Event::Stop { signal, again }
                }
                signal if signals::STOP.contains(&signal) => Event::Stop { signal, again: false },
                signal => {
                    let mut senders = locked(&signalled_by);
                    match sender.filter(|sender| *sender != guardian) {
                        Some(sender) => drop(senders.insert(signal, sender::described(sender))),
                        None => drop(senders.remove(&signal)),
                    }
                    Event::Forward { signal }
                }
            };
            // Fails only if the run is over: no receiver is left for the signal.
            let _ = signals_out.send(event);
        })
        .context("cannot receive signals")?;
        handlers::survive_file_size_limit().context("cannot receive signals")?;
        guardian::watch(guardian_info.guardian, move || drop(abandoned_out.send(Event::Abandoned)))
            .context("cannot watch the guardian process")?;
        Ok(Self { start_time, sender, events, family, job: guardian_info.job, senders })
    }

    /// Returns the process that sent the launcher this signal for the workers, in words.
    pub(super) fn sender_of(&self, signal: i32) -> Option<String> {
        locked(&self.senders).get(&signal).cloned()
    }

    /// Does `work` on a new thread, and abandons it if it does not end soon after a request to stop, or if
    /// the guardian dies. Keeps other events for [`Inbox::pause`].
    pub(super) fn while_nothing_runs<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> anyhow::Result<BeforeStart<T>> {
        let (done, result) = crossbeam_channel::bounded(1);
        let started = std::thread::Builder::new().name("checks".to_owned()).spawn(move || done.send(work()));
        started.context("cannot start a thread")?;
        let (mut kept, mut stopped, mut give_up) = (Vec::new(), None, crossbeam_channel::never());
        let result = loop {
            crossbeam_channel::select! {
                recv(result) -> result => break result.context("the checks before the start panicked; this is a bug of dtrain")?,
                recv(self.events) -> event => {
                    let event = event.unwrap_or(Event::Abandoned);
                    match (&event, stopped) {
                        (Event::Abandoned, _) => return Ok(Err(signals::KILL)),
                        (Event::Stop { signal, .. }, None) => {
                            stopped = Some(*signal);
                            give_up = crossbeam_channel::after(LAST_CHECKS);
                        }
                        (Event::Stop { again: true, .. }, Some(signal)) => return Ok(Err(signal)),
                        _ => {}
                    }
                    kept.push(event);
                }
                recv(give_up) -> _ => return Ok(Err(stopped.unwrap_or(signals::TERM))),
            }
        };
        // Cannot fail: this object has the receiver.
        kept.into_iter().for_each(|event| drop(self.sender.send(event)));
        Ok(Ok(result))
    }

    /// Waits for `pause` between two attempts, unless an event ends the pause.
    pub(super) fn pause(&self, pause: Duration, restarts: &mut Restarts) {
        let deadline = Instant::now() + pause;
        let mut is_over = restarts.pause_ended();
        // Also without a pause, waiting events are handled.
        while let Ok(event) = match is_over {
            true => self.events.try_recv().map_err(|_| RecvTimeoutError::Timeout),
            false => self.events.recv_deadline(deadline),
        } {
            is_over |= restarts.on_event(&event);
        }
    }

    /// Returns the next event or order, or the timer at `deadline`.
    pub(super) fn next(&self, deadline: Instant, orders: &Receiver<Order>) -> Incoming {
        crossbeam_channel::select! {
            recv(orders) -> order => match order {
                Ok(order) => Incoming::Order(order),
                // The cluster's thread has panicked, and its leases are not renewed.
                Err(_) => Incoming::Event(Event::Abandoned),
            },
            // This object has a sender, so the channel cannot close.
            recv(self.events) -> event => Incoming::Event(event.unwrap_or(Event::Timer)),
            default(deadline.saturating_duration_since(Instant::now())) => Incoming::Event(Event::Timer),
        }
    }

    /// Waits until `done` disconnects, or the user does not want to wait, or for at most `patience`. `was_asked`: the run
    /// was asked to stop before, so that only a further request is impatient.
    pub(super) fn wait(&self, done: &Receiver<()>, patience: Option<Duration>, was_asked: bool) -> Waited {
        let wait_start = Instant::now();
        let over = patience.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
        let mut waited = Waited::default();
        while !waited.abandoned {
            crossbeam_channel::select! {
                recv(done) -> _ => break,
                recv(over) -> _ => break,
                recv(self.events) -> event => match event {
                    Ok(event @ Event::Stop { signal, again }) => {
                        waited.stopped = Some(event);
                        waited.abandoned = signals::URGENT.contains(&signal)
                            && (again || !was_asked)
                            && wait_start.elapsed() >= SAME_REQUEST;
                    }
                    Ok(event @ Event::Abandoned) => (waited.stopped, waited.abandoned) = (Some(event), true),
                    Ok(Event::Forward { signal }) => waited.notices.push(signal),
                    _ => {}
                },
            }
        }
        waited
    }
}

fn locked(senders: &Senders) -> MutexGuard<'_, BTreeMap<i32, String>> {
    senders.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
pub(super) mod tests;
