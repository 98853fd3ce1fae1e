//! The cores of the machine, and a rank's share of them.

/// What one of so many ranks on this machine has of its cores; at least one.
pub(crate) fn share_of_cores(local_world_size: usize) -> usize {
    (cores() / local_world_size.max(1)).max(1)
}

/// The machine's cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
