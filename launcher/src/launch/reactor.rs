//! One attempt: passes all events to the agent, and carries out its actions.
//!
//! Threads wait for the workers' ends, read their output, receive signals and watch the guardian; all send to
//! one channel. This main thread blocks on that channel and never on the screen, so a slow reader of the
//! output delays no decision. It wakes at least twice a second to look at heartbeats, and so that the agent
//! notices a freeze of the launcher.

use super::attempt::{Attempt, Launch, PassedOn, Run};
use super::cluster::handle::Cluster;
use super::cluster::order::Order;
use super::group::{Capture, Group};
use super::inbox::Incoming;
use super::messages;
use anyhow::Context;
use crossbeam_channel::Receiver;
use dtrain_agent::cluster::member::MemberEvent;
use dtrain_agent::io::heartbeats::Heartbeats;
use dtrain_agent::io::output::{FailedLogs, Message, Screen};
use dtrain_agent::io::store::Serving;
use dtrain_agent::local::{Action, Agent, Event, Notice, Policy, StopSource, TICK, Verdict};
use dtrain_agent::signals;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// On several nodes, the longest wait for output that the screen does not take.
const OUTPUT: Duration = Duration::from_secs(2);

/// Starts the workers. Returns when all workers and their descendants have ended and their output has been
/// read. `notices` are earlier signals for the workers. On an error no worker has been started.
pub(super) fn attempt(
    launch: &Launch<'_>,
    attempt: &mut Attempt,
    notices: Vec<i32>,
    screen: &Screen,
    cluster: Option<&Cluster>,
) -> anyhow::Result<Run> {
    let Launch { args, plan, inbox, .. } = launch;
    let specs = attempt.specs(launch);
    let failed_logs = FailedLogs::new(screen.notices.clone());
    let (stop, stop_out) = io::pipe().context("cannot create a pipe")?;
    let (alive, readers_done) = crossbeam_channel::bounded(0);
    let capture = Capture {
        routing: &plan.routing,
        line_filters: attempt.files.open_line_filters()?,
        chunks: screen.chunks.clone(),
        failed_logs: failed_logs.clone(),
        stop: Arc::new(stop),
        alive,
    };
    let group = Group::new(inbox, specs, plan.placement.first_rank, &attempt.files, capture)?;
    let say = screen.notices.clone();
    let tell = move |text| drop(say.send(format!("dtrain: {text}").into()));
    let store = attempt.store.take().map(|store| store.serve(tell)).transpose();
    let store = store.context("cannot serve the workers' store")?;
    if let (Some(cluster), Some(store)) = (cluster, &store) {
        cluster.set_store(Some(store.handle()));
    }
    let hang = args.hang_policy(plan.training().is_some());
    let reactor = Reactor {
        agent: Agent::new(Policy {
            workers: plan.nproc,
            shutdown_timeout: args.shutdown_timeout(),
            requeue_code: plan.requeue_code(),
            hang,
            limit: plan.limit,
            notices,
        }),
        actions: VecDeque::new(),
        group,
        heartbeats: &mut attempt.heartbeats,
        poll_interval: hang.map_or(TICK, |hang| hang.poll_interval()),
        launch,
        screen,
        cluster,
        orders: cluster.map_or_else(crossbeam_channel::never, |cluster| cluster.orders.clone()),
        held: Vec::new(),
        passed_on: PassedOn::new(),
        evicted: false,
    };
    let Over { mut verdict, group, held, passed_on } = reactor.run();
    if let Some(cluster) = cluster {
        cluster.set_store(None);
    }
    let clients_seen = store.map(Serving::end);
    // Output of a daemon that left its process group is not awaited.
    drop(stop_out);
    let pids = group.pids();
    let Group { tails, not_started, stuck, capture, .. } = group;
    drop(capture);
    // The other nodes do not wait for this node's screen.
    let waited = inbox.wait(&readers_done, cluster.map(|_| OUTPUT), verdict.stop_source.is_some());
    let signal = match waited.stopped {
        Some(Event::Stop { signal, .. }) => Some(signal),
        Some(_) => Some(signals::KILL),
        None => None,
    };
    verdict.stop_source = verdict.stop_source.or(signal.map(|signal| StopSource::Request { signal }));
    verdict.notices.extend(waited.notices);
    let (failed_logs, has_heartbeats) = (failed_logs.report(), attempt.heartbeats.has_seen_any());
    Ok(Run {
        verdict,
        pids,
        tails,
        not_started,
        stuck,
        failed_logs,
        clients_seen,
        has_heartbeats,
        abandoned: waited.abandoned,
        stopped: waited.stopped,
        held,
        passed_on,
    })
}

