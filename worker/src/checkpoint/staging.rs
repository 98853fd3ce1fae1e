//! The copy of a checkpoint in the memory of the host, which is written while the training goes on.

use tch::TchError;

use super::error::CheckpointError;
use super::items::Source;
use super::layout::{Content, FileLayout};

/// A contiguous range of a file that this rank writes, and where the copy of it lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StagedPart {
    /// The number of the file.
    pub(super) file: usize,
    /// Where the range begins in it.
    pub(super) offset: u64,
    /// Where it begins in the memory.
    pub(super) start: usize,
    /// Its bytes.
    pub(super) bytes: usize,
}

/// What `rank` has to write of the files, and how many bytes that is in all.
pub(super) fn parts(files: &[FileLayout], rank: usize) -> (Vec<StagedPart>, usize) {
    let mut start = 0;
    let mut parts = Vec::new();
    for (file, layout) in files.iter().enumerate() {
        for (offset, bytes) in layout.parts_of(rank) {
            let bytes = bytes as usize;
            parts.push(StagedPart {
                file,
                offset,
                start,
                bytes,
            });
            start += bytes;
        }
    }
    (parts, start)
}

/// Copies what `rank` writes into `memory`, which has the bytes that [`parts`] says.
///
/// # Errors
/// Where a tensor on a GPU cannot be read, or memory for its copy runs out.
pub(super) fn copy(
    layouts: &[FileLayout],
    files: &[(String, Vec<Source>)],
    rank: usize,
    memory: &mut [u8],
) -> Result<(), CheckpointError> {
    let mut rest = memory;
    for (layout, (_, sources)) in layouts.iter().zip(files) {
        for piece in layout.pieces(rank) {
            let short = || TchError::Convert("the memory for a checkpoint is too short".to_owned());
            let (own, behind) = rest
                .split_at_mut_checked(piece.bytes as usize)
                .ok_or_else(short)?;
            rest = behind;
            match &piece.content {
                Content::Header => own.copy_from_slice(&layout.header),
                Content::Elements(index, range) => {
                    let tensor = sources[*index].elements(range)?;
                    tensor.f_copy_data_u8(own, tensor.numel())?;
                }
            }
        }
    }
    Ok(())
}
