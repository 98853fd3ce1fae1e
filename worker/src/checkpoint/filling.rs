//! Copies of what a rank writes, which are made beside the step that follows, and waited for before its update.

use dtrain_torch_shim::landing::{Beside, Landed, Landing};
use tch::Device;

use super::error::CheckpointError;
use super::staging::{self, Copying, Memory, StagedPart};
use crate::engine::patiently;

/// Begins copies of tensors on a device.
pub(super) struct Filler {
    device: Device,
    /// On a GPU.
    beside: Option<Beside>,
}

impl Filler {
    /// # Errors
    /// What CUDA reports.
    pub(super) fn new(device: Device) -> Result<Self, CheckpointError> {
        let beside = device.is_cuda().then(|| Beside::of(device)).transpose()?;
        Ok(Self { device, beside })
    }

    /// Copies what may change before the next update; the rest is copied when the [`Filling`] has ended, on a GPU meanwhile.
    ///
    /// # Errors
    /// Where memory runs out.
    pub(super) fn fill(
        &mut self,
        copying: Copying,
        parts: &[StagedPart],
        mut memory: Memory,
    ) -> Result<Filling, CheckpointError> {
        if let Some(beside) = &mut self.beside {
            memory.pin(self.device);
            let mut memory = Some(Box::new(memory));
            let landing = patiently(self.device, || copying.start(parts, beside, &mut memory))?;
            return Ok(Filling::Beside(landing));
        }
        patiently(self.device, || staging::copy(&copying, parts, &mut memory, false))?;
        Ok(Filling::Here(copying, memory))
    }
}

/// What is not copied yet, and is to be before the next update.
pub(super) enum Filling {
    /// By the thread that ends it.
    Here(Copying, Memory),
    /// By the device.
    Beside(Landing<Memory>),
}

impl Filling {
    /// When all is copied, where the device copies.
    pub(super) fn landed(&self) -> Option<Landed> {
        match self {
            Self::Here(..) => None,
            Self::Beside(landing) => Some(landing.landed()),
        }
    }

    /// Waits until all is copied, or does it. The memory, and why it lacks something; none where the device has lost it.
    pub(super) fn end(self, parts: &[StagedPart]) -> (Option<Memory>, Result<(), CheckpointError>) {
        match self {
            Self::Here(copying, mut memory) => {
                let copied = staging::copy(&copying, parts, &mut memory, true);
                (Some(memory), copied)
            }
            Self::Beside(landing) => match landing.wait() {
                Ok(memory) => (Some(*memory), Ok(())),
                Err(error) => (None, Err(error.into())),
            },
        }
    }
}
