//! c10d's TCPStore: one rank serves; every rank, including the serving one, reads and writes keys.

use std::net::TcpListener;
use std::os::fd::IntoRawFd;
use std::time::Duration;

use crate::error::{ShimError, create, fetch, try_call};
use crate::ffi;

/// A connection to the key-value store of a run.
///
/// Rank 0 creates the server with [`TcpStore::serve`]; the others use [`TcpStore::connect`]. Drop the server
/// last: without it, calls of clients are errors of kind `Network`.
#[derive(Debug)]
pub struct TcpStore(pub(crate) ffi::Owned<ffi::StoreHandle>);

// SAFETY: c10d::TCPStore serialises its operations with a mutex, and the handle is only a reference count.
unsafe impl Send for TcpStore {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for TcpStore {}

impl TcpStore {
    /// Serves a store on `listener` and connects to it at `address`, whose port is the listener's. Without a
    /// listener, serves on the port of all addresses: `Network` if the port is in use.
    pub fn serve(
        address: (&str, u16),
        listener: Option<TcpListener>,
        timeout: Duration,
    ) -> Result<Self, ShimError> {
        // libtorch closes the descriptor.
        let descriptor = listener.map_or(-1, TcpListener::into_raw_fd);
        Self::new("serve the store", address, Some(descriptor), timeout)
    }

    /// Connects to the store at `host:port`, with retries until `timeout`; then `Timeout` or `Network`.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, ShimError> {
        Self::new("connect to the store", (host, port), None, timeout)
    }

    fn new(
        op: &'static str,
        address: (&str, u16),
        server: Option<i32>,
        timeout: Duration,
    ) -> Result<Self, ShimError> {
        let (host, port, timeout) = (address.0.into(), address.1, millis(timeout));
        let (is_server, listener) = (server.is_some(), server.unwrap_or(-1));
        create(op, |out, error| ffi::dt_tcp_store_new(host, port, is_server, listener, timeout, out, error))
            .map(Self)
    }

    /// Returns the same store with every key under `prefix/`.
    pub fn prefixed(&self, prefix: &str) -> Result<Self, ShimError> {
        create("prefix the store", |out, error| ffi::dt_store_prefix(&self.0, prefix.into(), out, error))
            .map(Self)
    }

    /// Writes a key.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), ShimError> {
        try_call("write to the store", |error| ffi::dt_store_set(&self.0, key.into(), value.into(), error))
    }

    /// Reads a key. Waits up to the store's time-out for it; then returns `Timeout`.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, ShimError> {
        let bytes =
            fetch("read from the store", |out, error| ffi::dt_store_get(&self.0, key.into(), out, error))?;
        Ok(bytes.to_vec())
    }

    /// Removes a key; a missing one is no error.
    pub fn delete(&self, key: &str) -> Result<(), ShimError> {
        try_call("delete from the store", |error| ffi::dt_store_delete(&self.0, key.into(), error))
    }

    /// Adds to a counter and returns its new value; a missing counter starts at 0.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, ShimError> {
        fetch("add to a counter of the store", |out, error| {
            ffi::dt_store_add(&self.0, key.into(), amount, out, error)
        })
    }
}

/// Converts to milliseconds for the boundary, rounded up so that a short time-out never becomes 0.
pub(crate) fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX).min(i64::MAX as u64 / 2_000_000)
}
