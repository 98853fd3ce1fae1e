//! The main thread's work on one of several nodes: prepares and runs attempts as the leader decides.

mod ending;

use super::handle::Cluster;
use super::meeting::{Meeting, interface_of, usual_address};
use super::order::Order;
use super::setup;
use super::shorten::{LONGEST_REASON, cut};
use crate::cli::Rendezvous;
use crate::launch::attempt::{Attempt, EarlierResult, Launch, Run};
use crate::launch::inbox::Incoming;
use crate::launch::master_address::MasterAddress;
use crate::launch::port::MasterPort;
use crate::launch::report;
use crate::launch::{close, messages, reactor};
use crate::stdout::join_causes;
use anyhow::{Context, anyhow, ensure};
use dtrain_agent::cluster::member::{FinishedAttempt, MemberEvent};
use dtrain_agent::cluster::message::{Blame, Endpoint, Preparation, RunInfo};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::trial::Place;
use dtrain_agent::io::fence::Fence;
use dtrain_agent::io::output::{Message, Screen};
use dtrain_agent::io::probe::Listeners;
use dtrain_agent::local::{Cause, Event, Restarts, TICK};
use dtrain_agent::signals;
use dtrain_common::exit::ExitStatus;
use dtrain_common::host;
use dtrain_common::random;
use dtrain_common::result::Failure;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Instant;

const EVICTED: &str = "another run has taken the run directory";

/// Runs this node's part of the run to its end. `lease` is the guardian's memory; `restarts` are the leader's.
pub(in crate::launch) fn run(
    mut launch: Launch<'_>,
    lease: &Path,
    meeting: Meeting,
    node: Node,
    restarts: Restarts,
    notices: Vec<i32>,
) -> anyhow::Result<ExitStatus> {
    let leads = meeting.leads();
    let rendezvous = meeting.rendezvous.clone();
    let fence = Fence::open(lease).with_context(|| format!("cannot open the lease {}", lease.display()))?;
    launch.lease = (!leads).then(|| lease.to_owned());
    launch.run.leader = random::number();
    let plan = &launch.plan;
    let setup = leads.then(|| setup::leader(&launch, &meeting, restarts));
    let mut headline = plan.headline();
    if leads {
        let (before, warning) = setup::open_files(&rendezvous, plan.nproc);
        launch.open_files = before;
        headline.extend(warning.map(Message::warning));
    }
    let role = if leads { "leads the run at" } else { "joins the run at" };
    headline.push(format!("dtrain: {} {role} {}", node.host, meeting.shown()).into());
    let open = meeting.warning().filter(|_| leads);
    headline.extend(open.map(|warning| Message::warning(format!("dtrain: {warning}"))));
    let screen = Screen::start(headline, plan.routing.format)?;
    let cluster = Cluster::start(meeting, node, setup, &launch.inbox, fence, screen.notices.clone())?;
    let node_run = NodeRun {
        launch,
        cluster,
        screen,
        leads,
        rendezvous,
        prepared: None,
        listeners: None,
        latest: None,
        resumed: None,
        requests: 0,
        asked: None,
        notices,
        concluded: None,
        restarts: 0,
        held: VecDeque::new(),
        is_over: false,
        is_abandoned: false,
        is_noted: false,
    };
    Ok(node_run.run())
}

/// One node's part of a run.
struct NodeRun<'a> {
    launch: Launch<'a>,
    cluster: Cluster,
    screen: Screen,
    leads: bool,
    rendezvous: Rendezvous,
    prepared: Option<(Attempt, Preparation)>,
    /// The ports that other nodes try before the start.
    listeners: Option<Listeners>,
    latest: Option<Run>,
    /// The newest checkpoint when the latest workers were started.
    resumed: Option<PathBuf>,
    /// The requests to stop while no worker ran, and the signal of the first.
    requests: u32,
    asked: Option<i32>,
    /// Signals for the next workers.
    notices: Vec<i32>,
    /// The leader's end of the run.
    concluded: Option<ExitStatus>,
    restarts: u32,
    /// Whether this node's member has ended.
    is_over: bool,
    is_abandoned: bool,
    /// Whether the user knows where the logs are.
    is_noted: bool,
    /// Orders that came while workers ran.
    held: VecDeque<Order>,
}

