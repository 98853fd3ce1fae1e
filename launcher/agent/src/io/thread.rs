//! Threads that only wait or copy.

use std::io;

/// Their stack; the default of 2 MiB times three per worker is address space for nothing.
const STACK: usize = 256 * 1024;

pub(super) fn start(name: impl Into<String>, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(name.into()).stack_size(STACK);
    thread.spawn(work).map(drop)
}
