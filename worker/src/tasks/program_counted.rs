//! The samples of a batch that a program gets: without unreadable ones, if means of the batch are computed.

use dtrain_torch_shim::rng::BySample;
use tch::{TchError, Tensor};

use crate::models::Port;

/// The samples of a batch that count.
pub(super) struct Counted {
    /// The values of [`Network::fields`](super::network::Network::fields).
    pub(super) inputs: Vec<Tensor>,
    pub(super) weights: Tensor,
    /// Their places in the batch, if some samples are left out.
    pub(super) rows: Option<Tensor>,
}

impl Counted {
    /// Lets the samples that count draw as they do among all, if some are left out.
    pub(super) fn draws(&self) -> Result<Option<BySample>, TchError> {
        let Some(rows) = &self.rows else { return Ok(None) };
        let rows = Vec::<i64>::try_from(rows)?;
        BySample::select(&rows).map(Some).map_err(|error| TchError::Torch(error.message))
    }

    /// Returns an output of the samples that count as one of all samples, with 0 for the others.
    pub(super) fn spread(&self, output: &Tensor, port: &Port, samples: usize) -> Result<Tensor, TchError> {
        match (&self.rows, port.shape.first()) {
            (Some(rows), Some(None)) => {
                let shape: Vec<i64> = [samples as i64].into_iter().chain(output.size().drain(1..)).collect();
                Tensor::f_zeros(&shape, (output.kind(), output.device()))?.f_index_copy(0, rows, output)
            }
            _ => Ok(output.shallow_clone()),
        }
    }
}
