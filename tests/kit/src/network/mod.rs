//! Several nodes on one machine: a network namespace and a host name for each. Needs root, `ip` and `iptables`.
//!
//! The nodes are `n0`, `n1`, ... at 10.77.0.1, 10.77.0.2, ...; a bridge connects their interfaces `eth0`. All
//! share the file system and the process ids. Drop kills their processes and removes them, and so does the end
//! of the test by a signal.

mod faults;
mod namespace;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::need::{Need, Skipped, require};
use crate::process::wait_until;
use namespace::Namespace;

/// Addresses of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    /// 10.77.0.1 and so on.
    V4,
    /// fd77::1 and so on.
    V6,
}

impl Addresses {
    fn of(self, index: usize) -> IpAddr {
        let last = u8::try_from(index + 1).expect("at most 254 nodes");
        match self {
            Self::V4 => IpAddr::from(Ipv4Addr::new(10, 77, 0, last)),
            Self::V6 => IpAddr::from(Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, last.into())),
        }
    }
}

/// A node.
#[derive(Debug)]
pub struct Node {
    /// Host name.
    pub name: String,
    /// Address that the other nodes reach.
    pub address: IpAddr,
    space: Namespace,
    files: PathBuf,
}

/// Nodes connected by a bridge.
#[derive(Debug)]
pub struct Network {
    // Dropped first: the processes in it.
    nodes: Vec<Node>,
    switch: Namespace,
    _files: TempDir,
}

impl std::ops::Index<usize> for Network {
    type Output = Node;

    fn index(&self, index: usize) -> &Node {
        &self.nodes[index]
    }
}

impl Network {
    /// Connects this number of nodes.
    ///
    /// # Errors
    /// As [`require`]: the permission or a program is missing.
    ///
    /// # Panics
    /// As [`require`], and if the machine cannot connect the namespaces that it can create.
    #[track_caller]
    pub fn new(nodes: usize) -> Result<Self, Skipped> {
        Self::with(Addresses::V4, &vec![0; nodes])
    }

    /// As [`Network::new`], with these addresses, and with one node for each number: the seconds by which its
    /// monotonic clock is ahead of the machine's.
    ///
    /// # Errors
    /// As [`Network::new`].
    ///
    /// # Panics
    /// As [`Network::new`].
    #[track_caller]
    pub fn with(addresses: Addresses, ahead: &[i64]) -> Result<Self, Skipped> {
        let why = "iptables fails in a network namespace; install iptables";
        // Namespaces take seconds.
        let is_found = Command::new("iptables").arg("--version").output().is_ok();
        require(Need::Netns, is_found.then_some(()).ok_or(why))?;
        let files = tempfile::tempdir().unwrap();
        let scratch = files.path().join("scratch");
        let switch = require(Need::Netns, Namespace::new("switch", None, &scratch, 0))?;
        let mut tool = Command::new("iptables");
        let works =
            switch.enter(tool.args(["-w", "-S"])).output().is_ok_and(|output| output.status.success());
        require(Need::Netns, works.then_some(()).ok_or(why))?;
        let names = 0..ahead.len();
        let lines = names.map(|index| format!("{} n{index}\n", addresses.of(index)));
        let hosts = format!("127.0.0.1 localhost\n::1 localhost\n{}", lines.collect::<String>());
        let node = |(index, ahead): (usize, &i64)| {
            let name = format!("n{index}");
            let files = files.path().join(&name);
            fs::create_dir(&files).unwrap();
            fs::write(files.join("hosts"), &hosts).unwrap();
            fs::write(files.join("nsswitch.conf"), "hosts: files\n").unwrap();
            let space = Namespace::new(&name, Some(&files), &scratch, *ahead).unwrap();
            Node { name, address: addresses.of(index), space, files }
        };
        let nodes: Vec<Node> = ahead.iter().enumerate().map(node).collect();
        let network = Self { nodes, switch, _files: files };
        network.connect();
        Ok(network)
    }

    /// Returns the nodes.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = &Node> + Clone {
        self.nodes.iter()
    }

    /// Waits until no process runs in any node.
    ///
    /// # Panics
    /// If one still runs after [`LONG`](crate::process::LONG).
    #[track_caller]
    pub fn wait_until_empty(&self) {
        wait_until("every process in the nodes to end", || {
            self.nodes.iter().all(|node| node.processes().is_empty())
        });
    }

    /// Connects each node to the bridge. All know the hardware addresses of all, as those behind a router: an
    /// absent node is silent, and not "unreachable" by missing answers to ARP.
    fn connect(&self) {
        let bridges =
            "for name in together apart; do ip link add $name type bridge; ip link set $name up; done\n";
        let mut script = String::from(bridges);
        let hardware = |index: usize| format!("02:00:00:00:00:{:02x}", index + 1);
        for (index, node) in self.nodes.iter().enumerate() {
            script += &format!(
                "ip link add v{index} type veth peer name eth0 address {} netns {}
                 ip link set v{index} master together up\n",
                hardware(index),
                node.space.pid(),
            );
        }
        self.switch.sh(&script);
        for node in &self.nodes {
            let (length, nodad) = if node.address.is_ipv4() { (24, "") } else { (64, "nodad") };
            let mut script = format!(
                "ip address add {}/{length} dev eth0 {nodad}
                 ip link set eth0 up\n",
                node.address
            );
            for (index, other) in self.nodes.iter().enumerate().filter(|(_, other)| other.name != node.name) {
                let hardware = hardware(index);
                script +=
                    &format!("ip neigh add {} lladdr {hardware} dev eth0 nud permanent\n", other.address);
            }
            node.space.sh(&script);
        }
    }
}

impl Node {
    /// Returns the same command, run in this node. The process that starts becomes the command's program.
    pub fn enter(&self, command: &Command) -> Command {
        self.space.enter(command)
    }

    /// Calls a function in a thread of the test whose sockets belong to this node. The thread does not know the
    /// names of the nodes.
    pub fn in_thread<T: Send>(&self, call: impl FnOnce() -> T + Send) -> T {
        self.space.in_thread(call)
    }

    /// Returns the processes in this node.
    pub fn processes(&self) -> Vec<u32> {
        self.space.processes()
    }

    /// Returns the node's own `/etc/hosts`, to be changed in place.
    pub fn hosts(&self) -> PathBuf {
        self.files.join("hosts")
    }
}
