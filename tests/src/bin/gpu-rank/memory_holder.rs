//! A process that fills the GPU's memory.

use std::io::Read;

use dtrain_torch_shim::memory;
use tch::{Kind, Tensor};

use crate::{Failure, GPU};

/// Allocates all free memory except `left` bytes, reports this, and holds it until standard input ends.
pub(crate) fn run(left: u64) -> Result<(), Failure> {
    let (free, _) = memory::device_memory(GPU)?;
    let bytes = free.saturating_sub(left);
    let taken = Tensor::f_empty([i64::try_from(bytes)?], (Kind::Uint8, GPU))?;
    println!("taken {bytes}");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(taken);
    Ok(())
}
