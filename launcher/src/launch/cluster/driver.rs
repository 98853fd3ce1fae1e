//! The thread of the cluster: passes messages between the leader, the members and the main thread.
//!
//! It never waits for a disk, a worker or the screen, so heartbeats are in time: the lease is in memory. When the lease of this node
//! ends, it kills the workers itself, whatever the main thread does.

use super::order::Order;
use super::shorten::{bare, shortened};
use super::words;
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use dtrain_agent::clock::StartTime;
use dtrain_agent::cluster::leader::{LeaderAction, LeaderEvent, LeaderNotice, OWN};
use dtrain_agent::cluster::member::{MemberAction, MemberEnding, MemberEvent, MemberPolicy};
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::trial::Place;
use dtrain_agent::cluster::{Leader, Member};
use dtrain_agent::io::fence::{Fence, SIGN};
use dtrain_agent::io::output::Message;
use dtrain_agent::io::probe::{self, Outcome};
use dtrain_agent::io::process::Family;
use dtrain_agent::io::store::StoreHandle;
use dtrain_agent::io::wire::{Client, ClientEvent, CloseReason, ConnectError, Server, ServerEvent};
use dtrain_common::agent_lease::Lease;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// An input of the thread.
pub(super) enum Input {
    Client(ClientEvent<ToMember>),
    Server(ServerEvent<ToLeader>),
    /// From the main thread, with times of the launch's clock.
    Main(MemberEvent),
    /// The end of the run, from the leader's main thread.
    Decide {
        code: u8,
        reason: String,
    },
    /// PyTorch's store, for clients that come to the leader's port.
    SetStore(Option<StoreHandle>),
    /// The main thread has ended: send what is queued, and end.
    End,
}

/// The connection to the leader.
pub(super) enum Link {
    /// The leader is in this process.
    Own,
    Wire(Client<ToLeader>),
}

pub(super) struct Driver {
    pub(super) leader: Option<(Leader, Server<ToMember>)>,
    pub(super) link: Link,
    pub(super) inputs: Receiver<Input>,
    /// For other threads of the driver.
    pub(super) own_inputs: Sender<Input>,
    pub(super) orders: Sender<Order>,
    pub(super) screen: Sender<Message>,
    pub(super) family: Family,
    pub(super) start_time: StartTime,
    /// The address by which other nodes reach this one, as far as it is known.
    pub(super) address: Option<IpAddr>,
    /// The endpoint as the user wrote it, for messages.
    pub(super) endpoint: String,
    /// The leader's address, when connected once.
    pub(super) leaders: Option<SocketAddr>,
    /// Whether this node's member has ended.
    pub(super) is_over: bool,
    pub(super) fence: Fence,
    /// The number of this node's member.
    pub(super) instance: u64,
    /// Why the leader could not be reached the last time.
    pub(super) cause: Option<String>,
}

/// What one machine of this process tells another.
enum Step {
    Leader(LeaderEvent),
    Member(MemberEvent),
}

impl Driver {
    /// Runs until the main thread ends it.
    pub(super) fn run(mut self, node: Node, policy: MemberPolicy) {
        let (mut member, actions) = Member::new(node, policy, now());
        let mut steps = VecDeque::new();
        self.carry_out(actions, &mut steps);
        loop {
            while let Some(step) = steps.pop_front() {
                match step {
                    Step::Leader(event) => self.tell_leader(event, &mut steps),
                    Step::Member(event) => {
                        let actions = member.on(event, now());
                        self.carry_out(actions, &mut steps);
                    }
                }
            }
            let leaders = self.leader.as_ref().and_then(|(leader, _)| leader.deadline());
            // The leader's own member needs no lease: while this process stands still, no epoch can begin.
            let lease = member.lease_end().filter(|_| self.leader.is_none());
            if let Err(error) = self.fence.update(lease) {
                self.say(&format!("cannot write the lease of this node: {error}"));
            }
            let sign = lease.map(|_| now().saturating_add(SIGN));
            let deadline = member.deadline().into_iter().chain(leaders).chain(sign).min();
            match self.next(deadline) {
                Some(Input::End) => return self.end(),
                Some(input) => self.receive(input, &mut steps),
                None => steps.extend([Step::Leader(LeaderEvent::Timer), Step::Member(MemberEvent::Timer)]),
            }
        }
    }

    /// Returns the next input; `None` at the deadline.
    fn next(&self, deadline: Option<Duration>) -> Option<Input> {
        let received = match deadline {
            None => self.inputs.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self.inputs.recv_timeout(deadline.saturating_sub(now())),
        };
        match received {
            Ok(input) => Some(input),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => Some(Input::End),
        }
    }

