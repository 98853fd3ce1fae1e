//! The plan of a case: what to kill, when, and how to resume.

use std::time::Duration;

use dtrain_test_kit::faults::{Fault, Kind, Moment, Random, Target};

/// Numbers of ranks, used in turn.
pub(super) const RANKS: [usize; 3] = [1, 2, 3];

/// Steps between checkpoints.
pub(super) const EVERY: u64 = 3;
/// Steps of the run.
pub(super) const STEPS: u64 = 45;

/// The longest time from the beginning of a write to a kill during it, in milliseconds.
const INTO_WRITE_MS: f64 = 20.0;

/// The longest time from the beginning of a rollback to a kill during it, in milliseconds.
const INTO_ROLLBACK_MS: f64 = 60.0;

/// The targets of kills.
const TARGETS: [Target; 3] = [Target::Worker, Target::Workers, Target::Launcher];

/// Returns an earlier moment, for a run that ended before this one.
pub(super) fn earlier(moment: Moment) -> Moment {
    match moment {
        Moment::Write { step, delay } => Moment::Write { step: (step / 2).max(EVERY), delay: delay / 2 },
        Moment::Share(share) => Moment::Share(share / 2.0),
        other => other,
    }
}

/// How the run resumes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// The launcher restarts the workers.
    Restart,
    /// The same command again.
    Again,
    /// The same command with another number of ranks.
    Ranks(usize),
}

/// A case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    /// Number of the case, from 0.
    pub(super) number: u64,
    pub(super) fault: Fault,
    pub(super) ranks: usize,
    pub(super) resume: Resume,
    /// Whether the ranks shard the optimizer's state; this must not change the result.
    pub(super) sharded: bool,
    /// Selects one of several possible victims.
    pub(super) victim: u64,
    /// If the resume rolls back to an earlier checkpoint: the time from the rollback's start to its kill.
    pub(super) rollback_delay: Option<Duration>,
}

impl Plan {
    /// Draws a case: kinds and ranks in turn, the rest at random. Every third case with a second command
    /// rolls back first; with `rollbacks`, every case does.
    pub(super) fn draw(number: u64, rollbacks: bool, random: &mut Random) -> Self {
        let target = TARGETS[(number % 3) as usize];
        let ranks = RANKS[(number / 3 % 3) as usize];
        let others: Vec<usize> = RANKS.into_iter().filter(|other| *other != ranks).collect();
        let other = others[random.below(others.len() as u64) as usize];
        let resume = match target {
            _ if number % 5 == 4 => Resume::Ranks(other),
            _ if rollbacks => Resume::Again,
            Target::Worker => Resume::Restart,
            // Alternates from group to group.
            Target::Workers if (number / 9).is_multiple_of(2) => Resume::Restart,
            _ => Resume::Again,
        };
        let moment = if random.below(5) < 3 {
            Moment::Write {
                step: EVERY * (1 + random.below(STEPS / EVERY - 1)),
                delay: Duration::from_secs_f64(random.share() * INTO_WRITE_MS / 1e3),
            }
        } else {
            Moment::Share(random.share())
        };
        let (sharded, victim) = (random.below(2) == 0, random.next());
        let rolls_back = rollbacks || (resume != Resume::Restart && random.below(3) == 0);
        let rollback_delay =
            rolls_back.then(|| Duration::from_secs_f64(random.share() * INTO_ROLLBACK_MS / 1e3));
        let fault = Fault::new(Kind::Kill(target), moment);
        Self { number, fault, ranks, resume, sharded, victim, rollback_delay }
    }

    /// Returns the number of ranks that end the run.
    pub(super) fn last_ranks(&self) -> usize {
        match self.resume {
            Resume::Ranks(ranks) => ranks,
            Resume::Restart | Resume::Again => self.ranks,
        }
    }
}
