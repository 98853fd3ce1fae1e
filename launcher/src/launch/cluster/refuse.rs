//! A node that ends before it takes part, or whose launcher was killed, tells the others, so that they do not wait.

use super::meeting::Meeting;
use super::shorten::{LONGEST_REASON, cut};
use crate::cli::{Rendezvous, RendezvousArgs};
use dtrain_agent::cluster::leader::difference_of_ids;
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::cluster::ranks::Node;
use dtrain_agent::io::wire::{Client, ClientEvent, ConnectError, Limits, Server, ServerEvent};
use dtrain_common::exit::ExitStatus;
use dtrain_common::host;
use std::time::{Duration, Instant};

/// The nodes of a job start within this time of each other.
const LATEST: Duration = Duration::from_secs(3);
/// The leader hears of a killed launcher within this time, or waits for the end of its lease.
const GONE: Duration = Duration::from_secs(2);
/// After a request to stop: nodes that wait already try to connect within this time.
const STOPPED: Duration = Duration::from_secs(1);

/// Tells the others that this node ends with this status.
pub(in crate::launch) fn withdraw(meeting: Meeting, status: ExitStatus, why: &str) {
    let patience = if status == ExitStatus::Usage { LATEST } else { STOPPED };
    let deadline = Instant::now() + patience;
    match meeting.leads() {
        true => refuse(meeting, status, why, deadline),
        false => leave(meeting, status, why, deadline),
    }
}

/// Tells the leader that no process of the member with this number runs any more, without a lease to wait for.
pub(crate) fn report_gone(rendezvous: &RendezvousArgs, member: u64) {
    // Without the endpoint or the secret, the leader waits for the end of the lease.
    let Ok(Some(rendezvous)) = rendezvous.rendezvous() else { return };
    if let Ok(meeting) = Meeting::open(Rendezvous { leads: Some(false), ..rendezvous }) {
        tell(meeting, &ToLeader::Gone { instance: member }, Instant::now() + GONE);
    }
}

/// Tells the leader why this node does not come.
fn leave(meeting: Meeting, status: ExitStatus, why: &str, deadline: Instant) {
    let mut reason = why.to_owned();
    cut(&mut reason, LONGEST_REASON);
    let run_id = meeting.rendezvous.run_id.clone();
    let signal = match status {
        ExitStatus::Signal(signal) => Some(signal),
        _ => None,
    };
    tell(meeting, &ToLeader::CannotJoin { host: host::name(), run_id, reason, signal }, deadline);
}

/// Connects to the leader until the deadline, sends it one message, and ends the connection.
fn tell(meeting: Meeting, message: &ToLeader, deadline: Instant) {
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ClientEvent<ToMember>| drop(sender.send(event));
    let client = Client::connect(meeting.rendezvous.endpoint, meeting.secret, meeting.address, heard);
    // Without a thread, the leader gives up after its own time-out.
    let Ok(client) = client else { return };
    while let Ok(event) = events.recv_deadline(deadline) {
        match event {
            ClientEvent::Connected { .. } => {
                // The message is short enough.
                let _ = client.send(message);
                break;
            }
            ClientEvent::CannotConnect { reason, .. } if reason.is_permanent() => break,
            // The leader has ended, unless it has not begun.
            ClientEvent::CannotConnect { reason: ConnectError::Refused, .. }
                if matches!(message, ToLeader::Gone { .. }) =>
            {
                break;
            }
            _ => {}
        }
    }
    client.end();
}

/// Answers the other nodes that the run does not start, until all know it or the deadline has passed.
fn refuse(meeting: Meeting, status: ExitStatus, why: &str, deadline: Instant) {
    let others = meeting.rendezvous.nodes.end().saturating_sub(1);
    let own_id = meeting.rendezvous.run_id;
    let Some(bound) = meeting.bound else { return };
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ServerEvent<ToLeader>| drop(sender.send(event));
    let server: Server<ToMember> = match bound.serve(meeting.secret, Limits::default(), heard) {
        Ok(server) => server,
        // Without a thread, the others give up after their own time-out.
        Err(_) => return,
    };
    let mut reason = format!("the leader, {}, ended before the start: {why}", host::name());
    cut(&mut reason, LONGEST_REASON);
    let decided = ToMember::Decided { code: status.code(), reason };
    let mut told = 0;
    while told < others
        && let Ok(event) = events.recv_deadline(deadline)
    {
        let ServerEvent::Received { id, message } = event else { continue };
        let (ToLeader::Join { node: Node { run_id, .. }, .. } | ToLeader::CannotJoin { run_id, .. }) =
            message
        else {
            continue;
        };
        let answer = match difference_of_ids(own_id.as_deref(), run_id.as_deref()) {
            Some(reason) => ToMember::Rejected { reason },
            None => {
                told += 1;
                decided.clone()
            }
        };
        // The reason is short enough.
        let _ = server.send(id, &answer);
        server.close(id);
    }
    server.end();
}
