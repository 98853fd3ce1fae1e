//! What a GPU's allocator may lose of its memory.

/// Percentage of the rest that stays unused: allocator blocks that fit no request. The guides lost 1.45 of
/// 14.74 GiB without expandable segments, which dtrain enables and which lose less. Drivers also report up to
/// 0.2 GiB more or less for the same GPU.
pub(crate) const FRAGMENTATION_PERCENT: u64 = 5;

/// The size in which a GPU allocator's pool grows (kLargeBuffer of c10/cuda/CUDACachingAllocator.cpp).
pub(crate) const SEGMENT: u64 = 20 << 20;

/// Returns `bytes` less those that a GPU's allocator may lose: gaps between blocks, and parts of its last segments, of the
/// training's stream, of the loader's, and of small blocks, whose pool may be largest when that of large ones is not.
pub(crate) fn without_gaps(bytes: u64) -> u64 {
    bytes.saturating_sub((bytes / 100 * FRAGMENTATION_PERCENT).max(3 * SEGMENT))
}
