//! Messages for the user about the nodes of a run.

use crate::connections::{Finding, findings};
use crate::launch::messages::ended;
use dtrain_agent::cluster::blame::{ClusterCause, Culprit, Judgement, NodeEnd};
use dtrain_agent::cluster::leader::LeaderNotice;
use dtrain_agent::cluster::trial::FailedConnection;
use dtrain_agent::io::wire::ConnectError;
use dtrain_agent::local::Outcome;
use dtrain_common::text::counted;
use std::net::{IpAddr, SocketAddr};

/// The most causes in a message.
const SHOWN_FINDINGS: usize = 5;

pub(super) fn notice(notice: &LeaderNotice) -> String {
    match notice {
        LeaderNotice::Joined { host, nodes, most } => format!("{host} joined ({nodes} of {most} nodes)"),
        LeaderNotice::Spare { host, most } => {
            format!("{host} waits as a spare: {} take part already", counted(*most, "node"))
        }
        LeaderNotice::Rejected { host, reason } => format!("refused {host}: {reason}"),
        LeaderNotice::Waiting { came, missing, left } => {
            let missing = match missing.as_slice() {
                [] => "others".to_owned(),
                names => names.join(", "),
            };
            format!("waiting for {missing} for at most {} s more; here: {}", left.as_secs(), listed(came))
        }
        LeaderNotice::Started { nodes, workers, .. } => {
            format!("started {} on {}", counted(*workers, "worker"), counted(*nodes, "node"))
        }
        LeaderNotice::NodeLost { host, is_connection: true } => {
            format!("lost {host}: the connection to its agent ended")
        }
        LeaderNotice::NodeLost { host, is_connection: false } => {
            format!("lost {host}: its agent does not answer")
        }
        LeaderNotice::OtherPort => {
            "another program took the port of rank 0 before rank 0 could use it; starting again at another port".to_owned()
        }
        LeaderNotice::Left { host, reason } => format!("{host} leaves the run: {reason}"),
        LeaderNotice::Failed { host, end } => format!(
            "rank {} on {host} failed ({}); stopping the workers of all nodes",
            end.rank,
            ended(end.outcome)
        ),
        LeaderNotice::LeftOut { host, failures } => {
            format!("{host} is left out from now on: it has failed {failures} times in a row")
        }
        LeaderNotice::Unconnected { host, failed } => {
            format!("{host} is left out: {}", unconnected(failed))
        }
        // The main thread words these.
        LeaderNotice::Ended { .. } | LeaderNotice::Restarting { .. } => String::new(),
    }
}

/// `from`: the address of this node, as far as it is known or chosen.
pub(crate) fn cannot_connect(
    endpoint: &str,
    address: Option<SocketAddr>,
    from: Option<IpAddr>,
    reason: &ConnectError,
) -> String {
    let at = address.map(|address| address.to_string()).filter(|address| address != endpoint);
    let at = at.map_or_else(String::new, |at| format!(" ({at})"));
    let from = from.map_or_else(String::new, |from| format!(" from {from}"));
    format!("cannot reach the leader at {endpoint}{at}{from}: {reason}")
}

fn listed(hosts: &[String]) -> String {
    match hosts {
        [] => "no node".to_owned(),
        hosts => hosts.join(", "),
    }
}

/// Returns the reason for a run that ends because too few nodes came; `rejected` and `failed` are hosts with reasons.
pub(super) fn too_few(
    came: &[String],
    missing: &[String],
    [rejected, failed]: [&[(String, String)]; 2],
    least: usize,
) -> String {
    let mut text =
        format!("only {} of {} joined in time ({})", came.len(), counted(least, "node"), listed(came));
    if !missing.is_empty() {
        text.push_str(&format!("; missing: {}", missing.join(", ")));
    }
    for (host, reason) in rejected {
        text.push_str(&format!("; refused {host}: {reason}"));
    }
    for (host, reason) in failed {
        text.push_str(&format!("; {host} cannot take part: {reason}"));
    }
    text.push_str(
        "; to find the cause, run `dtrain doctor` with the same --nnodes and --rdzv-endpoint on each node",
    );
    text
}

/// Returns the reason for a run that ends because nodes cannot reach each other.
pub(super) fn unconnected(failed: &[FailedConnection]) -> String {
    let mut found = findings(failed);
    let more = found.split_off(found.len().min(SHOWN_FINDINGS)).len();
    let line = |Finding { pair, cause, remedy }: &Finding| format!("  {pair}: {cause}\n    remedy: {remedy}");
    let mut lines = vec!["connections between the nodes fail".to_owned()];
    lines.extend(found.iter().map(line));
    if more > 0 {
        lines.push(format!("  and {more} more"));
    }
    lines.join("\n")
}

/// Returns the reason for a failed epoch if no worker is to blame.
pub(super) fn lost(judgement: &Judgement, nodes: &[NodeEnd]) -> Option<String> {
    let ClusterCause::NodeLost { group_rank } = judgement.cause else { return None };
    let host = nodes.iter().find(|node| node.group_rank == group_rank).map(|node| node.host.as_str());
    Some(format!(
        "lost node {}: its agent or machine died, stood still, or its network failed",
        host.unwrap_or("?")
    ))
}

/// Returns lines about the other nodes: failures that may also be the cause, and consequences.
pub(super) fn others(judgement: &Judgement, nodes: &[NodeEnd]) -> Vec<String> {
    let host_of = |rank| nodes.iter().find(|node| node.has(rank)).map_or("?", |node| node.host.as_str());
    let mut lines = Vec::new();
    let ambiguous: Vec<_> = judgement
        .ambiguous
        .iter()
        .map(|culprit| match culprit {
            Culprit::Rank(rank) => format!("rank {rank} on {}", host_of(*rank)),
            Culprit::Node(group_rank) => {
                let node = nodes.iter().find(|node| node.group_rank == *group_rank);
                format!("node {}", node.map_or("?", |node| node.host.as_str()))
            }
        })
        .collect();
    if !ambiguous.is_empty() {
        lines.push(format!(
            "  ambiguous: {} failed at the same time within the error of the clocks",
            ambiguous.join(", ")
        ));
    }
    let (mut lost, mut stopped) = (Vec::new(), Vec::new());
    for node in nodes.iter().filter(|node| !judgement.blames(node)) {
        let ends = node.report.iter().flat_map(|report| &report.ends);
        let mut failed: Vec<_> = ends.filter(|end| end.outcome != Outcome::Exited(0)).collect();
        failed.sort_by_key(|end| end.rank);
        for end in failed {
            let text = format!("rank {} on {} ({})", end.rank, node.host, ended(end.outcome));
            if end.sent.is_empty() { lost.push(text) } else { stopped.push(text) }
        }
    }
    for (what, ends) in [("failed later on other nodes", lost), ("stopped on other nodes", stopped)] {
        if !ends.is_empty() {
            lines.push(format!("  {what}: {}", ends.join(", ")));
        }
    }
    lines
}
