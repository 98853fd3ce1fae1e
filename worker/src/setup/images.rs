//! The cache of decoded images that the ranks of a machine share.

use dtrain_common::env::WorkerEnv;

use crate::collectives::Rendezvous;
use crate::data::CacheBudget;
use crate::setup::error::Result;

/// Lets the ranks of this machine share one cache. A rank that cannot map it, as in another container, keeps its own: where an
/// image comes from changes nothing. Every rank calls it.
pub(crate) fn share(cache: &CacheBudget, rendezvous: &Rendezvous, env: &WorkerEnv) -> Result<()> {
    if env.local_world_size < 2 || !cache.has_places() {
        return Ok(());
    }
    let name = format!("image-cache-of-node-{}", env.group_rank);
    if env.local_rank == 0 {
        let ticket = cache.create_pool(env.local_world_size).unwrap_or_else(|error| {
            tracing::debug!("ranks do not share decoded images: {error}");
            None
        });
        let message = ticket.map(|ticket| serde_json::to_vec(&ticket)).transpose()?.unwrap_or_default();
        return Ok(rendezvous.publish_whole(&name, &message)?);
    }
    let message = rendezvous.fetch_whole(&name)?;
    if !message.is_empty()
        && let Err(error) = cache.open_pool(serde_json::from_slice(&message)?)
    {
        tracing::debug!("decoded images are not shared with other ranks: {error}");
    }
    Ok(())
}
