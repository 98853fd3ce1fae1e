//! A launch on several nodes: this node's agent finds the others, and does what the leader decides.
//!
//! `meeting` finds the node's role and address, `driver` is the thread that talks to the other nodes, `node`
//! is the main thread's work. `refuse` is for a leader that cannot start.

mod driver;
mod meeting;
mod node;
mod refuse;
mod words;

pub(super) use meeting::Meeting;
pub(crate) use meeting::RendezvousFailed;
pub(super) use node::run;
pub(super) use refuse::refuse;

use crossbeam_channel::{Receiver, Sender};
use driver::{Driver, Input, Link};
use dtrain_agent::cluster::blame::{Judgement, NodeEnd};
use dtrain_agent::cluster::leader::Ending;
use dtrain_agent::cluster::member::{MemberEnding, MemberEvent, MemberPolicy, Preparation};
use dtrain_agent::cluster::message::{Endpoint, RunInfo, StopReason};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::{ClusterPolicy, Leader};
use dtrain_agent::io::store::StoreHandle;
use dtrain_agent::io::wire::{Client, Limits, Server};
use dtrain_agent::local::{Event, Restarts};
use std::io;
use std::net::IpAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use super::inbox::Inbox;

/// What the cluster asks of the main thread.
#[derive(Debug)]
pub(super) enum Order {
    Joined(RunInfo),
    /// `address`: by which other nodes reach this one, if it is known.
    Prepare {
        preparation: Preparation,
        address: Option<IpAddr>,
    },
    Start(Endpoint),
    Stop(StopReason),
    /// The workers have been killed: the lease of this node has ended.
    Kill,
    /// The leader's: an attempt failed, and the run goes on.
    Ended {
        judgement: Judgement,
        nodes: Vec<NodeEnd>,
    },
    Restarting {
        restart: u32,
        pause: Duration,
    },
    /// The leader's: the run is over. The answer is [`Cluster::decide`].
    Conclude(Box<Ending>),
    Over(MemberEnding),
}

impl Order {
    /// Returns the event for this node's workers, if they run.
    pub(super) fn event(&self) -> Option<Event> {
        match self {
            Self::Stop(StopReason::Asked { signal, .. }) => Some(Event::Stop { signal: *signal }),
            Self::Stop(StopReason::Requeue) => Some(Event::OthersRequeue),
            Self::Stop(_) => Some(Event::OthersFailed),
            Self::Kill => Some(Event::LeaseEnded),
            _ => None,
        }
    }
}

/// The decisions of the leader, on its node.
pub(super) struct LeaderSetup {
    pub(super) policy: ClusterPolicy,
    pub(super) restarts: Restarts,
}

/// This node's connection to the others.
#[derive(Debug)]
pub(super) struct Cluster {
    inputs: Sender<Input>,
    pub(super) orders: Receiver<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Joins the run, with a leader if this is its node. Messages for the user go to `screen`.
    pub(super) fn start(
        meeting: Meeting,
        node: Node,
        leader: Option<LeaderSetup>,
        inbox: &Inbox,
        screen: Sender<String>,
    ) -> io::Result<Self> {
        let (inputs, received) = crossbeam_channel::unbounded();
        let (orders, to_main) = crossbeam_channel::unbounded();
        let endpoint = meeting.shown();
        let policy =
            MemberPolicy { join_timeout: meeting.join_timeout, rejoin_timeout: meeting.rejoin_timeout() };
        let address = meeting.address;
        let (leader, link) = match (leader, meeting.bound) {
            (Some(setup), Some(bound)) => {
                let sender = inputs.clone();
                let heard = move |event| drop(sender.send(Input::Server(event)));
                let server: Server<_> = bound.serve(meeting.secret, Limits::default(), heard)?;
                let leader = Leader::new(setup.policy, setup.restarts, driver::now());
                (Some((leader, server)), Link::Own)
            }
            _ => {
                let sender = inputs.clone();
                let heard = move |event| drop(sender.send(Input::Client(event)));
                let client = Client::connect(meeting.endpoint, meeting.secret, meeting.address, heard)?;
                (None, Link::Wire(client))
            }
        };
        let driver = Driver {
            leader,
            link,
            inputs: received,
            orders,
            screen,
            family: inbox.family.clone(),
            start_time: inbox.start_time,
            address,
            endpoint,
            leaders: None,
            is_over: false,
        };
        let run = move || driver.run(node, policy);
        let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(run)?;
        Ok(Self { inputs, orders: to_main, thread: Some(thread) })
    }

    pub(super) fn tell(&self, event: MemberEvent) {
        self.send(Input::Main(event));
    }

    /// Ends the run on all nodes with this exit code; on the leader's node.
    pub(super) fn decide(&self, code: u8, reason: String) {
        self.send(Input::Decide { code, reason });
    }

    /// Serves clients of PyTorch's store at the leader's port.
    pub(super) fn set_store(&self, store: Option<StoreHandle>) {
        self.send(Input::SetStore(store));
    }

    fn send(&self, input: Input) {
        // Fails only if the thread has panicked.
        let _ = self.inputs.send(input);
    }
}

impl Drop for Cluster {
    /// Sends queued messages, for at most a second.
    fn drop(&mut self) {
        self.send(Input::End);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}
