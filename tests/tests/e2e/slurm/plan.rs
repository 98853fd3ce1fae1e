//! Random interruptions of a job.

use dtrain_test_kit::faults::{Fault, Kind, Moment, Random, Target};

/// Returns whether the run has time for a checkpoint.
pub(super) fn has_grace(kind: Kind) -> bool {
    matches!(kind, Kind::Preemption | Kind::TimeLimit | Kind::Signal)
}

/// All processes of a node are killed.
pub(super) const NODE_KILLED: Kind = Kind::Kill(Target::Everything);

/// Returns the interruptions of a run, without an end.
pub(super) fn interruptions(seed: u64) -> impl Iterator<Item = Fault> {
    let mut random = Random::new(seed);
    std::iter::repeat_with(move || {
        // Slurm looks at time limits twice a minute, so these attempts last longest.
        let kind = match random.below(8) {
            0..=2 => Kind::Preemption,
            3 | 4 => Kind::PreemptionAtOnce,
            5 | 6 => Kind::Requeue,
            _ => Kind::TimeLimit,
        };
        Fault::new(kind, Moment::Steps(random.below(26)))
    })
}
