//! The rows about the nodes of a job: each node, what differs between them, and connections that fail.

use super::Machine;
use super::probe::{Fault, Outcome, Place};
use super::row::{Level, Row};
use dtrain_common::text::counted;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Clocks that differ more make times of several nodes hard to compare.
const CLOCKS_US: u64 = 1_000_000;

/// What a node tells about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) place: Place,
    /// The interface of the address, with its MTU.
    pub(super) interface: Option<(String, u32)>,
    pub(super) machine: Machine,
}

/// The results of one node's tries, in the order of the nodes; `None` if it sent none.
pub(super) type Tries = Option<Vec<Outcome>>;

/// Returns the rows: nodes, differences, connections.
pub(super) fn judge(nodes: &[Node], tries: &[Tries]) -> Vec<Row> {
    let mut rows: Vec<Row> = nodes.iter().map(describe).collect();
    rows.extend(lacks(nodes));
    rows.extend(differences(nodes));
    rows.extend(connections(nodes, tries));
    rows
}

/// Returns what nodes lack, each thing once with the names of its nodes.
fn lacks(nodes: &[Node]) -> Vec<Row> {
    let mut found: Vec<(&Row, Vec<&str>)> = Vec::new();
    for node in nodes {
        for row in node.machine.rows.iter().filter(|row| row.level != Level::Ok) {
            match found.iter_mut().find(|(known, _)| *known == row) {
                Some((_, names)) => names.push(&node.name),
                None => found.push((row, vec![&node.name])),
            }
        }
    }
    let named = |(row, names): (&Row, Vec<&str>)| {
        let what = if names.len() == nodes.len() { "all".to_owned() } else { short(&names) };
        Row { what: format!("{what}: {}", row.what), ..row.clone() }
    };
    found.into_iter().map(named).collect()
}

fn describe(node: &Node) -> Row {
    let machine = &node.machine;
    let gpus = match &machine.gpus {
        Some(gpus) if !gpus.names.is_empty() => {
            format!(
                "{} ({} free), driver {}",
                counted(gpus.names.len(), "GPU"),
                gpus.free,
                gpus.versions.driver
            )
        }
        _ => "no GPU".to_owned(),
    };
    let libtorch = machine.libtorch.as_ref().map(|libtorch| format!(", libtorch {}", libtorch.version));
    let interface = node.interface.as_ref().map(|(name, mtu)| format!(" on {name} (MTU {mtu})"));
    let address = node.place.address;
    let value = format!("{address}{}, {gpus}{}", interface.unwrap_or_default(), libtorch.unwrap_or_default());
    Row::ok(&node.name, value)
}

/// Returns rows for versions and settings that should be the same on all nodes.
fn differences(nodes: &[Node]) -> Vec<Row> {
    type Read = fn(&Node) -> String;
    let things: [(&str, Read, Level, &str); 5] = [
        ("dtrain", |node| node.version.clone(), Level::Fail, "install the same dtrain on all nodes"),
        (
            "libtorch",
            |node| node.machine.libtorch.as_ref().map_or("none".into(), |it| it.version.clone()),
            Level::Fail,
            "use the same libtorch on all nodes, for example from a shared folder",
        ),
        (
            "NVIDIA driver",
            |node| node.machine.gpus.as_ref().map_or("none".into(), |it| it.versions.driver.clone()),
            Level::Warn,
            "install the same driver on all nodes; small differences are harmless",
        ),
        (
            "GPUs",
            |node| node.machine.gpus.as_ref().map_or("none".into(), |it| it.names.join(", ")),
            Level::Warn,
            "nothing to do; the slowest GPU sets the pace",
        ),
        (
            "MTU",
            |node| node.interface.as_ref().map_or("unknown".into(), |(_, mtu)| mtu.to_string()),
            Level::Warn,
            "set the same MTU on all nodes: `sudo ip link set INTERFACE mtu NUMBER`",
        ),
    ];
    let mut rows = Vec::new();
    for (what, read, level, remedy) in things {
        let mut by_value: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for node in nodes {
            by_value.entry(read(node)).or_default().push(&node.name);
        }
        if by_value.len() > 1 {
            let listed: Vec<String> =
                by_value.iter().map(|(value, names)| format!("{value} on {}", short(names))).collect();
            rows.push(Row { level, ..Row::warn(what, format!("differs: {}", listed.join("; ")), remedy) });
        }
    }
    rows
}

/// Joins names; of many, the first ones.
fn short(names: &[&str]) -> String {
    const MOST: usize = 4;
    match names.len() {
        0..=MOST => names.join(", "),
        count => format!("{} and {} more", names[..MOST].join(", "), count - MOST),
    }
}

/// What tries of one node have in common: the node, the fault, whether the port is for workers, and whether the
/// other port works.
type Failure = (usize, Fault, bool, bool);

