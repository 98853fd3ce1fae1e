//! Pauses in which the leader did not run: its process was stopped, or its machine was suspended.
//!
//! The other nodes count such a leader as lost: they kill their workers, and end if it stays away. So a leader
//! that wakes must not blame the nodes that it lost meanwhile.

use super::Ending;
use super::state::{Leader, Phase};
use std::time::Duration;

impl Leader {
    /// Notes a pause since the last event. While other nodes are connected, the driver calls at least each quarter
    /// of a lease.
    pub(super) fn note_pause(&mut self, now: Duration) {
        let pause = now.saturating_sub(std::mem::replace(&mut self.awake, now));
        let times = self.policy.times;
        // Some leases end within such a pause.
        let harmful = times.length.saturating_sub(2 * times.beat).max(times.length / 2);
        if pause <= harmful || !self.has_others() {
            return;
        }
        self.pause = Some((now, pause));
        if pause < self.policy.rejoin_timeout {
            return; // Nodes without workers come back.
        }
        match self.phase {
            Phase::Decided => {}
            Phase::Running { .. } | Phase::Draining { .. } => self.frozen = Some(pause),
            Phase::Joining(_) | Phase::Proposed { .. } | Phase::Trying { .. } | Phase::Pausing { .. } => {
                self.finish(Ending::LeaderFrozen { pause });
            }
        }
    }

    /// Returns the length of a pause that has just ended: a node that is lost now was lost because of it.
    pub(super) fn recent_pause(&self, now: Duration) -> Option<Duration> {
        let (end, length) = self.pause?;
        (now < end.saturating_add(2 * self.policy.times.length)).then_some(length)
    }
}