    fn receive(&mut self, input: Input, steps: &mut VecDeque<Step>) {
        match input {
            Input::Client(event) => self.on_client(event, steps),
            Input::Server(event) => self.on_server(event, steps),
            Input::Main(event) => steps.push_back(Step::Member(self.on_cluster_clock(event))),
            Input::Decide { code, reason } => {
                if let Some((leader, _)) = &mut self.leader {
                    let actions = leader.decide(code, reason);
                    self.carry_out_leader(actions, steps);
                }
            }
            Input::SetStore(store) => {
                if let Some((_, server)) = &self.leader {
                    server.set_store(store);
                }
            }
            Input::End => {}
        }
    }

    fn on_client(&mut self, event: ClientEvent<ToMember>, steps: &mut VecDeque<Step>) {
        steps.push_back(Step::Member(match event {
            _ if self.is_over => return,
            ClientEvent::Connected { local, peer } => {
                self.leaders = Some(peer);
                self.address = self.address.or(Some(local.ip().to_canonical()));
                MemberEvent::Connected
            }
            ClientEvent::Received(message) => MemberEvent::Received(message),
            ClientEvent::Disconnected { reason } => {
                let why = match reason {
                    // The lease has ended.
                    CloseReason::Requested => "it does not answer".to_owned(),
                    reason => reason.to_string(),
                };
                self.say(&format!("lost the leader at {}: {why}", self.endpoint));
                MemberEvent::Disconnected
            }
            ClientEvent::CannotConnect { address, reason } => {
                let text = words::cannot_connect(&self.endpoint, address, self.address, &reason);
                // The process of the leader has ended, and nobody follows it.
                let is_gone = reason == ConnectError::Refused && address.is_some() && address == self.leaders;
                if reason.is_permanent() && !is_gone {
                    let ending = MemberEnding::NoLeader;
                    return self.order(Order::Over { ending, cause: Some(text) });
                }
                if !is_gone {
                    self.say(&format!("{text}; trying again"));
                }
                self.cause = Some(text);
                if !is_gone {
                    return;
                }
                MemberEvent::LeaderGone
            }
        }));
    }

    fn on_server(&mut self, event: ServerEvent<ToLeader>, steps: &mut VecDeque<Step>) {
        steps.push_back(Step::Leader(match event {
            ServerEvent::Opened { local, .. } => {
                let reached = local.ip().to_canonical();
                if self.address.is_none_or(|known| known.is_loopback()) {
                    self.address = Some(reached);
                }
                return;
            }
            ServerEvent::Received { id, message } => LeaderEvent::Received { from: id, message },
            ServerEvent::Closed { id, .. } => LeaderEvent::Disconnected { from: id },
            ServerEvent::Stranger { peer, reason } => {
                return self
                    .say(&format!("{peer} connected to {}, but is no member: {reason}", self.endpoint));
            }
            ServerEvent::MoreStrangers => {
                return self.say("there were many such connections: further ones are not reported");
            }
        }));
    }

    fn tell_leader(&mut self, event: LeaderEvent, steps: &mut VecDeque<Step>) {
        if let Some((leader, _)) = &mut self.leader {
            let actions = leader.on(event, now());
            self.carry_out_leader(actions, steps);
        }
    }

    fn carry_out_leader(&mut self, actions: Vec<LeaderAction>, steps: &mut VecDeque<Step>) {
        let Some((_, server)) = &self.leader else { return };
        for action in actions {
            match action {
                LeaderAction::Send { to: OWN, message } => {
                    steps.push_back(Step::Member(MemberEvent::Received(message)));
                }
                LeaderAction::Send { to, message } => {
                    if let Err(error) = server.send(to, &message) {
                        self.say(&format!("cannot send a message to a node: {error}"));
                    }
                }
                LeaderAction::Close { member: OWN } => {
                    steps.push_back(Step::Member(MemberEvent::Disconnected))
                }
                LeaderAction::Close { member } => server.close(member),
                LeaderAction::Tell(LeaderNotice::Restarting { restart, pause }) => {
                    self.order(Order::Restarting { restart, pause });
                }
                LeaderAction::Tell(LeaderNotice::Ended { judgement, nodes }) => {
                    self.order(Order::Ended { judgement, nodes });
                }
                LeaderAction::Tell(notice) => self.say(&words::notice(&notice)),
                LeaderAction::Finish(ending) => self.order(Order::Conclude(ending)),
            }
        }
    }