fn connections(nodes: &[Node], tries: &[Tries]) -> Vec<Row> {
    let mut rows = Vec::new();
    // Tries of the same node that fail in the same way are one row.
    let mut failed: BTreeMap<Failure, (Vec<&str>, u16)> = BTreeMap::new();
    let (mut worked, mut slowest, mut apart) = (0, 0, None::<(u64, usize, usize)>);
    for (from, outcomes) in tries.iter().enumerate() {
        let Some(outcomes) = outcomes else {
            let remedy = "see its own output; run the doctor again";
            rows.push(Row::fail(&nodes[from].name, "sent no result of its connections", remedy));
            continue;
        };
        for (to, outcome) in outcomes.iter().enumerate().filter(|(to, _)| *to != from) {
            match *outcome {
                Outcome::Works { round_trip_us, ahead_us } => {
                    (worked, slowest) = (worked + 1, round_trip_us.max(slowest));
                    let ahead = ahead_us.unsigned_abs().saturating_sub(round_trip_us);
                    apart = apart.max(Some((ahead, from, to)));
                }
                Outcome::Fails { fault, port, other_works } => {
                    let is_workers = port == nodes[to].place.ports[0];
                    let entry = failed.entry((to, fault, is_workers, other_works)).or_default();
                    entry.0.push(&nodes[from].name);
                    entry.1 = port;
                }
            }
        }
    }
    for ((to, fault, is_workers, other_works), (from, port)) in failed {
        let (value, remedy) = explain(fault, &nodes[to], port, is_workers, other_works);
        rows.push(Row::fail(&format!("{} -> {}", short(&from), nodes[to].name), value, remedy));
    }
    if worked > 0 {
        let milliseconds = |us: u64| us as f64 / 1000.0;
        let value = format!("{worked} work, round trips up to {:.1} ms", milliseconds(slowest));
        rows.push(Row::ok("connections", value));
    }
    if let Some((ahead, from, to)) = apart.filter(|(ahead, ..)| *ahead > CLOCKS_US) {
        let value =
            format!("{} and {} differ by {:.1} s", nodes[from].name, nodes[to].name, ahead as f64 / 1e6);
        let remedy = "install chrony, or enable systemd-timesyncd; dtrain itself corrects for differences";
        rows.push(Row::warn("clocks", value, remedy));
    }
    rows
}

