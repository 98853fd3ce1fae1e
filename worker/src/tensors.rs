//! Questions about tensors.

use std::io::{self, Write};

use tch::{Kind, TchError, Tensor};

/// Returns the bytes of a tensor's elements.
pub(crate) fn bytes(tensor: &Tensor) -> u64 {
    tensor.numel() as u64 * tensor.kind().elt_size_in_bytes() as u64
}

/// Returns whether values of this dtype are real numbers with a fraction; others are counters, flags, indices or complex.
pub(crate) fn is_floating(kind: Kind) -> bool {
    matches!(kind, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16)
}

/// Returns whether values of this dtype are complex numbers.
pub(crate) fn is_complex(kind: Kind) -> bool {
    matches!(kind, Kind::ComplexHalf | Kind::ComplexFloat | Kind::ComplexDouble)
}

/// Writes the bytes of a tensor on the CPU, in row-major order, a few MiB at a time.
pub(crate) fn write(tensor: &Tensor, to: &mut impl Write) -> io::Result<()> {
    const BYTES: i64 = 4 << 20;
    let failed = |error: TchError| io::Error::other(error.to_string());
    let flat = || tensor.f_contiguous()?.f_view([-1])?.f_view_dtype(Kind::Uint8);
    let bytes = flat().map_err(failed)?;
    let (mut buffer, all) = (Vec::new(), bytes.numel() as i64);
    for first in (0..all).step_by(BYTES as usize) {
        let part = bytes.f_narrow(0, first, BYTES.min(all - first)).map_err(failed)?;
        buffer.resize(part.numel(), 0u8);
        part.f_copy_data(&mut buffer, part.numel()).map_err(failed)?;
        to.write_all(&buffer)?;
    }
    Ok(())
}
