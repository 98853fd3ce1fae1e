//! Connections that do not become members.

use super::handshake::Refusal;
use std::collections::HashSet;
use std::net::IpAddr;

/// The most reports.
const MOST: usize = 50;

/// The reasons for closing a stranger's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum StrangerReason {
    /// Such as a port scan or a health check.
    #[error("it sent nothing")]
    Silent,
    #[error("it uses another protocol")]
    OtherProtocol,
    #[error("{0}")]
    Refused(Refusal),
    #[error("it closed the connection during the handshake")]
    Unfinished,
    #[error("its handshake took too long")]
    Slow,
    /// Such as a replayed handshake.
    #[error("its first message is malformed")]
    MalformedFrame,
}

/// Admits each report once, up to a limit.
#[derive(Debug, Default)]
pub(super) struct Reports {
    seen: HashSet<(IpAddr, StrangerReason)>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Report {
    New,
    Known,
    /// The first one above the limit.
    Last,
}

impl Reports {
    pub(super) fn admit(&mut self, peer: IpAddr, reason: StrangerReason) -> Report {
        let reason = match reason {
            // Random bytes have many versions.
            StrangerReason::Refused(Refusal::Version(_)) => StrangerReason::Refused(Refusal::Version(0)),
            other => other,
        };
        if self.seen.len() > MOST || !self.seen.insert((peer, reason)) {
            Report::Known
        } else if self.seen.len() > MOST {
            Report::Last
        } else {
            Report::New
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn each_stranger_is_reported_once_and_all_together_at_most_fifty_times() {
        let mut reports = Reports::default();
        let mut admit = |peer: u32, reason| reports.admit(Ipv4Addr::from_bits(peer).into(), reason);
        assert_eq!(admit(0, StrangerReason::Silent), Report::New);
        assert_eq!(admit(0, StrangerReason::Silent), Report::Known);
        let version = |version| StrangerReason::Refused(Refusal::Version(version));
        assert_eq!([admit(0, version(2)), admit(0, version(3))], [Report::New, Report::Known]);
        assert!((2..50).all(|peer| admit(peer, StrangerReason::Silent) == Report::New));
        assert_eq!(admit(50, StrangerReason::Silent), Report::Last);
        assert!((51..99).all(|peer| admit(peer, StrangerReason::Silent) == Report::Known));
    }
}
