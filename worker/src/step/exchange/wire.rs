//! What a status travels in.

use dtrain_torch_shim::tensor;
use tch::{Device, Kind, Tensor};

use super::ReduceError;
use crate::collectives::Ranks;

/// Memory for the status vector of every step: taken once, so that a rank that has run out of it can still say so.
#[derive(Debug, Default)]
pub(super) struct Wire {
    memory: Option<Tensor>,
}

impl Wire {
    /// A status in float64 on the CPU, in memory of the group's where it has such memory. All statuses of a phase are of one
    /// length; only the first one takes memory.
    pub(super) fn load(&mut self, ranks: &Ranks, status: &[f64]) -> Result<Tensor, ReduceError> {
        let wire = match &self.memory {
            Some(memory) if memory.numel() == status.len() => memory.shallow_clone(),
            _ => {
                let memory = match ranks.allocate(status.len(), Kind::Double)? {
                    Some(memory) => memory,
                    None => Tensor::f_zeros([status.len() as i64], (Kind::Double, Device::Cpu))?,
                };
                self.memory.insert(memory).shallow_clone()
            }
        };
        tensor::write(&wire, status)?;
        Ok(wire)
    }
}
