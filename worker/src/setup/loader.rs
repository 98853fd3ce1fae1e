//! The threads of a rank, and the options of its loader.

use dtrain_recipe::{Augment, Recipe};

use crate::data::LoaderOptions;
use crate::tasks::cores;

/// Returns one rank's share of this machine's cores; at least 1.
pub(crate) fn cores_per_rank(local_world_size: usize) -> usize {
    (cores() / local_world_size.max(1)).max(1)
}

/// Returns the loader's options. Threads: the recipe's number, or the rank's share of the cores.
pub(crate) fn loader_options(recipe: &Recipe, local_world_size: usize) -> LoaderOptions {
    /// Beyond this, more threads rarely help one rank.
    const MOST_THREADS: usize = 8;
    let own_share = cores_per_rank(local_world_size).min(MOST_THREADS);
    let threads = recipe.data.workers.value().unwrap_or(own_share);
    LoaderOptions {
        threads,
        // A thread loads a whole episode, and a micro-batch may be one.
        prefetch_batches: if recipe.data.episodes.is_some() { threads.max(4) } else { 4 },
        seed: recipe.train.seed,
        // A custom data set decides itself how to use random numbers.
        augment: recipe.train.overfit.is_none()
            && (recipe.data.augment != Augment::None
                || !recipe.data.changes.is_empty()
                || recipe.task.facts().is_own),
    }
}
