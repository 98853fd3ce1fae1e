//! Failures of a network.

use std::ops::RangeInclusive;

use super::{Network, Node};

impl Network {
    /// Separates these nodes from all others, in silence: packets are lost.
    pub fn cut(&self, nodes: &[usize]) {
        self.plug(nodes, "apart");
    }

    /// Connects all nodes again.
    pub fn heal(&self) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        self.plug(&all, "together");
    }

    /// Adds an interface `eth1` at 192.168.77.1 and so on, from which no other node is reachable.
    pub fn add_second_interface(&self, node: usize) {
        let pid = self.nodes[node].space.pid();
        self.switch.sh(&format!("ip link add w{node} up type veth peer name eth1 netns {pid}"));
        let host = node + 1;
        let commands = format!("ip address add 192.168.77.{host}/24 dev eth1; ip link set eth1 up");
        self.nodes[node].space.sh(&commands);
    }

    fn plug(&self, nodes: &[usize], bridge: &str) {
        // One `ip` for all of them: a moment later, they are separate.
        let lines: String = nodes.iter().map(|node| format!("link set v{node} master {bridge}\n")).collect();
        self.switch.sh(&format!("printf '{lines}' | ip -batch -"));
    }
}

impl Node {
    /// Resets all TCP connections with other nodes.
    pub fn reset_connections(&self) {
        let addresses = if self.address.is_ipv4() { "10.77.0.0/24" } else { "[fd77::/64]" };
        self.space.sh(&format!("ss --no-header --kill state established dst '{addresses}'"));
    }

    /// Loses all TCP packets to these ports of this node, as a firewall does.
    pub fn block_ports(&self, ports: RangeInclusive<u16>) {
        self.drop_packets(&format!("INPUT -i eth0 -p tcp --dport {}:{}", ports.start(), ports.end()));
    }

    /// Loses all packets of more than this number of bytes, as a router with a smaller MTU whose messages a
    /// firewall drops.
    pub fn lose_large_packets(&self, bytes: u16) {
        self.drop_packets(&format!("INPUT -i eth0 -m length --length {bytes}:"));
        self.drop_packets(&format!("OUTPUT -o eth0 -m length --length {bytes}:"));
    }

    /// Loses this share of the packets that other nodes send to this node, at random.
    pub fn lose_some_packets(&self, share: f64) {
        self.drop_packets(&format!("INPUT -i eth0 -m statistic --mode random --probability {share}"));
    }

    /// Answers every TCP packet of other nodes with a reset, as a firewall does that rejects them.
    pub fn reject_packets(&self) {
        self.space.sh("for t in iptables ip6tables; do \
             $t -w -A INPUT -i eth0 -p tcp -j REJECT --reject-with tcp-reset; done");
    }

    /// Opens the firewall again.
    pub fn unblock(&self) {
        self.space.sh("iptables -w -F; ip6tables -w -F");
    }

    /// Sets the largest packet that this node sends and accepts.
    pub fn set_mtu(&self, bytes: u16) {
        self.space.sh(&format!("ip link set eth0 mtu {bytes}"));
    }

    fn drop_packets(&self, matching: &str) {
        self.space.sh(&format!("for t in iptables ip6tables; do $t -w -A {matching} -j DROP; done"));
    }
}
