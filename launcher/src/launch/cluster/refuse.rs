//! A node that cannot start tells the others, so that they do not wait.

use super::meeting::Meeting;
use super::shorten::{LONGEST_REASON, cut};
use crate::stdout::join_causes;
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::io::wire::{Client, ClientEvent, Limits, Server, ServerEvent};
use dtrain_common::exit::ExitStatus;
use dtrain_common::host;
use std::time::{Duration, Instant};

/// The nodes of a job start within this time of each other.
const LATEST: Duration = Duration::from_secs(3);

/// Tells the others that this node does not take part.
pub(in crate::launch) fn withdraw(meeting: Meeting, why: &anyhow::Error) {
    match meeting.leads() {
        true => refuse(meeting, why),
        false => leave(meeting, why),
    }
}

/// Tells the leader why this node does not come.
fn leave(meeting: Meeting, why: &anyhow::Error) {
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ClientEvent<ToMember>| drop(sender.send(event));
    let client = Client::connect(meeting.rendezvous.endpoint, meeting.secret, meeting.address, heard);
    // Without a thread, the leader gives up after its own time-out.
    let Ok(client) = client else { return };
    let deadline = Instant::now() + LATEST;
    while let Ok(event) = events.recv_deadline(deadline) {
        match event {
            ClientEvent::Connected { .. } => {
                let mut reason = join_causes(why);
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

/// Answers the other nodes that the run does not start, until all know it or after a short time.
fn refuse(meeting: Meeting, why: &anyhow::Error) {
    let others = meeting.rendezvous.nodes.end().saturating_sub(1);
    let Some(bound) = meeting.bound else { return };
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ServerEvent<ToLeader>| drop(sender.send(event));
    let server: Server<ToMember> = match bound.serve(meeting.secret, Limits::default(), heard) {
        Ok(server) => server,
        // Without a thread, the others give up after their own time-out.
        Err(_) => return,
    };
    let mut reason = format!("the leader cannot start: {}", join_causes(why));
    cut(&mut reason, LONGEST_REASON);
    let decided = ToMember::Decided { code: ExitStatus::Usage.code(), reason };
    let deadline = Instant::now() + LATEST;
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
