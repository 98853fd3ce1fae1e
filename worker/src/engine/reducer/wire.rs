//! What a status travels in.

use tch::Tensor;

use super::ReduceError;
use crate::collectives::Ranks;

/// Memory for the status vector of every step.
#[derive(Debug, Default)]
pub(super) struct Wire {
    /// Memory in which the group reduces fastest, once it is known how long a status is.
    memory: Option<Tensor>,
    asked: bool,
}

impl Wire {
    /// The status in memory of the group's, where it has such memory. All statuses that one wire carries are of one length.
    pub(super) fn load(&mut self, ranks: &Ranks, status: &Tensor) -> Result<Tensor, ReduceError> {
        if !self.asked {
            self.asked = true;
            self.memory = ranks.allocate(status.numel(), status.kind())?;
        }
        let Some(memory) = &self.memory else {
            return Ok(status.shallow_clone());
        };
        let mut wire = memory.shallow_clone();
        tch::no_grad(|| wire.f_copy_(status))?;
        Ok(wire)
    }
}