/// Returns the cause and the remedy.
fn explain(fault: Fault, to: &Node, port: u16, is_workers: bool, other_works: bool) -> (String, String) {
    let Node { name, place, interface, .. } = to;
    let address = place.address;
    if address.is_loopback() && fault != Fault::LargeLost {
        return (
            format!("{name} has only the address {address}, which leads each node to itself"),
            format!("on {name}, give --rdzv-interface, or correct the name of --rdzv-endpoint in /etc/hosts"),
        );
    }
    let interface = interface.as_ref().map_or("INTERFACE", |(name, _)| name);
    match fault {
        Fault::Silent if other_works => {
            let ports = if is_workers { "20000 to 32767" } else { "32768 to 60999" };
            (
                format!(
                    "no answer from {address} at port {port}, but at another port: a firewall blocks some ports"
                ),
                format!("open the TCP ports {ports} of {name} for the other nodes"),
            )
        }
        Fault::Silent => (
            format!(
                "no answer from {address}, port {port}: a firewall drops packets, or the address is on another network"
            ),
            format!("open the TCP ports from 20000 of {name} for the other nodes, or give --rdzv-interface"),
        ),
        Fault::Refused => (
            format!(
                "{address} refuses port {port}: a firewall rejects it, or the address is of another machine"
            ),
            format!("open the TCP ports from 20000 of {name} for the other nodes, or give --rdzv-interface"),
        ),
        Fault::Unreachable => (
            format!("there is no route to {address}"),
            format!("on {name}, choose an interface that all nodes reach, with --rdzv-interface"),
        ),
        Fault::Stranger => (
            format!("another machine or program answers at {address}: two machines have this address"),
            "give each node its own address, or choose another --rdzv-interface".to_owned(),
        ),
        Fault::LargeLost => (
            "small messages arrive, but large ones do not: packets above the MTU of the path are lost"
                .to_owned(),
            format!(
                "run `sudo ip link set {interface} mtu 1400` on all nodes, or `sudo sysctl net.ipv4.tcp_mtu_probing=1`"
            ),
        ),
        Fault::Broken => (
            format!("the connection to {address}, port {port}, breaks off"),
            "look for a proxy or a firewall between the nodes, and run the doctor again".to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn node(index: u8) -> Node {
        let place =
            Place { address: [10, 0, 0, index].into(), ports: [20_000, 40_000], number: index.into() };
        Node {
            name: format!("n{index}"),
            version: "0.1.0".into(),
            place,
            interface: Some(("eth0".into(), 1500)),
            machine: Machine::default(),
        }
    }

    const WORKS: Outcome = Outcome::Works { round_trip_us: 200, ahead_us: 50 };

    fn fails(fault: Fault, port: u16, other_works: bool) -> Outcome {
        Outcome::Fails { fault, port, other_works }
    }

    #[test]
    fn a_good_job_has_one_row_for_each_node_and_one_for_the_connections() {
        let rows = judge(&[node(0), node(1)], &[Some(vec![WORKS; 2]), Some(vec![WORKS; 2])]);
        assert_eq!(rows[0], Row::ok("n0", "10.0.0.0 on eth0 (MTU 1500), no GPU"));
        assert_eq!(rows[2..], [Row::ok("connections", "2 work, round trips up to 0.2 ms")]);
    }

    #[test]
    fn what_a_node_lacks_is_told_with_its_name() {
        let mut nodes = [node(0), node(1)];
        nodes[1].machine.rows = vec![Row::ok("ports", "good"), Row::warn("limits", "few", "more")];
        let rows = judge(&nodes, &[Some(vec![WORKS; 2]), Some(vec![WORKS; 2])]);
        assert_eq!(rows[2], Row::warn("n1: limits", "few", "more"));
        assert_eq!(rows.len(), 4);
        nodes[0].machine.rows = nodes[1].machine.rows.clone();
        assert_eq!(lacks(&nodes), [Row::warn("all: limits", "few", "more")]);
    }

    #[test]
    fn other_versions_and_settings_are_named_with_their_nodes() {
        let (mut old, mut small) = (node(1), node(2));
        old.version = "0.0.9".into();
        small.interface = Some(("eth0".into(), 1400));
        let rows = differences(&[node(0), old, small]);
        assert_eq!(
            (rows[0].level, rows[0].value.as_str()),
            (Level::Fail, "differs: 0.0.9 on n1; 0.1.0 on n0, n2")
        );
        assert_eq!(
            (rows[1].level, rows[1].value.as_str()),
            (Level::Warn, "differs: 1400 on n2; 1500 on n0, n1")
        );
        assert_eq!(rows.len(), 2);
        assert_eq!(short(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
    }

    #[test]
    fn a_node_that_all_miss_is_one_row_with_the_cause() {
        let nodes = [node(0), node(1), node(2)];
        let explained = |fault, port, other_works| {
            let bad = fails(fault, port, other_works);
            let tries = [Some(vec![WORKS, WORKS, bad]), Some(vec![WORKS, WORKS, bad]), Some(vec![WORKS; 3])];
            let rows = connections(&nodes, &tries);
            assert_eq!((rows.len(), rows[0].what.as_str(), rows[0].level), (2, "n0, n1 -> n2", Level::Fail));
            (rows[0].value.clone(), rows[0].remedy.clone().unwrap())
        };
        for (fault, port, other_works, cause, remedy) in [
            (
                Fault::Silent,
                20_000,
                true,
                "a firewall blocks some ports",
                "open the TCP ports 20000 to 32767 of n2",
            ),
            (
                Fault::Silent,
                40_000,
                true,
                "a firewall blocks some ports",
                "open the TCP ports 32768 to 60999 of n2",
            ),
            (Fault::Silent, 20_000, false, "a firewall drops packets", "--rdzv-interface"),
            (Fault::Refused, 20_000, false, "10.0.0.2 refuses port 20000", "--rdzv-interface"),
            (Fault::Unreachable, 20_000, false, "no route to 10.0.0.2", "--rdzv-interface"),
            (Fault::Stranger, 20_000, false, "two machines have this address", "its own address"),
            (Fault::LargeLost, 20_000, false, "packets above the MTU", "`sudo ip link set eth0 mtu 1400`"),
            (Fault::Broken, 20_000, false, "breaks off", "proxy"),
        ] {
            let (value, told) = explained(fault, port, other_works);
            assert!(value.contains(cause) && told.contains(remedy), "{value} / {told}");
        }
        let mut local = node(1);
        local.place.address = [127, 0, 1, 1].into();
        let (value, _) = explain(Fault::Refused, &local, 20_000, true, false);
        assert_eq!(value, "n1 has only the address 127.0.1.1, which leads each node to itself");
    }

    #[test]
    fn clocks_and_silent_nodes_are_told() {
        let ahead = Outcome::Works { round_trip_us: 200, ahead_us: -5_000_000 };
        let rows = connections(&[node(0), node(1)], &[Some(vec![WORKS, ahead]), None]);
        assert_eq!(
            rows[0],
            Row::fail("n1", "sent no result of its connections", rows[0].remedy.clone().unwrap())
        );
        assert_eq!((rows[2].level, rows[2].value.as_str()), (Level::Warn, "n0 and n1 differ by 5.0 s"));
    }
}
