//! What is killed, when, and how the run goes on.

use std::fmt;
use std::time::Duration;

use super::random::Random;

/// The numbers of ranks that take turns.
pub(super) const RANKS: [usize; 3] = [1, 2, 3];

/// A checkpoint comes after every so many steps.
pub(super) const EVERY: u64 = 3;
/// Steps of the run.
pub(super) const STEPS: u64 = 45;

/// Milliseconds between the beginning of a write and a kill that is meant for it.
const INTO_WRITE_MS: f64 = 20.0;

/// Milliseconds between the beginning of a rollback and a kill that is meant for it.
const INTO_ROLLBACK_MS: f64 = 60.0;

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Worker,
    Workers,
    Launcher,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Worker, Self::Workers, Self::Launcher];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Worker => "one worker",
            Self::Workers => "all workers",
            Self::Launcher => "the launcher",
        })
    }
}

/// When it is killed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Moment {
    /// So long after a checkpoint of this step or a later one began to be written.
    Write { step: u64, delay: Duration },
    /// After this share of the time that the whole run takes.
    Any { share: f64 },
}

impl Moment {
    /// For a run that ended before this moment came.
    pub(super) fn earlier(self) -> Self {
        match self {
            Self::Write { step, delay } => Self::Write { step: (step / 2).max(EVERY), delay: delay / 2 },
            Self::Any { share } => Self::Any { share: share / 2.0 },
        }
    }
}

/// How the run goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Resume {
    /// The launcher starts the workers again.
    Restart,
    /// The same command once more.
    Again,
    /// The same command with another number of ranks.
    Ranks(usize),
}

/// One case.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    /// From 0.
    pub(super) number: u64,
    pub(super) kind: Kind,
    pub(super) ranks: usize,
    pub(super) resume: Resume,
    pub(super) moment: Moment,
    /// Whether the ranks share the optimizer's state, which must make no difference.
    pub(super) sharded: bool,
    /// Chooses among several victims.
    pub(super) victim: u64,
    /// Whether the run goes back to an earlier checkpoint when it goes on, and is killed once more: so long after it has begun to.
    pub(super) back: Option<Duration>,
}

impl Plan {
    /// Kinds and ranks in turn, the rest by chance.
    /// Every third case that goes on by a second command goes back first; with `rollbacks` every case does.
    pub(super) fn draw(number: u64, rollbacks: bool, random: &mut Random) -> Self {
        let kind = Kind::ALL[(number % 3) as usize];
        let ranks = RANKS[(number / 3 % 3) as usize];
        let others: Vec<usize> = RANKS.into_iter().filter(|other| *other != ranks).collect();
        let other = others[random.below(others.len() as u64) as usize];
        let resume = match kind {
            _ if number % 5 == 4 => Resume::Ranks(other),
            _ if rollbacks => Resume::Again,
            Kind::Worker => Resume::Restart,
            // In every group there are both.
            Kind::Workers if (number / 9).is_multiple_of(2) => Resume::Restart,
            Kind::Workers | Kind::Launcher => Resume::Again,
        };
        let moment = if random.below(5) < 3 {
            Moment::Write {
                step: EVERY * (1 + random.below(STEPS / EVERY - 1)),
                delay: Duration::from_secs_f64(random.share() * INTO_WRITE_MS / 1e3),
            }
        } else {
            Moment::Any { share: random.share() }
        };
        let (sharded, victim) = (random.below(2) == 0, random.next());
        let goes_back = rollbacks || (resume != Resume::Restart && random.below(3) == 0);
        let back = goes_back.then(|| Duration::from_secs_f64(random.share() * INTO_ROLLBACK_MS / 1e3));
        Self { number, kind, ranks, resume, moment, sharded, victim, back }
    }

    /// How many ranks end the run.
    pub(super) fn last_ranks(&self) -> usize {
        match self.resume {
            Resume::Ranks(ranks) => ranks,
            Resume::Restart | Resume::Again => self.ranks,
        }
    }
}