    fn carry_out(&mut self, actions: Vec<MemberAction>, steps: &mut VecDeque<Step>) {
        for action in actions {
            match (action, &self.link) {
                (MemberAction::Send(message), Link::Own) => {
                    steps.push_back(Step::Leader(LeaderEvent::Received { from: OWN, message }));
                }
                (MemberAction::Send(mut message), Link::Wire(client)) => {
                    if let ToLeader::Join { node, .. } = &mut message {
                        node.address = self.address;
                    }
                    // The only error is a message that is too long.
                    let mut sent = client.send(&message);
                    for shorten in [shortened, bare] {
                        if sent.is_err()
                            && let Some(shorter) = shorten(message.clone())
                        {
                            sent = client.send(&shorter);
                        }
                    }
                    if let Err(error) = sent {
                        self.say(&format!("cannot send a message to the leader: {error}"));
                    }
                }
                (MemberAction::Connect, Link::Own) => steps.push_back(Step::Member(MemberEvent::Connected)),
                // The client connects by itself.
                (MemberAction::Connect, Link::Wire(_)) => {}
                (MemberAction::Disconnect, Link::Own) => {
                    steps.push_back(Step::Leader(LeaderEvent::Disconnected { from: OWN }));
                }
                (MemberAction::Disconnect, Link::Wire(client)) => client.reconnect(),
                (MemberAction::Joined { run, is_spare }, _) => {
                    if is_spare {
                        self.say("this node waits as a spare until another node is lost or leaves");
                    }
                    self.order(Order::Joined(run));
                }
                (MemberAction::Prepare(preparation), _) => {
                    self.order(Order::Prepare { preparation, address: self.address });
                }
                (MemberAction::Try { epoch, places }, _) => self.try_places(epoch, places),
                (MemberAction::Start { rank0 }, _) => {
                    self.family.open();
                    self.order(Order::Start(rank0));
                }
                (MemberAction::Stop(reason), _) => self.order(Order::Stop(reason)),
                (MemberAction::Kill, _) => {
                    self.family.close();
                    self.order(Order::Kill);
                }
                (MemberAction::Finish(ending), _) => {
                    self.is_over = true;
                    self.order(Order::Over { ending, cause: self.cause.clone() });
                }
            }
        }
    }

    /// Tries the connections to other nodes; the result is an input.
    fn try_places(&self, epoch: u64, places: Vec<(usize, Place)>) {
        let inputs = self.own_inputs.clone();
        let run = move || {
            let outcomes = probe::try_all(places.iter().map(|(_, place)| place));
            let failed = |((node, _), outcome): (&(usize, Place), Outcome)| Some((*node, outcome.err()?));
            let failures = places.iter().zip(outcomes).filter_map(failed).collect();
            // Fails only at the end.
            let _ = inputs.send(Input::Main(MemberEvent::Tried { epoch, failures }));
        };
        if let Err(error) = std::thread::Builder::new().name("trial".to_owned()).spawn(run) {
            self.say(&format!("cannot try the connections to the other nodes: {error}"));
            let untried = MemberEvent::Tried { epoch, failures: Vec::new() };
            let _ = self.own_inputs.send(Input::Main(untried));
        }
    }

    /// Converts times of the launch's clock, which stands still while the machine is suspended.
    fn on_cluster_clock(&self, event: MemberEvent) -> MemberEvent {
        let (now, launch) = (now(), self.start_time.elapsed());
        let convert = |at: Duration| now.saturating_sub(launch.saturating_sub(at));
        match event {
            MemberEvent::Failed(mut end) => {
                end.at = convert(end.at);
                MemberEvent::Failed(end)
            }
            MemberEvent::Over(mut finished) => {
                let verdict = &mut finished.verdict;
                verdict.ends.iter_mut().for_each(|end| end.at = convert(end.at));
                verdict.silent_since = verdict.silent_since.map(convert);
                MemberEvent::Over(finished)
            }
            other => other,
        }
    }

    fn order(&self, order: Order) {
        // Fails only if the main thread has ended.
        let _ = self.orders.send(order);
    }

    fn say(&self, text: &str) {
        // Fails only if the screen was given up.
        let _ = self.screen.send(format!("dtrain: {text}").into());
    }

    fn end(self) {
        if let Some((_, server)) = self.leader {
            server.end();
        }
        if let Link::Wire(client) = self.link {
            if !self.is_over {
                // No worker runs any more. The message is short.
                let _ = client.send(&ToLeader::Gone { instance: self.instance });
            }
            client.end();
        }
        // Fails for no memory. At worst, the guardian repeats what the leader knows.
        let _ = self.fence.set_member(None);
    }
}

/// Returns the time on the cluster's clock, which counts the time of a suspended machine.
pub(super) fn now() -> Duration {
    Lease::now()
}
