//! Parts of a checkpoint from ranks of other nodes, which do not share rank 0's run directory: those ranks send
//! them, and rank 0 writes them.

use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tch::{Device, Kind, Tensor};

use super::copying::CompleteCopy;
use super::disk::{Disk, Output};
use super::error::CheckpointError;
use super::layout::FileLayout;
use crate::collectives::{GlooGroup, ProcessGroup};

/// Bytes of one message.
pub(super) const CHUNK: usize = 16 << 20;

/// A rank waits until rank 0 has written the parts of all earlier ranks.
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// How the parts of a checkpoint reach the run directory.
pub(crate) enum Gathering {
    /// Every rank writes its parts.
    Shared,
    /// The first ranks, on rank 0's node, write theirs; the others send theirs to rank 0.
    Sent {
        /// The number of ranks that write.
        writers: usize,
        rank: usize,
        /// All ranks; only threads that write checkpoints use it.
        messages: Mutex<GlooGroup>,
    },
}

impl Gathering {
    /// Makes the ranks from `writers` on send their parts to rank 0, by `messages`, a group of all ranks.
    pub(crate) fn sent(writers: usize, mut messages: GlooGroup) -> Self {
        messages.set_timeout(TIMEOUT);
        Self::Sent { writers, rank: messages.rank(), messages: Mutex::new(messages) }
    }

    /// Returns how many of `ranks` ranks share what all ranks hold.
    pub(crate) fn writers(&self, ranks: usize) -> usize {
        match self {
            Self::Shared => ranks,
            Self::Sent { writers, .. } => *writers,
        }
    }

    /// Returns whether this rank sends its parts.
    pub(super) fn sends(&self) -> bool {
        matches!(self, Self::Sent { writers, rank, .. } if rank >= writers)
    }

    /// Sends this rank's parts, or that it has no copy of them.
    pub(super) fn send(
        &self,
        files: &[FileLayout],
        copied: Option<&CompleteCopy>,
    ) -> Result<(), CheckpointError> {
        let Self::Sent { rank, messages, .. } = self else { return Ok(()) };
        if files.iter().all(|file| file.parts_of(*rank).next().is_none()) {
            return Ok(());
        }
        let messages = lock(messages);
        messages.send(&Tensor::f_from_slice(&[u8::from(copied.is_some())])?, 0)?;
        let Some(copied) = copied else { return Ok(()) };
        for part in &copied.parts {
            for chunk in copied.bytes_of(part).chunks(CHUNK) {
                messages.send(&Tensor::f_from_slice(chunk)?, 0)?;
            }
        }
        Ok(())
    }

    /// Receives the parts of other nodes on rank 0, and writes them into `folder` unless a write has failed.
    /// It receives all, so that no rank waits.
    pub(super) fn receive(
        &self,
        files: &[FileLayout],
        folder: &Path,
        disk: &Disk,
        mut writes: bool,
    ) -> Result<(), CheckpointError> {
        let Self::Sent { writers, rank: 0, messages } = self else { return Ok(()) };
        let messages = lock(messages);
        let mut outcome = Ok(());
        for from in *writers..messages.size() {
            if files.iter().all(|file| file.parts_of(from).next().is_none()) {
                continue;
            }
            let mut has_copy = [0u8];
            receive_bytes(&messages, from, &mut has_copy)?;
            if has_copy == [0] {
                outcome = outcome.and(Err(CheckpointError::Peer(from)));
                writes = false;
                continue;
            }
            for file in files.iter().filter(|file| file.parts_of(from).next().is_some()) {
                if let Err(error) = receive_file(&messages, from, file, folder, disk, &mut writes)? {
                    outcome = outcome.and(Err(error));
                }
            }
        }
        outcome
    }
}

fn lock(messages: &Mutex<GlooGroup>) -> MutexGuard<'_, GlooGroup> {
    messages.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives one rank's parts of a file, of which it has some. The outer error is the network's.
fn receive_file(
    messages: &GlooGroup,
    from: usize,
    file: &FileLayout,
    folder: &Path,
    disk: &Disk,
    writes: &mut bool,
) -> Result<Result<(), CheckpointError>, CheckpointError> {
    let path = folder.join(&file.name);
    let mut output = Output::create(&path, file.bytes).map_err(CheckpointError::io("create", &path));
    let mut bytes = Vec::new();
    for part in file.parts_of(from) {
        let mut done = 0;
        while done < part.bytes {
            bytes.resize((part.bytes - done).min(CHUNK as u64) as usize, 0);
            receive_bytes(messages, from, &mut bytes)?;
            if let (Ok(file), true) = (&output, *writes)
                && let Err(error) = disk.write_at(file, &bytes, part.offset + done)
            {
                output = Err(CheckpointError::io("write", &path)(error));
            }
            done += bytes.len() as u64;
        }
    }
    let outcome = output.and_then(|file| match *writes {
        true => file.sync().map_err(CheckpointError::io("sync", &path)),
        false => Ok(()),
    });
    *writes = *writes && outcome.is_ok();
    Ok(outcome)
}

pub(super) fn receive_bytes(
    messages: &GlooGroup,
    from: usize,
    bytes: &mut [u8],
) -> Result<(), CheckpointError> {
    let tensor = Tensor::f_empty([bytes.len() as i64], (Kind::Uint8, Device::Cpu))?;
    messages.receive(&tensor, from)?;
    Ok(tensor.f_copy_data_u8(bytes, bytes.len())?)
}
