//! What the cluster asks of the main thread.

use dtrain_agent::cluster::blame::{Judgement, NodeEnd};
use dtrain_agent::cluster::leader::Ending;
use dtrain_agent::cluster::member::MemberEnding;
use dtrain_agent::cluster::message::{Endpoint, Preparation, RunInfo, StopReason};
use dtrain_agent::local::Event;
use std::net::IpAddr;
use std::time::Duration;

/// See the module.
#[derive(Debug)]
pub(in crate::launch) enum Order {
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
    /// The leader's: an attempt failed, and another follows.
    Ended {
        judgement: Judgement,
        nodes: Vec<NodeEnd>,
    },
    Restarting {
        restart: u32,
        pause: Duration,
    },
    /// The leader's: the run is over. The main thread decides about the exit code.
    Conclude(Box<Ending>),
    /// `cause`: why the leader cannot be reached, if it cannot.
    Over {
        ending: MemberEnding,
        cause: Option<String>,
    },
}

impl Order {
    /// Returns the event for this node's workers, if they run.
    pub(in crate::launch) fn event(&self) -> Option<Event> {
        match self {
            Self::Stop(StopReason::Asked { signal, again }) => {
                Some(Event::Stop { signal: *signal, again: *again })
            }
            Self::Stop(StopReason::Requeue) => Some(Event::OthersRequeue),
            Self::Stop(StopReason::Admit) => Some(Event::Admit),
            Self::Stop(StopReason::Evicted) => Some(Event::Evicted),
            Self::Stop(_) => Some(Event::OthersFailed),
            Self::Kill => Some(Event::LeaseEnded),
            _ => None,
        }
    }
}
