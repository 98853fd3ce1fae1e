//! A leader that cannot start the run tells those that come, so that they do not wait.

use super::meeting::Meeting;
use dtrain_agent::cluster::message::{ToLeader, ToMember};
use dtrain_agent::io::wire::{Limits, Server, ServerEvent};
use dtrain_common::exit::ExitStatus;
use std::time::{Duration, Instant};

/// The nodes of a job start within this time of each other.
const LATEST: Duration = Duration::from_secs(3);

/// Answers the other nodes that the run does not start, until all know it or after a short time.
pub(in crate::launch) fn refuse(meeting: Meeting, why: &anyhow::Error) {
    let others = meeting.nodes.start().saturating_sub(1);
    let Some(bound) = meeting.bound else { return };
    let (sender, events) = crossbeam_channel::unbounded();
    let heard = move |event: ServerEvent<ToLeader>| drop(sender.send(event));
    let server: Server<ToMember> = match bound.serve(meeting.secret, Limits::default(), heard) {
        Ok(server) => server,
        // Without a thread, the others give up after their own time-out.
        Err(_) => return,
    };
    let decided = ToMember::Decided {
        code: ExitStatus::Usage.code(),
        reason: format!("the leader cannot start: {why:#}"),
    };
    let deadline = Instant::now() + LATEST;
    let mut told = 0;
    while told < others
        && let Ok(event) = events.recv_deadline(deadline)
    {
        if let ServerEvent::Received { id, message: ToLeader::Join { .. } } = event {
            // A message that is too long is the only error; the reason is short.
            let _ = server.send(id, &decided);
            server.close(id);
            told += 1;
        }
    }
    server.end();
}