impl NodeRun<'_> {
    fn run(mut self) -> ExitStatus {
        let status = loop {
            let next = match self.held.pop_front() {
                Some(order) => Incoming::Order(order),
                None => self.launch.inbox.next(Instant::now() + TICK, &self.cluster.orders),
            };
            let ended = match next {
                Incoming::Order(order) => self.obey(order),
                Incoming::Event(event) => self.hear(&event),
            };
            if let Some(status) = ended {
                break status;
            }
        };
        drop(self.cluster);
        if !self.is_abandoned {
            close(self.screen, &self.launch.inbox);
        }
        status
    }

    fn say(&self, notice: impl Into<Message>) {
        // Cannot fail while the launcher runs: the screen's thread ends only after its last sender.
        drop(self.screen.notices.send(notice.into()));
    }

    /// Handles an event while no worker runs. Returns the status if that ends this node's part.
    fn hear(&mut self, event: &Event) -> Option<ExitStatus> {
        match *event {
            Event::Stop { signal, again } => {
                self.cluster.tell(MemberEvent::Asked { signal, again });
                self.asked.get_or_insert(signal);
                if again || self.requests == 0 {
                    self.requests += 1;
                }
                // At the leader, the second request is for the workers of other nodes.
                let most = if self.leads { 3 } else { 2 };
                return (self.requests >= most).then(|| self.give_up(signal));
            }
            // As on one node: the next launch resumes.
            Event::Forward { signal: signals::USR1 } if self.leads && self.launch.plan.has_checkpoint() => {
                self.requeue();
            }
            Event::Forward { signal } => match &mut self.prepared {
                Some((_, preparation)) => preparation.notices.push(signal),
                None => self.notices.push(signal),
            },
            Event::Abandoned => return Some(self.give_up(signals::KILL)),
            _ => {}
        }
        None
    }

    /// Ends this node's part at once; on the leader's node, the run.
    fn give_up(&mut self, signal: i32) -> ExitStatus {
        let status = ExitStatus::Signal(signal);
        let reason = format!("stopped by {}", signals::name(signal));
        self.say(Message::error(format!("dtrain: exit code {}: {reason}", status.code())));
        self.cluster.decide(status.code(), reason);
        status
    }

    fn obey(&mut self, order: Order) -> Option<ExitStatus> {
        match order {
            Order::Joined(run) => self.joined(run),
            Order::Prepare { preparation, address } => self.prepare(preparation, address),
            Order::Start(rank0) => return self.start(rank0),
            Order::Stop(_) | Order::Kill => self.discard(),
            Order::Ended { judgement, nodes } => {
                let conclusion = self.conclusion(&judgement, nodes);
                let mut lines = conclusion.blame.map_or_else(Vec::new, |blame| blame.banner);
                lines.extend(conclusion.reason.map(|reason| format!("dtrain: {reason}")));
                self.say(Message::error(lines.join("\n")));
            }
            Order::Restarting { restart, pause } => {
                self.restarts = restart;
                let (allowed, workers) =
                    (self.launch.run.max_restarts, self.launch.plan.placement.world_size);
                self.say(messages::restarting(restart, allowed, workers, pause));
            }
            Order::Conclude(ending) => {
                self.conclude(*ending);
                return self.concluded.filter(|_| self.is_over);
            }
            Order::Over { ending, cause } => return self.over(ending, cause),
        }
        None
    }

    fn joined(&mut self, run: RunInfo) {
        if !self.leads
            && let Some(text) = self.launch.plan.join(run.run_dir.as_deref(), run.recipe.clone())
        {
            self.say(format!("dtrain: {text}"));
        }
        self.launch.run = run;
    }

    /// Discards workers that are prepared, but do not start.
    fn discard(&mut self) {
        self.listeners = None;
        if let Some((attempt, _)) = self.prepared.take() {
            attempt.files.remove();
        }
    }

    fn prepare(&mut self, mut preparation: Preparation, address: Option<IpAddr>) {
        self.discard();
        preparation.notices.append(&mut self.notices);
        let epoch = preparation.epoch;
        let address = address.unwrap_or_else(|| usual_address(&self.rendezvous.endpoint.host));
        match self.try_prepare(&preparation, address) {
            Ok(attempt) => {
                let listens = (preparation.placement.group_rank == 0).then(|| attempt.rank0.clone());
                let logs = attempt.files.number.unwrap_or(preparation.logs);
                let place = preparation.has_trial.then(|| self.listen(address, &attempt)).flatten();
                self.prepared = Some((attempt, preparation));
                self.cluster.tell(MemberEvent::Prepared { epoch, listens, logs, place });
            }
            Err(error) => self.leave(&error),
        }
    }

    /// Listens until the start, so that the other nodes can try this one.
    fn listen(&mut self, address: IpAddr, attempt: &Attempt) -> Option<Place> {
        if address.is_loopback() {
            return Some(Place::closed(address));
        }
        // Only rank 0's port is one of dtrain's, unless it is the endpoint's.
        let own = attempt.port.as_ref().filter(|port| port.chosen);
        let port = own.and_then(|_| MasterPort::choose().ok());
        match Listeners::open(port.as_ref().map(|port| port.number)) {
            Ok(listeners) => {
                let place = listeners.place(address, self.launch.interface.clone());
                self.listeners = Some(listeners);
                Some(place)
            }
            Err(error) => {
                self.say(Message::warning(format!(
                    "dtrain: the other nodes cannot try the connection to this one: {error}"
                )));
                None
            }
        }
    }

    /// Leaves the run: this node cannot start its workers.
    fn leave(&self, error: &anyhow::Error) {
        let mut reason = join_causes(error);
        if !self.leads {
            self.say(Message::error(format!("dtrain: error: {reason}")));
        }
        cut(&mut reason, LONGEST_REASON);
        self.cluster.tell(MemberEvent::Leaving { reason });
    }

    fn try_prepare(&mut self, preparation: &Preparation, address: IpAddr) -> anyhow::Result<Attempt> {
        let serves_store = self.leads && self.launch.plan.serves_store();
        self.launch.master_address = match preparation.placement.group_rank {
            // torchrun serves both the rendezvous and PyTorch's store there.
            0 if self.rendezvous.is_static && serves_store => {
                MasterAddress::at_leaders_port(address, self.rendezvous.endpoint.port)
            }
            _ => MasterAddress::of(address),
        };
        self.launch.interface = interface_of(address);
        let plan = &mut self.launch.plan;
        ensure!(!plan.is_evicted(), EVICTED);
        plan.place(preparation.placement);
        match self.leads {
            true if preparation.restart > 0 => plan.prepare_restart()?,
            true => {}
            false => plan.write_recipe()?,
        }
        let attempt = Attempt::prepare(&self.launch, preparation.restart, Some(preparation.logs))?;
        if !self.is_noted {
            self.is_noted = true;
            let note = self.launch.plan.routing.note.map(str::to_owned);
            for note in attempt.files.note().into_iter().chain(note) {
                self.say(format!("dtrain: {note}"));
            }
        }
        Ok(attempt)
    }

    /// Runs the prepared attempt to its end.
    fn start(&mut self, rank0: Endpoint) -> Option<ExitStatus> {
        let (mut attempt, preparation) = self.prepared.take()?;
        self.listeners = None;
        attempt.rank0 = rank0;
        self.resumed = self.launch.plan.newest_checkpoint();
        if let Some(signal) = self.asked {
            // It came after this node was ready: the leader takes these workers for told. Cannot fail: this object has the receiver.
            let _ = self.launch.inbox.sender.send(Event::Stop { signal, again: false });
        }
        let taken = match self.leads {
            _ if self.launch.plan.is_evicted() => Err(anyhow!(EVICTED)),
            true => EarlierResult::take(self.launch.plan.run_dir.as_ref()),
            false => Ok(None),
        };
        let cluster = Some(&self.cluster);
        let (earlier, result) = match taken {
            Ok(earlier) => {
                let notices = preparation.notices;
                (earlier, reactor::attempt(&self.launch, &mut attempt, notices, &self.screen, cluster))
            }
            Err(error) => (None, Err(error)),
        };
        let has_started = matches!(&result, Ok(run) if run.not_started.is_none());
        let earlier = earlier.filter(|_| !has_started && !self.launch.plan.is_evicted());
        if let Some(text) = earlier.as_ref().and_then(EarlierResult::restore) {
            self.say(Message::warning(text));
        }
        match result {
            Err(error) => self.leave(&error),
            // The guardian was killed, and this node with it. The others lose the connection.
            Ok(run) if run.verdict.cause == (Cause::Stopped { signal: signals::KILL }) => {
                self.is_abandoned = run.abandoned;
                return Some(ExitStatus::Signal(signals::KILL));
            }
            Ok(run) => return self.after(run, &attempt),
        }
        None
    }

    /// Tells the leader about an attempt that is over.
    fn after(&mut self, mut run: Run, attempt: &Attempt) -> Option<ExitStatus> {
        self.held.extend(std::mem::take(&mut run.held));
        let (plan, start_time) = (&self.launch.plan, self.launch.inbox.start_time);
        let port_taken = attempt.port_was_taken(&run);
        let blame = match &run.not_started {
            Some((rank, error)) => {
                let text = messages::cannot_start(plan, *rank, error);
                let failure = Failure {
                    rank: plan.rank(*rank),
                    host: host::name(),
                    message: Some(text.clone()),
                    at_ms: start_time.unix_ms(start_time.elapsed()),
                    ..Failure::default()
                };
                let banner = vec![format!("dtrain: {}: {text}", failure.host)];
                Some(Blame { failure, ended: format!("failed: {text}"), reported: None, banner })
            }
            None => report::blame(plan, &run, attempt, start_time),
        };
        for line in run.failed_logs.iter().cloned() {
            self.say(Message::warning(line));
        }
        if port_taken && run.clients_seen.is_some() {
            self.launch.plan.serve_no_store();
        }
        self.is_abandoned = run.abandoned;
        let verdict = run.verdict.clone();
        self.cluster.tell(MemberEvent::Over(Box::new(FinishedAttempt {
            verdict,
            port_taken,
            has_checkpoint: self.leads && self.launch.plan.has_checkpoint(),
            blame: blame.map(Box::new),
        })));
        if let Some(stuck) = run.stuck.take() {
            self.leave(&anyhow!(stuck));
        }
        let stopped = run.stopped.take();
        if run.not_started.is_none() {
            self.latest = Some(run);
        }
        match stopped {
            Some(event) => self.hear(&event),
            None => None,
        }
    }
}
