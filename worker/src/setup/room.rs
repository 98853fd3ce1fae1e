//! Host memory beside the tensors of a CPU's ranks: copies of the state for checkpoints, and the cache of images.

use dtrain_common::env::WorkerEnv;
use dtrain_common::units::ByteSize;
use dtrain_recipe::Recipe;
use tch::Device;

use crate::checkpoint;
use crate::collectives::Ranks;
use crate::data::cache_bytes;
use crate::memory::budget::HOST_PERCENT;
use crate::setup::Setup;
use crate::setup::error::{Result, WorkerError};
use crate::setup::host::Host;
use crate::setup::nodes::Agreed;

/// Percentage of the host's free memory for everything that is known: tensors, copies and the cache.
const KNOWN_PERCENT: u64 = 95;

/// Leaves room beside the tensors of this rank, and tells people on rank 0 if they get less. The limit applies after the plan,
/// which knows it. Every rank calls this.
pub(crate) fn leave(
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &mut Host,
    setup: &Setup,
    ranks: &Ranks,
    agreed: &Agreed,
) -> Result<()> {
    if !is_shared(recipe, host.device) {
        return Ok(());
    }
    let copies = bytes_of_copies(setup, ranks, agreed, host.device)?;
    let before = host.allowed;
    host.allowed = beside(recipe, before, copies, env.local_world_size);
    if host.allowed < before && env.rank == 0 {
        tracing::info!(
            "a copy of the state for checkpoints takes {} of the host's memory per rank: tensors may take {}, not {}",
            ByteSize(copies),
            ByteSize(host.allowed),
            ByteSize(before)
        );
    }
    Ok(())
}

/// Returns whether copies of the state are in the memory that the budget divides: copies of a GPU's state are not, and a stated
/// budget is that of the tensors.
pub(crate) fn is_shared(recipe: &Recipe, device: Device) -> bool {
    !device.is_cuda() && recipe.memory.budget.value().is_none()
}

/// Returns the bytes of `allowed`, by [`bytes`](crate::memory::budget::bytes), that are left for the tensors of one of
/// `local_ranks` ranks if each has `copies` bytes for checkpoints and its share of the cache of images.
pub(crate) fn beside(recipe: &Recipe, allowed: u64, copies: u64, local_ranks: usize) -> u64 {
    let has_images = recipe.data.kind.is_of_images();
    let cache = if has_images { cache_bytes(recipe.data.cache, local_ranks) } else { 0 };
    less(allowed, copies + cache)
}

/// Returns the bytes for the tensors of a CPU beside `others`.
fn less(allowed: u64, others: u64) -> u64 {
    match allowed {
        u64::MAX => allowed,
        _ => allowed.min((allowed / HOST_PERCENT * KNOWN_PERCENT).saturating_sub(others)),
    }
}

/// Returns the bytes of host memory for a CPU rank's copies of the state: one for a checkpoint on the disk, and two in memory if
/// the ranks keep those. Every rank calls this.
fn bytes_of_copies(setup: &Setup, ranks: &Ranks, agreed: &Agreed, device: Device) -> Result<u64> {
    let (model, stages) = (&setup.replica.model, &setup.course.stages.stages);
    let writers = 0..agreed.gathering.writers(ranks.size());
    let bytes =
        checkpoint::copy_bytes(model, ranks, writers.clone(), device).map_err(WorkerError::Checkpoints)?;
    // A later phase may train more parameters, with their moments and average.
    let trained =
        stages.iter().flat_map(|stage| &stage.phases).map(|phase| phase.count(&model.registry)).max();
    let more = trained.unwrap_or(0).saturating_sub(model.table.trained_elements());
    let columns = model.table.most_moments() as u64 + u64::from(model.average.is_some());
    let more = more * columns * size_of::<f32>() as u64 / writers.len().max(1) as u64;
    Ok((bytes + more) * if agreed.copies.is_some() { 3 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_for_checkpoints_are_beside_a_cpu_s_tensors() {
        const GIB: u64 = 1 << 30;
        // Of 10 GiB free, 6 are for tensors: 9.5 less a copy of 2 and a cache of 2.5 leave 5.
        let allowed = 6 * GIB;
        let close = |one: u64, other: u64| one.abs_diff(other) < 1024;
        assert!(close(less(allowed, GIB / 2 + 5 * GIB / 2), allowed));
        assert!(close(less(allowed, 2 * GIB + 5 * GIB / 2), 5 * GIB));
        assert!(close(less(allowed, 2 * GIB), allowed), "without a cache of images there is room");
        assert_eq!((less(allowed, 20 * GIB), less(u64::MAX, GIB)), (0, u64::MAX));
    }
}
