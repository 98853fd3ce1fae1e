//! What the regions hold, and how several values become one.

/// A floating-point type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Element {
    /// IEEE binary32.
    F32,
    /// IEEE binary64.
    F64,
    /// IEEE binary16; reduced in binary32, rounded once.
    F16,
    /// bfloat16; reduced in binary32, rounded once.
    Bf16,
}

impl Element {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }
}

/// How the ranks' values become one, in the order of ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(i32)]
pub enum Reduction {
    /// The sum: ((rank 0 + rank 1) + rank 2) + ...
    Sum,
    /// The least; a NaN where there is one.
    Min,
    /// The greatest; a NaN where there is one.
    Max,
}
