//! c10d's TCPStore: one rank serves, every rank (also the serving one) reads and writes keys.

use std::time::Duration;

use crate::error::{ShimError, checked, fetched, made};
use crate::ffi;

/// A connection to the key-value store of a run.
///
/// Rank 0 makes the server with [`TcpStore::serve`], the others [`TcpStore::connect`]; a server that is dropped takes
/// the store away from its clients, so it is dropped last. Where the server is gone, calls are errors of the kind `Network`.
#[derive(Debug)]
pub struct TcpStore(pub(crate) ffi::Owned<ffi::StoreHandle>);

// SAFETY: c10d::TCPStore serialises its operations with a mutex of its own, and the handle is only a reference count.
unsafe impl Send for TcpStore {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for TcpStore {}

impl TcpStore {
    /// Serves a store on `port` of every interface, and connects to it. `Network` where the port is taken.
    pub fn serve(host: &str, port: u16, timeout: Duration) -> Result<Self, ShimError> {
        Self::new("serve the store", (host, port), true, timeout)
    }

    /// Connects to the store at `host:port`, trying again until `timeout` has passed. `Timeout` or `Network` where nobody serves there.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, ShimError> {
        Self::new("connect to the store", (host, port), false, timeout)
    }

    fn new(op: &'static str, place: (&str, u16), server: bool, wait: Duration) -> Result<Self, ShimError> {
        let (host, port) = (place.0.into(), place.1);
        made(op, |out, error| ffi::dt_tcp_store_new(host, port, server, millis(wait), out, error)).map(Self)
    }

    /// The same store with every key under `prefix/`.
    pub fn prefixed(&self, prefix: &str) -> Result<Self, ShimError> {
        made("prefix the store", |out, error| ffi::dt_store_prefix(&self.0, prefix.into(), out, error))
            .map(Self)
    }

    /// Writes a key.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), ShimError> {
        checked("write to the store", |error| ffi::dt_store_set(&self.0, key.into(), value.into(), error))
    }

    /// Reads a key, waiting for it up to the store's time-out. `Timeout` where nobody writes it.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, ShimError> {
        let bytes =
            fetched("read from the store", |out, error| ffi::dt_store_get(&self.0, key.into(), out, error))?;
        Ok(bytes.to_vec())
    }

    /// Adds to a counter and returns its new value; a missing counter starts at 0.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, ShimError> {
        fetched("count in the store", |out, error| ffi::dt_store_add(&self.0, key.into(), amount, out, error))
    }
}

/// Milliseconds for the boundary, rounded up so that a short time-out never becomes none.
pub(crate) fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(i64::MAX as u64 / 2_000_000)
}
