//! The trial of the connections between the nodes before the workers start: who tries whom, and the results.

use serde::{Deserialize, Serialize};
use std::net::IpAddr;

/// Up to this number of nodes, each tries all others.
const ALL_PAIRS: usize = 8;

/// Where a node listens for the others' tries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Place {
    pub address: IpAddr,
    /// The interface of the address, if it is known.
    pub interface: Option<String>,
    /// A port of those that dtrain gives to rank 0, where the node may need one.
    pub worker_port: Option<u16>,
    /// A port of the system's automatic ones, which Gloo and NCCL use.
    pub automatic_port: u16,
    /// A random number: the answer of another machine or program differs.
    pub number: u64,
}

impl Place {
    /// Returns the place of a node that does not listen: nobody can reach its address.
    pub fn closed(address: IpAddr) -> Self {
        Self { address, interface: None, worker_port: None, automatic_port: 0, number: 0 }
    }

    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.worker_port.into_iter().chain([self.automatic_port])
    }
}

/// Why a node cannot be used from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    Unreachable,
    Refused,
    /// No answer to the connection.
    Silent,
    /// Another node, or another program, answers.
    Stranger,
    /// Small messages are answered, large ones are not.
    LargeLost,
    Broken,
}

/// A try that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedTry {
    pub fault: Fault,
    pub port: u16,
    /// Whether the node's other port works.
    pub other_works: bool,
}

/// A failed connection, with the hosts' names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedConnection {
    pub from: String,
    pub to: String,
    /// Of `to`.
    pub place: Place,
    pub failure: FailedTry,
}

/// Returns the nodes that a node tries: all others, or of many those at the distances 1, 2, 4 and so on.
///
/// So each node is tried by several others and takes part in a number of tries that grows with the logarithm. The
/// ways of rings, trees and recursive doubling between nodes are among them. All nodes have reached the leader.
pub fn targets(node: usize, nodes: usize) -> Vec<usize> {
    let next = |distance: &usize| if nodes <= ALL_PAIRS { distance + 1 } else { distance * 2 };
    let distances = std::iter::successors(Some(1), move |distance| Some(next(distance)));
    distances.take_while(|distance| *distance < nodes).map(|distance| (node + distance) % nodes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_is_tried_equally_often_and_never_by_itself() {
        for nodes in 1..200 {
            let all: Vec<usize> = (0..nodes).flat_map(|node| targets(node, nodes)).collect();
            let each =
                if nodes <= ALL_PAIRS { nodes - 1 } else { nodes.next_power_of_two().ilog2() as usize };
            for node in 0..nodes {
                assert_eq!(all.iter().filter(|to| **to == node).count(), each, "{node} of {nodes}");
                assert!(!targets(node, nodes).contains(&node));
            }
        }
    }
}
