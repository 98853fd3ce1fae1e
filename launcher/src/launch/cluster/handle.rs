//! This node's connection to the others: the driver's thread.

use super::driver::{self, Driver, Input, Link};
use super::meeting::Meeting;
use super::order::Order;
use crate::launch::inbox::Inbox;
use crossbeam_channel::{Receiver, Sender};
use dtrain_agent::cluster::member::{MemberEvent, MemberPolicy};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::cluster::{ClusterPolicy, Leader};
use dtrain_agent::io::fence::Fence;
use dtrain_agent::io::output::Message;
use dtrain_agent::io::store::StoreHandle;
use dtrain_agent::io::wire::{Client, Limits, Server};
use dtrain_agent::local::Restarts;
use std::io;
use std::thread::JoinHandle;

/// The decisions of the leader, on its node.
pub(in crate::launch) struct LeaderSetup {
    pub(super) policy: ClusterPolicy,
    pub(super) restarts: Restarts,
}

/// This node's connection to the others.
#[derive(Debug)]
pub(in crate::launch) struct Cluster {
    inputs: Sender<Input>,
    pub(in crate::launch) orders: Receiver<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Cluster {
    /// Joins the run, with a leader if this is its node. Messages for the user go to `screen`.
    pub(in crate::launch) fn start(
        meeting: Meeting,
        node: Node,
        leader: Option<LeaderSetup>,
        inbox: &Inbox,
        fence: Fence,
        screen: Sender<Message>,
    ) -> io::Result<Self> {
        let (inputs, received) = crossbeam_channel::unbounded();
        let (orders, to_main) = crossbeam_channel::unbounded();
        let endpoint = meeting.shown();
        let policy = MemberPolicy {
            join_timeout: meeting.rendezvous.join_timeout,
            rejoin_timeout: meeting.rejoin_timeout(),
        };
        let address = meeting.address;
        let (leader, link) = match (leader, meeting.bound) {
            (Some(mut setup), Some(bound)) => {
                let ahead = driver::now().saturating_sub(inbox.start_time.elapsed());
                setup.restarts.move_limit(ahead);
                let sender = inputs.clone();
                let heard = move |event| drop(sender.send(Input::Server(event)));
                let server: Server<_> = bound.serve(meeting.secret, Limits::default(), heard)?;
                let leader = Leader::new(setup.policy, setup.restarts, driver::now());
                (Some((leader, server)), Link::Own)
            }
            _ => {
                let sender = inputs.clone();
                let heard = move |event| drop(sender.send(Input::Client(event)));
                let client =
                    Client::connect(meeting.rendezvous.endpoint, meeting.secret, meeting.address, heard)?;
                (None, Link::Wire(client))
            }
        };
        fence.set_member(leader.is_none().then_some(node.instance))?;
        let driver = Driver {
            leader,
            link,
            inputs: received,
            own_inputs: inputs.clone(),
            orders,
            screen,
            family: inbox.family.clone(),
            start_time: inbox.start_time,
            address,
            endpoint,
            leaders: None,
            is_over: false,
            cause: None,
            instance: node.instance,
            fence,
        };
        let run = move || driver.run(node, policy);
        let thread = std::thread::Builder::new().name("cluster".to_owned()).spawn(run)?;
        Ok(Self { inputs, orders: to_main, thread: Some(thread) })
    }

    pub(in crate::launch) fn tell(&self, event: MemberEvent) {
        self.send(Input::Main(event));
    }

    /// Ends the run on all nodes with this exit code; on the leader's node.
    pub(in crate::launch) fn decide(&self, code: u8, reason: String) {
        self.send(Input::Decide { code, reason });
    }

    /// Serves clients of PyTorch's store at the leader's port.
    pub(in crate::launch) fn set_store(&self, store: Option<StoreHandle>) {
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
