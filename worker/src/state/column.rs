//! The columns of the table beside data and gradients. Whatever tells one kind of them from another is here.

use tch::{Kind, TchError, Tensor};

use super::layout::Group;

/// A column beside data and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpec {
    /// Its name, such as `exp_avg`.
    pub name: &'static str,
    /// What it is for.
    pub role: Role,
}

/// What a column is for, from which its rows, dtype, placement and first values follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// State of the optimizer: of trained rows, zero at first, each rank holds what it updates.
    Moment,
    /// The moving average: of all rows, their data at first, every rank holds all of it.
    Average,
    /// The data of trained rows in this dtype, for products in autocast. Made of the data: in no checkpoint.
    Shadow(Kind),
}

/// The moving average.
pub const AVERAGE: ColumnSpec = ColumnSpec { name: "average", role: Role::Average };

/// What goes on from one phase to the next, beside the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The optimizer's state of what stays trained.
    pub(crate) moments: bool,
    /// The moving average.
    pub(crate) average: bool,
}

impl Role {
    /// Whether the column has rows of this group.
    pub(super) fn has(self, group: Group) -> bool {
        self == Self::Average || group.is_trained()
    }

    /// Whether it is state, which checkpoints have.
    pub(super) fn lasts(self) -> bool {
        !matches!(self, Self::Shadow(_))
    }

    /// Whether it goes on into the next phase.
    pub(super) fn stays(self, keep: Keep) -> bool {
        match self {
            Self::Moment => keep.moments,
            Self::Average => keep.average,
            Self::Shadow(_) => false,
        }
    }

    /// The first values for rows with this data.
    pub(super) fn first(self, data: &Tensor) -> Result<Tensor, TchError> {
        match self {
            Self::Moment => data.f_zeros_like(),
            Self::Average => copied(data, data.kind()),
            Self::Shadow(kind) => copied(data, kind),
        }
    }
}

fn copied(data: &Tensor, kind: Kind) -> Result<Tensor, TchError> {
    let mut copy = Tensor::f_empty(data.size(), (kind, data.device()))?;
    tch::no_grad(|| copy.f_copy_(data))?;
    Ok(copy)
}
