//! Decoded images kept in memory, so that later epochs need not decode them again.
//!
//! The first samples are kept and never evicted. Training uses every sample once an epoch in a new order, so
//! replacing one by another would only cost time. When the limit is reached, loading continues without the
//! cache.
//!
//! The ranks of a machine share one cache, as large as theirs together ([`CacheBudget::create_pool`]). An image is copied out of
//! the shared memory when it is used.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use dtrain_recipe as recipe;
use dtrain_shared_memory::{Block, MemoryError, Pool, PoolTicket};

mod available;
mod part;

pub use available::free_host_bytes;
pub(super) use part::Part;

/// Returns the limit of the cache, in bytes, for one of `local_ranks` processes on this machine. `"auto"` is
/// an even share of a quarter of the free memory.
pub fn cache_bytes(cache: recipe::Cache, local_ranks: usize) -> u64 {
    match cache {
        recipe::Cache::Auto => free_host_bytes() / 4 / local_ranks.max(1) as u64,
        recipe::Cache::Off => 0,
        recipe::Cache::Size(size) => size.0,
    }
}

/// Memory that several data sets may use together; clones share it.
#[derive(Debug, Clone, Default)]
pub struct CacheBudget(Arc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    bound: u64,
    used: AtomicU64,
    /// Samples found in the cache, and samples that were decoded.
    hits: AtomicU64,
    misses: AtomicU64,
    /// The files of all data sets.
    places: AtomicU64,
    /// The memory that the ranks of the machine share in place of private memory.
    pool: OnceLock<Pool>,
}

/// Logs the use of the cache at the end.
impl Drop for Counts {
    fn drop(&mut self) {
        let (bound, hits, misses) = (self.bound, *self.hits.get_mut(), *self.misses.get_mut());
        if hits + misses > 0 {
            tracing::debug!(
                "image cache of at most {bound} bytes: {hits} samples were found in it, {misses} were decoded"
            );
        }
    }
}

impl CacheBudget {
    /// Makes a budget in bytes; with 0 bytes nothing is kept.
    pub fn new(bytes: u64) -> Self {
        let mut counts = Counts::default();
        counts.bound = bytes;
        Self(Arc::new(counts))
    }

    /// Returns whether the data sets have files, whose images may be kept.
    pub fn has_places(&self) -> bool {
        self.0.places.load(Ordering::Relaxed) > 0
    }

    /// Creates the cache that the `ranks` ranks of this machine share, of `ranks` times the budget, and uses it from now on. The
    /// other ranks open it with the ticket. `None` if the budget is too small. Call it after the data sets were made, and before
    /// samples are loaded.
    pub fn create_pool(&self, ranks: usize) -> Result<Option<PoolTicket>, MemoryError> {
        let places = self.0.places.load(Ordering::Relaxed);
        let bytes = self.0.bound.saturating_mul(ranks as u64);
        // Most of the memory is for images.
        if places == 0 || places.saturating_mul(16) > bytes {
            return Ok(None);
        }
        let (pool, ticket) = match Pool::create(places, bytes) {
            // Each rank keeps what its own memory has room for.
            Err(MemoryError::NoMemory(..)) => return Ok(None),
            made => made?,
        };
        let _ = self.0.pool.set(pool);
        Ok(Some(ticket))
    }

