//! A node that ends before it takes part tells the others, so that they do not wait.

use super::meeting::Meeting;
use super::shorten::{LONGEST_REASON, cut};
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::io::wire::{Client, ClientEvent, Limits, Server, ServerEvent};
use dtrain_common::exit::ExitStatus;
use dtrain_common::host;
use std::time::{Duration, Instant};

/// The nodes of a job start within this time of each other.
const LATEST: Duration = Duration::from_secs(3);
/// After a request to stop: nodes that wait already try to connect within this time.
const STOPPED: Duration = Duration::from_secs(1);

/// Tells the others that this node ends with this status.
pub(in crate::launch) fn withdraw(meeting: Meeting, status: ExitStatus, why: &str) {
    let patience = if status == ExitStatus::Usage { LATEST } else { STOPPED };
    let deadline = Instant::now() + patience;
    match meeting.leads() {
        true => refuse(meeting, status, why, deadline),
        false => leave(meeting, why, deadline),
    }
}

/// Tells the leader why this node does not come.
fn leave(meeting: Meeting, why: &str, deadline: Instant) {
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ClientEvent<ToMember>| drop(sender.send(event));
    let client = Client::connect(meeting.rendezvous.endpoint, meeting.secret, meeting.address, heard);
    // Without a thread, the leader gives up after its own time-out.
    let Ok(client) = client else { return };
    while let Ok(event) = events.recv_deadline(deadline) {
        match event {
            ClientEvent::Connected { .. } => {
                let mut reason = why.to_owned();
                cut(&mut reason, LONGEST_REASON);
                // The reason is short enough.
                let _ = client.send(&ToLeader::CannotJoin { host: host::name(), reason });
                break;
            }
            ClientEvent::CannotConnect { reason, .. } if reason.is_permanent() => break,
            _ => {}
        }
    }
    client.end();
}

/// Answers the other nodes that the run does not start, until all know it or the deadline has passed.
fn refuse(meeting: Meeting, status: ExitStatus, why: &str, deadline: Instant) {
    let others = meeting.rendezvous.nodes.end().saturating_sub(1);
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
        let first =
            |message: &ToLeader| matches!(message, ToLeader::Join { .. } | ToLeader::CannotJoin { .. });
        if let ServerEvent::Received { id, message } = event
            && first(&message)
        {
            // The reason is short enough.
            let _ = server.send(id, &decided);
            server.close(id);
            told += 1;
        }
    }
    server.end();
}
