//! The rows about the nodes of a job: each node, what differs between them, and connections that fail.

use super::Machine;
use super::row::{Level, Row};
use crate::connections::{Finding, findings, short};
use dtrain_agent::cluster::trial::{FailedConnection, Place};
use dtrain_agent::io::probe::{Outcome, Works};
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
    /// Of the interface of its address.
    pub(super) mtu: Option<u32>,
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
    let Place { address, interface, .. } = &node.place;
    let interface = interface.as_ref().zip(node.mtu).map(|(name, mtu)| format!(" on {name} (MTU {mtu})"));
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
            |node| node.mtu.map_or("unknown".into(), |mtu| mtu.to_string()),
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

fn connections(nodes: &[Node], tries: &[Tries]) -> Vec<Row> {
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    let (mut worked, mut slowest, mut apart) = (0, 0, None::<(u64, usize, usize)>);
    for (from, outcomes) in tries.iter().enumerate() {
        let Some(outcomes) = outcomes else {
            let remedy = "see its own output; run the doctor again";
            rows.push(Row::fail(&nodes[from].name, "sent no result of its connections", remedy));
            continue;
        };
        for (to, outcome) in outcomes.iter().enumerate().filter(|(to, _)| *to != from) {
            match *outcome {
                Ok(Works { round_trip_us, ahead_us }) => {
                    (worked, slowest) = (worked + 1, round_trip_us.max(slowest));
                    let ahead = ahead_us.unsigned_abs().saturating_sub(round_trip_us);
                    apart = apart.max(Some((ahead, from, to)));
                }
                Err(failure) => {
                    let place = nodes[to].place.clone();
                    let (from, to) = (nodes[from].name.clone(), nodes[to].name.clone());
                    failed.push(FailedConnection { from, to, place, failure });
                }
            }
        }
    }
    let row = |Finding { pair, cause, remedy }| Row::fail(&pair, cause, remedy);
    rows.extend(findings(&failed).into_iter().map(row));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use dtrain_agent::cluster::trial::{FailedTry, Fault};

    fn node(index: u8) -> Node {
        let place = Place {
            address: [10, 0, 0, index].into(),
            interface: Some("eth0".into()),
            worker_port: Some(20_000),
            automatic_port: 40_000,
            number: index.into(),
        };
        Node {
            name: format!("n{index}"),
            version: "0.1.0".into(),
            place,
            mtu: Some(1500),
            machine: Machine::default(),
        }
    }

    const WORKS: Outcome = Ok(Works { round_trip_us: 200, ahead_us: 50 });

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
        small.mtu = Some(1400);
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
    }

    #[test]
    fn a_node_that_all_miss_is_one_row() {
        let nodes = [node(0), node(1), node(2)];
        let bad = Err(FailedTry { fault: Fault::Silent, port: 20_000, other_works: false });
        let tries = [Some(vec![WORKS, WORKS, bad]), Some(vec![WORKS, WORKS, bad]), Some(vec![WORKS; 3])];
        let rows = connections(&nodes, &tries);
        assert_eq!((rows.len(), rows[0].what.as_str(), rows[0].level), (2, "n0, n1 -> n2", Level::Fail));
        assert!(rows[0].value.contains("a firewall drops packets"), "{rows:?}");
    }

    #[test]
    fn clocks_and_silent_nodes_are_told() {
        let ahead = Ok(Works { round_trip_us: 200, ahead_us: -5_000_000 });
        let rows = connections(&[node(0), node(1)], &[Some(vec![WORKS, ahead]), None]);
        assert_eq!(
            rows[0],
            Row::fail("n1", "sent no result of its connections", rows[0].remedy.clone().unwrap())
        );
        assert_eq!((rows[2].level, rows[2].value.as_str()), (Level::Warn, "n0 and n1 differ by 5.0 s"));
    }
}
