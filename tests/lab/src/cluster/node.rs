//! A simulated node: its agent's member, its clock, its connection and its workers.

use std::collections::VecDeque;
use std::time::Duration;

use dtrain_agent::cluster::Member;
use dtrain_agent::cluster::member::MemberEnding;
use dtrain_test_kit::faults::Random;

use super::step::{Step, ms};

#[derive(Default)]
pub(super) struct SimNode {
    pub(super) member: Option<Member>,
    pub(super) instance: u64,
    pub(super) connection: Option<u64>,
    /// The member's clock is ahead of the world's by this at the start, and faster by this number of ppm.
    offset: Duration,
    ppm: i64,
    pub(super) is_cut_off: bool,
    pub(super) is_frozen: bool,
    pub(super) is_killed: bool,
    /// Whether workers that are killed were frozen meanwhile: they run for a moment after a freeze.
    pub(super) is_killed_awake: bool,
    /// Events that wait for the end of a partition or freeze.
    pub(super) held: VecDeque<Step>,
    /// The epoch and the number of the attempt of running workers.
    pub(super) running: Option<(u64, u64)>,
    pub(super) prepared: u64,
    /// The last number of its folders of logs of earlier runs.
    pub(super) earlier_logs: u32,
    /// Whether the attempt was asked to stop.
    pub(super) is_stopping: bool,
    /// Whether its launcher was asked to stop.
    pub(super) was_asked: bool,
    pub(super) ending: Option<MemberEnding>,
}

impl SimNode {
    pub(super) fn new(random: &mut Random) -> Self {
        Self {
            offset: ms(random.below(10_000_000)),
            ppm: random.below(201) as i64 - 100,
            earlier_logs: if random.below(30) == 0 { 1 + random.below(3) as u32 } else { 0 },
            ..Self::default()
        }
    }

    /// Returns the time of the node's clock.
    pub(super) fn clock(&self, world: Duration) -> Duration {
        let nanos = world.as_nanos() * (1_000_000 + self.ppm) as u128 / 1_000_000;
        self.offset + Duration::from_nanos(nanos as u64)
    }

    /// Returns when the node's clock has this time; not before.
    pub(super) fn world_time(&self, clock: Duration) -> Duration {
        let nanos = clock.saturating_sub(self.offset).as_nanos() * 1_000_000;
        Duration::from_nanos((nanos / (1_000_000 + self.ppm) as u128) as u64 + 2)
    }

    /// Returns whether running workers do not count: they stand still, or are killed after a freeze.
    pub(super) fn is_exempt(&self) -> bool {
        self.is_frozen || self.is_killed_awake
    }
}
