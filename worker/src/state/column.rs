//! Columns of the table besides data and gradients, and all differences between their kinds.

use tch::{Kind, TchError, Tensor};

use super::layout::Group;

/// A column besides data and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpec {
    /// The name, such as `exp_avg`.
    pub name: &'static str,
    /// The kind of the column.
    pub role: Role,
}

/// The kind of a column; determines its rows, dtype, placement and first values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// State of the optimizer: for these trained rows, zero at first; each rank holds the part that it updates.
    Moment(Rows),
    /// The moving average: for all rows, a copy of the data at first; every rank holds all of it.
    Average,
    /// The data of trained rows in this dtype, for products in autocast. Checkpoints omit it.
    Shadow(Kind),
}

/// The trained rows of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rows {
    /// Those that are updated element by element.
    Elements,
    /// Those that are updated as whole matrices.
    Matrices,
}

/// The column of the moving average.
pub const AVERAGE: ColumnSpec = ColumnSpec { name: "average", role: Role::Average };

/// Columns that the next phase keeps, besides the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The optimizer's state of parameters that stay trained.
    pub(crate) moments: bool,
    /// The moving average.
    pub(crate) average: bool,
}

impl Role {
    /// Returns whether the column has rows of this group.
    pub(super) fn has_rows(self, group: Group) -> bool {
        match self {
            Self::Moment(Rows::Elements) => matches!(group, Group::Trained(_)),
            Self::Moment(Rows::Matrices) => matches!(group, Group::Matrices(_)),
            Self::Average => true,
            Self::Shadow(_) => group.is_trained(),
        }
    }

    /// Returns whether it is state of the optimizer.
    pub(crate) fn is_moment(self) -> bool {
        matches!(self, Self::Moment(_))
    }

    /// Returns whether checkpoints contain the column.
    pub(super) fn is_saved(self) -> bool {
        !matches!(self, Self::Shadow(_))
    }

    /// Returns whether the next phase keeps the column.
    pub(super) fn is_kept(self, keep: Keep) -> bool {
        match self {
            Self::Moment(_) => keep.moments,
            Self::Average => keep.average,
            Self::Shadow(_) => false,
        }
    }

    /// Returns the first values for rows with this data.
    pub(super) fn initial(self, data: &Tensor) -> Result<Tensor, TchError> {
        let kind = match self {
            Self::Moment(_) => return data.f_zeros_like(),
            Self::Average => data.kind(),
            Self::Shadow(kind) => kind,
        };
        let mut copy = Tensor::f_empty(data.size(), (kind, data.device()))?;
        tch::no_grad(|| copy.f_copy_(data))?;
        Ok(copy)
    }
}
