//! Memory of the host for a copy of what a rank writes.

use std::ops::{Deref, DerefMut};

use dtrain_torch_shim::cuda;
use dtrain_torch_shim::landing::Pinned;
use memmap2::{Advice, MmapMut};
use tch::Device;

use super::error::CheckpointError;

/// Bytes of a page, and of what a disk writes at once: no machine has smaller pages, and hardly a disk larger blocks.
pub(super) const PAGE: usize = 4096;

/// Memory for a copy. It begins at a page.
pub(super) struct Memory {
    /// Before the memory: it ends first. None where no GPU copies into it.
    pinned: Option<Pinned>,
    bytes: MmapMut,
}

impl Memory {
    /// So much of it, all zero; the system gives it when it is touched.
    pub(super) fn of(bytes: usize) -> Result<Self, CheckpointError> {
        let memory = MmapMut::map_anon(bytes.max(1))
            .map_err(CheckpointError::io("make room in memory for", "a checkpoint"))?;
        // Large pages are copied to and written from with less work; without them it goes as well.
        let _ = memory.advise(Advice::HugePage);
        Ok(Self { pinned: None, bytes: memory })
    }

    /// Pins it where a GPU copies into it, so that neither the host nor a thread of it has a part in that. Where the system has no more
    /// to pin, the copies are slower.
    pub(super) fn pin(&mut self, device: Device) {
        let Device::Cuda(gpu) = device else { return };
        if self.pinned.is_some() {
            return;
        }
        match cuda::set_device(gpu).and_then(|()| Pinned::over(&mut self.bytes)) {
            Ok(pinned) => self.pinned = Some(pinned),
            Err(error) => tracing::warn!("checkpoints are copied through memory that is not pinned: {error}"),
        }
    }
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Memory {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}