    /// Uses the cache that another rank of this machine has created for the same data sets.
    pub fn open_pool(&self, ticket: PoolTicket) -> Result<(), MemoryError> {
        let pool = Pool::open(ticket)?;
        let _ = self.0.pool.set(pool);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn used(&self) -> u64 {
        self.0.used.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |used: u64| used.checked_add(bytes).filter(|&used| used <= self.0.bound);
        self.0.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// What a cache that processes share can keep.
pub(super) trait Stored {
    /// Bytes beside the values.
    const HEAD_BYTES: usize;

    /// Passes the parts of the block to write.
    fn store(&self, put: &mut dyn FnMut(&[&[u8]]));

    /// Reads a block that [`Stored::store`] has written, and returns whether it is one.
    fn load(&mut self, block: &Block<'_>) -> bool;
}

/// One slot for each sample of a data set.
#[derive(Debug)]
pub(super) struct Cache<T> {
    /// Allocated when the first sample of one is kept: of a set that is far larger than the budget, few are. Empty if
    /// the budget does not even hold this list.
    chunks: Box<[OnceLock<Box<Chunk<T>>>]>,
    budget: CacheBudget,
    /// The number of the first slot among those of all data sets.
    first: u64,
    /// Bytes of the budget that this data set uses.
    taken: AtomicU64,
}

type Chunk<T> = [OnceLock<Box<T>>; CHUNK];

/// Neighbouring samples whose slots are allocated together.
const CHUNK: usize = 64;

/// Upper limit of the allocator's overhead for an entry and its values.
const OVERHEAD_BYTES: usize = 64;

impl<T: Stored> Cache<T> {
    pub(super) fn new(samples: usize, budget: CacheBudget) -> Self {
        let chunks = samples.div_ceil(CHUNK);
        let bytes = (chunks * size_of::<OnceLock<Box<Chunk<T>>>>()) as u64;
        let (chunks, taken) = if budget.take(bytes) { (chunks, bytes) } else { (0, 0) };
        Self {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            first: budget.0.places.fetch_add(samples as u64, Ordering::Relaxed),
            budget,
            taken: AtomicU64::new(taken),
        }
    }

    /// Returns a sample if it is kept; one in shared memory is copied to `memory`.
    pub(super) fn get<'a>(&'a self, index: usize, memory: &'a mut T) -> Option<&'a T> {
        let found = match self.budget.0.pool.get() {
            Some(pool) => {
                let block = pool.get(self.first + index as u64);
                block.filter(|block| memory.load(block)).map(|_| &*memory)
            }
            None => {
                let chunk = self.chunks.get(index / CHUNK)?.get();
                chunk.and_then(|chunk| chunk[index % CHUNK].get()).map(|entry| &**entry)
            }
        };
        let count = if found.is_some() { &self.budget.0.hits } else { &self.budget.0.misses };
        count.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Returns whether the cache could keep a sample of this number of bytes now: its place is free, and the budget has them.
    pub(super) fn has_room(&self, index: usize, value_bytes: usize) -> bool {
        if let Some(pool) = self.budget.0.pool.get() {
            return pool.has_room(self.first + index as u64, (value_bytes + T::HEAD_BYTES) as u64);
        }
        let Some(chunk) = self.chunks.get(index / CHUNK) else { return false };
        let is_free = chunk.get().is_none_or(|chunk| chunk[index % CHUNK].get().is_none());
        let bytes = (value_bytes + size_of::<T>() + OVERHEAD_BYTES + size_of::<Chunk<T>>()) as u64;
        let used = self.budget.0.used.load(Ordering::Relaxed);
        is_free && used.saturating_add(bytes) <= self.budget.0.bound
    }

    /// Keeps a sample whose values take `value_bytes`, if there is room; calls `make` only then.
    pub(super) fn insert_with(&self, index: usize, value_bytes: usize, make: impl FnOnce() -> T) {
        if let Some(pool) = self.budget.0.pool.get() {
            let place = self.first + index as u64;
            if pool.has_room(place, (value_bytes + T::HEAD_BYTES) as u64) {
                make().store(&mut |parts| {
                    pool.put(place, parts);
                });
            }
            return;
        }
        let Some(chunk) = self.chunks.get(index / CHUNK) else { return };
        let bytes = (value_bytes + size_of::<T>() + OVERHEAD_BYTES) as u64;
        let new_chunk = || Box::new(std::array::from_fn(|_| OnceLock::new()));
        if !self.fill(chunk, (size_of::<Chunk<T>>() + OVERHEAD_BYTES) as u64, new_chunk) {
            return;
        }
        if let Some(chunk) = chunk.get() {
            self.fill(&chunk[index % CHUNK], bytes, || Box::new(make()));
        }
    }

    /// Fills a place with what takes `bytes`, if the budget has them. Returns whether it is filled.
    fn fill<U>(&self, place: &OnceLock<U>, bytes: u64, make: impl FnOnce() -> U) -> bool {
        if place.get().is_some() {
            return true;
        }
        if !self.budget.take(bytes) {
            return false;
        }
        // Another thread may have filled it meanwhile.
        match place.set(make()) {
            Ok(()) => {
                self.taken.fetch_add(bytes, Ordering::Relaxed);
            }
            Err(_) => self.budget.give_back(bytes),
        }
        true
    }
}

impl<T> Drop for Cache<T> {
    /// Returns the memory to the other data sets that share the budget.
    fn drop(&mut self) {
        self.budget.give_back(*self.taken.get_mut());
    }
}

#[cfg(test)]
mod tests;
