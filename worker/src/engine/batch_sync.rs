//! Batch normalisation over all ranks: sums of statistics within the graph.

use std::sync::Arc;
use std::sync::{Mutex, OnceLock, PoisonError};

use dtrain_torch_shim::hooks::self_adjoint;
use tch::Tensor;

use crate::collectives::{Ranks, ReduceOp};
use crate::models::{BatchSync, ModelError};

/// Sums over the ranks of a run, for the layers of a model that is built before the ranks have found each other.
///
/// It has a group of its own: its sums must not be taken for the reduction of gradients, which goes on at the same time.
#[derive(Debug)]
pub struct RankSync {
    size: usize,
    ranks: Arc<OnceLock<Mutex<Ranks>>>,
}

impl RankSync {
    /// For a run of `size` ranks.
    pub fn new(size: usize) -> Self {
        Self {
            size,
            ranks: Arc::default(),
        }
    }

    /// The ranks have found each other. Called once, before the first forward pass.
    pub fn connect(&self, ranks: Ranks) {
        // A second call would change nothing.
        let _ = self.ranks.set(Mutex::new(ranks));
    }
}

impl BatchSync for RankSync {
    fn all_reduce(&self, x: &Tensor) -> Result<Tensor, ModelError> {
        let shared = Arc::clone(&self.ranks);
        self_adjoint(x, move |tensor| {
            let ranks = shared.get().ok_or("the ranks have not found each other yet")?;
            let ranks = ranks.lock().unwrap_or_else(PoisonError::into_inner);
            ranks.all_reduce(tensor, ReduceOp::Sum)?.wait()?;
            Ok(())
        })
        .map_err(|error| ModelError::Sync { source: error.into() })
    }

    fn participants(&self) -> usize {
        self.size
    }
}
