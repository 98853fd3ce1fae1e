//! Which workers read the launcher's standard input.

/// Which workers read the launcher's standard input; the others read from an empty one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StandardInput {
    All,
    Rank(usize),
    None,
}

impl StandardInput {
    /// Several readers would share the lines that are typed, so a terminal is for a single worker only.
    pub(super) fn of_program(asked: Option<usize>, nproc: usize, is_terminal: bool) -> Self {
        match asked {
            Some(rank) => Self::Rank(rank),
            None if is_terminal && nproc > 1 => Self::None,
            None => Self::All,
        }
    }

    pub(super) fn is_for(self, rank: usize) -> bool {
        match self {
            Self::All => true,
            Self::Rank(named) => rank == named,
            Self::None => false,
        }
    }
}
