//! Host memory for a copy of a rank's part of a checkpoint.

use std::ops::{Deref, DerefMut};

use dtrain_torch_shim::cuda;
use dtrain_torch_shim::host_copy::Pinned;
use memmap2::{Advice, MmapMut};
use tch::Device;

use super::error::CheckpointError;

/// Bytes of a page and of a disk's block: machines have no smaller pages, and disks rarely larger blocks.
pub(super) const PAGE: usize = 4096;

/// Memory for a copy, aligned to a page.
pub(super) struct Memory {
    /// Declared first, to be dropped before the memory. None if no GPU copies into it.
    pinned: Option<Pinned>,
    bytes: MmapMut,
}

impl Memory {
    /// Allocates `bytes` zeros; the system provides the pages on first access.
    pub(super) fn allocate(bytes: usize) -> Result<Self, CheckpointError> {
        let memory = MmapMut::map_anon(bytes.max(1))
            .map_err(CheckpointError::io("allocate memory for", "a checkpoint"))?;
        // Huge pages make copies and writes faster; without them both still work.
        let _ = memory.advise(Advice::HugePage);
        Ok(Self { pinned: None, bytes: memory })
    }

    /// Pins the memory if a GPU copies into it, so that the copy needs no thread of the host. If the system
    /// cannot pin more memory, copies are slower.
    pub(super) fn pin(&mut self, device: Device) {
        let Device::Cuda(gpu) = device else { return };
        if self.pinned.is_some() {
            return;
        }
        match cuda::set_device(gpu).and_then(|()| Pinned::pin(&mut self.bytes)) {
            Ok(pinned) => self.pinned = Some(pinned),
            Err(error) => tracing::warn!("cannot pin memory for checkpoints: {error}; copies are slower"),
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
