//! c10d's TCPStore: one rank serves, every rank (also the serving one) reads and writes keys.

use std::ptr::{self, NonNull};
use std::time::Duration;

use crate::error::{ShimError, c_string, checked};
use crate::ffi;

/// A connection to the key-value store of a run.
///
/// Rank 0 makes the server with [`TcpStore::serve`], the others [`TcpStore::connect`]; a server that is dropped takes
/// the store away from its clients, so it is dropped last.
#[derive(Debug)]
pub struct TcpStore {
    handle: NonNull<ffi::StoreHandle>,
}

// SAFETY: c10d::TCPStore serialises its operations with a mutex of its own, and the handle is only a reference count.
unsafe impl Send for TcpStore {}
// SAFETY: as above; no method needs exclusive access.
unsafe impl Sync for TcpStore {}

impl TcpStore {
    /// Serves a store on `port` (0 takes a free one, see [`TcpStore::port`]) of every interface, and connects to it.
    ///
    /// # Errors
    /// `Network` where the port is taken, `Timeout` where the own server does not answer.
    pub fn serve(host: &str, port: u16, timeout: Duration) -> Result<Self, ShimError> {
        Self::new("serve the store", host, port, true, timeout)
    }

    /// Connects to the store at `host:port`, trying again until `timeout` has passed.
    ///
    /// # Errors
    /// `Timeout` or `Network` where nobody serves there.
    pub fn connect(host: &str, port: u16, timeout: Duration) -> Result<Self, ShimError> {
        Self::new("connect to the store", host, port, false, timeout)
    }

    fn new(
        op: &'static str,
        host: &str,
        port: u16,
        server: bool,
        timeout: Duration,
    ) -> Result<Self, ShimError> {
        let host = c_string(op, host)?;
        let mut out = ptr::null_mut();
        checked(op, |error| {
            // SAFETY: host is NUL-terminated and outlives the call; out and error are valid places.
            unsafe { ffi::dt_tcp_store_new(host.as_ptr(), port, server, millis(timeout), &mut out, error) }
        })?;
        Self::from_raw(op, out)
    }

    /// The same store with every key under `prefix/`.
    ///
    /// # Errors
    /// Only where memory runs out.
    pub fn prefixed(&self, prefix: &str) -> Result<Self, ShimError> {
        let op = "prefix the store";
        let prefix = c_string(op, prefix)?;
        let mut out = ptr::null_mut();
        checked(op, |error| {
            // SAFETY: the handle is live; the new store holds its own reference to the old one.
            unsafe { ffi::dt_store_prefix(self.handle.as_ptr(), prefix.as_ptr(), &mut out, error) }
        })?;
        Self::from_raw(op, out)
    }

    fn from_raw(op: &'static str, out: *mut ffi::StoreHandle) -> Result<Self, ShimError> {
        NonNull::new(out)
            .map(|handle| Self { handle })
            .ok_or_else(|| ShimError::new(op, crate::ErrorKind::Other, "no store was made"))
    }

    pub(crate) fn as_ptr(&self) -> *mut ffi::StoreHandle {
        self.handle.as_ptr()
    }

    /// The port that the server listens on.
    pub fn port(&self) -> u16 {
        // SAFETY: the handle is live.
        unsafe { ffi::dt_store_port(self.handle.as_ptr()) }
    }

    /// How long [`TcpStore::get`] waits for a key.
    ///
    /// # Errors
    /// None known.
    pub fn set_timeout(&self, timeout: Duration) -> Result<(), ShimError> {
        checked("set the store's time-out", |error| {
            // SAFETY: the handle is live.
            unsafe { ffi::dt_store_set_timeout(self.handle.as_ptr(), millis(timeout), error) }
        })
    }

    /// Writes a key.
    ///
    /// # Errors
    /// `Network` where the server is gone.
    pub fn set(&self, key: &str, value: &[u8]) -> Result<(), ShimError> {
        let op = "write to the store";
        let key = c_string(op, key)?;
        checked(op, |error| {
            // SAFETY: value is valid for its length and copied during the call.
            unsafe {
                ffi::dt_store_set(
                    self.handle.as_ptr(),
                    key.as_ptr(),
                    value.as_ptr(),
                    value.len(),
                    error,
                )
            }
        })
    }

    /// Reads a key, waiting for it up to the store's time-out.
    ///
    /// # Errors
    /// `Timeout` where nobody writes it, `Network` where the server is gone.
    pub fn get(&self, key: &str) -> Result<Vec<u8>, ShimError> {
        let op = "read from the store";
        let key = c_string(op, key)?;
        let (mut out, mut length) = (ptr::null_mut(), 0);
        checked(op, |error| {
            // SAFETY: out and length are valid places.
            unsafe { ffi::dt_store_get(self.handle.as_ptr(), key.as_ptr(), &mut out, &mut length, error) }
        })?;
        // SAFETY: on success out is malloc'ed with at least `length` initialised bytes and is ours to free, once.
        Ok(unsafe {
            let bytes = std::slice::from_raw_parts(out, length).to_vec();
            ffi::dt_bytes_free(out);
            bytes
        })
    }

    /// Adds to a counter and returns its new value; a missing counter starts at 0.
    ///
    /// # Errors
    /// `Network` where the server is gone.
    pub fn add(&self, key: &str, amount: i64) -> Result<i64, ShimError> {
        let op = "count in the store";
        let key = c_string(op, key)?;
        let mut out = 0;
        checked(op, |error| {
            // SAFETY: out is a valid place.
            unsafe { ffi::dt_store_add(self.handle.as_ptr(), key.as_ptr(), amount, &mut out, error) }
        })?;
        Ok(out)
    }

    /// Waits until a key is there.
    ///
    /// # Errors
    /// `Timeout` where nobody writes it within `timeout`.
    pub fn wait(&self, key: &str, timeout: Duration) -> Result<(), ShimError> {
        let op = "wait for the store";
        let key = c_string(op, key)?;
        checked(op, |error| {
            // SAFETY: the handle is live.
            unsafe { ffi::dt_store_wait(self.handle.as_ptr(), key.as_ptr(), millis(timeout), error) }
        })
    }

    /// Removes a key and says whether it was there.
    ///
    /// # Errors
    /// `Network` where the server is gone.
    pub fn delete(&self, key: &str) -> Result<bool, ShimError> {
        let op = "delete from the store";
        let key = c_string(op, key)?;
        let mut out = false;
        checked(op, |error| {
            // SAFETY: out is a valid place.
            unsafe { ffi::dt_store_delete(self.handle.as_ptr(), key.as_ptr(), &mut out, error) }
        })?;
        Ok(out)
    }
}

impl Drop for TcpStore {
    fn drop(&mut self) {
        // SAFETY: the handle is live and freed once.
        unsafe { ffi::dt_store_free(self.handle.as_ptr()) }
    }
}

/// Milliseconds for the boundary, rounded up so that a short time-out never becomes none.
pub(crate) fn millis(timeout: Duration) -> u64 {
    u64::try_from(timeout.as_nanos().div_ceil(1_000_000))
        .unwrap_or(u64::MAX)
        .min(i64::MAX as u64 / 2_000_000)
}
