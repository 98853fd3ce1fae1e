//! Values of tensors, read and written as `f64`.

use half::{bf16, f16};

use crate::memory::View;

/// A type of a tensor's elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Type {
    F32,
    F64,
    F16,
    Bf16,
    I64,
    I32,
    I16,
    I8,
    U8,
    Bool,
}

impl Type {
    /// Returns the type of a C++ name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Some(match name.trim() {
            "float" => Self::F32,
            "double" => Self::F64,
            "c10::Half" => Self::F16,
            "c10::BFloat16" => Self::Bf16,
            "long" => Self::I64,
            "int" => Self::I32,
            "short" => Self::I16,
            "signed char" => Self::I8,
            "unsigned char" => Self::U8,
            "bool" => Self::Bool,
            _ => return None,
        })
    }

    /// Returns the type of a number of `c10::ScalarType`.
    pub(super) fn numbered(number: u8) -> Result<Self, String> {
        Ok(match number {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::I16,
            3 => Self::I32,
            4 => Self::I64,
            5 => Self::F16,
            6 => Self::F32,
            7 => Self::F64,
            11 => Self::Bool,
            15 => Self::Bf16,
            _ => return Err(format!("unknown scalar type {number}")),
        })
    }

    pub(super) fn size(self) -> usize {
        match self {
            Self::F64 | Self::I64 => 8,
            Self::F32 | Self::I32 => 4,
            Self::F16 | Self::Bf16 | Self::I16 => 2,
            Self::I8 | Self::U8 | Self::Bool => 1,
        }
    }

    /// Returns the type in which operations on this type compute.
    pub(super) fn computed(self) -> Self {
        if matches!(self, Self::F16 | Self::Bf16) { Self::F32 } else { self }
    }

    pub(super) fn load(self, from: View, offset: usize) -> f64 {
        match self {
            Self::F32 => f32::from_ne_bytes(from.read(offset)).into(),
            Self::F64 => f64::from_ne_bytes(from.read(offset)),
            Self::F16 => f16::from_ne_bytes(from.read(offset)).into(),
            Self::Bf16 => bf16::from_ne_bytes(from.read(offset)).into(),
            Self::I64 => i64::from_ne_bytes(from.read(offset)) as f64,
            Self::I32 => i32::from_ne_bytes(from.read(offset)).into(),
            Self::I16 => i16::from_ne_bytes(from.read(offset)).into(),
            Self::I8 => i8::from_ne_bytes(from.read(offset)).into(),
            Self::U8 => u8::from_ne_bytes(from.read(offset)).into(),
            Self::Bool => f64::from(from.read::<1>(offset) != [0]),
        }
    }

    pub(super) fn store(self, to: View, offset: usize, value: f64) {
        match self {
            Self::F32 => to.write(offset, (value as f32).to_ne_bytes()),
            Self::F64 => to.write(offset, value.to_ne_bytes()),
            Self::F16 => to.write(offset, f16::from_f32(value as f32).to_ne_bytes()),
            Self::Bf16 => to.write(offset, bf16::from_f32(value as f32).to_ne_bytes()),
            Self::I64 => to.write(offset, (value as i64).to_ne_bytes()),
            Self::I32 => to.write(offset, (value as i32).to_ne_bytes()),
            Self::I16 => to.write(offset, (value as i16).to_ne_bytes()),
            Self::I8 => to.write(offset, (value as i8).to_ne_bytes()),
            Self::U8 => to.write(offset, (value as u8).to_ne_bytes()),
            Self::Bool => to.write(offset, [u8::from(value != 0.)]),
        }
    }
}