struct Reactor<'a> {
    agent: Agent,
    /// Actions not carried out yet.
    actions: VecDeque<Action>,
    group: Group<'a>,
    heartbeats: &'a mut Heartbeats,
    poll_interval: Duration,
    launch: &'a Launch<'a>,
    screen: &'a Screen,
    /// The other nodes, if there are several.
    cluster: Option<&'a Cluster>,
    orders: Receiver<Order>,
    /// Orders for the time after this attempt.
    held: Vec<Order>,
    passed_on: PassedOn,
    evicted: bool,
}

/// A finished attempt.
struct Over<'a> {
    verdict: Verdict,
    group: Group<'a>,
    held: Vec<Order>,
    passed_on: PassedOn,
}

impl<'a> Reactor<'a> {
    fn run(mut self) -> Over<'a> {
        self.actions.extend(self.agent.begin(self.now()));
        loop {
            match self.actions.pop_front() {
                Some(Action::Finish(verdict)) => {
                    let Self { group, held, passed_on, .. } = self;
                    return Over { verdict, group, held, passed_on };
                }
                Some(action) => self.carry_out(action),
                None => self.wait(),
            }
        }
    }

    fn now(&self) -> Duration {
        self.launch.inbox.start_time.elapsed()
    }

    fn hear(&mut self, event: &Event) {
        let actions = self.agent.on(event, self.now());
        self.actions.extend(actions);
    }

    fn say(&self, notice: impl Into<Message>) {
        // Fails only if the screen was given up.
        let _ = self.screen.notices.send(notice.into());
    }

    /// Carries out a decision; only this function has effects.
    fn carry_out(&mut self, action: Action) {
        match action {
            Action::Start { rank } => {
                let event = self.group.start(rank);
                self.hear(&event);
            }
            Action::Signal { rank, signal } => self.group.signal(rank, signal),
            Action::Notify { rank, signal } => self.group.pending_signals.push((rank, signal)),
            Action::Inspect { ranks, number } => self.group.inspect(&ranks, number, &self.screen.notices),
            Action::Sweep => self.group.sweep(),
            // The leader tells the user about failures on all nodes.
            Action::Tell(Notice::Failed { rank, .. }) if self.cluster.is_some() => {
                if let (Some(cluster), Some(end)) = (self.cluster, self.agent.end_of(rank)) {
                    cluster.tell(MemberEvent::Failed(end.clone()));
                }
            }
            Action::Tell(Notice::Stuck { ranks }) => {
                let text = self.group.describe_stuck(&ranks);
                // On several nodes, this node leaves for this reason.
                if self.cluster.is_none() {
                    self.say(Message::error(format!("dtrain: {text}")));
                }
            }
            Action::Tell(notice) => {
                let text = messages::notice(&notice, &self.launch.plan, self.launch.args.shutdown_timeout());
                text.into_iter().for_each(|text| self.say(text));
            }
            Action::Finish(_) => {}
        }
    }

    /// Waits for the next event.
    fn wait(&mut self) {
        let (plan, inbox) = (&self.launch.plan, &self.launch.inbox);
        let look = Instant::now() + self.poll_interval;
        let deadline = self.agent.deadline().and_then(|deadline| inbox.start_time.at.checked_add(deadline));
        let next = inbox.next(deadline.map_or(look, |deadline| deadline.min(look)), &self.orders);
        if !self.evicted && plan.is_evicted() {
            self.evicted = true;
            self.say(Message::error(messages::evicted(plan)));
            self.hear(&Event::Evicted);
        }
        if let Some(warning) = plan.lock_warning() {
            self.say(Message::warning(format!("dtrain: {warning}")));
        }
        self.group.deliver_pending();
        // Beats before this event count first, so no live worker is suspected or killed.
        for beat in self.heartbeats.look(inbox.start_time) {
            self.hear(&beat);
        }
        match (next, self.cluster) {
            (Incoming::Event(event), cluster) => {
                if let (Event::Stop { signal, again }, Some(cluster)) = (&event, cluster) {
                    cluster.tell(MemberEvent::Asked { signal: *signal, again: *again });
                }
                if let Event::Forward { signal } = event {
                    self.passed_on.insert(signal, inbox.sender_of(signal));
                }
                self.hear(&event);
            }
            (Incoming::Order(order), _) => match order.event() {
                Some(event) => self.hear(&event),
                None => self.held.push(order),
            },
        }
    }
}
