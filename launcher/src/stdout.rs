//! What the commands print that are not a launch.

use std::io::{self, ErrorKind, Write};

/// Writes to standard output. Whether somebody is still there to read it.
///
/// # Errors
/// The output cannot be written, as on a full disk.
pub(crate) fn say(text: &str) -> io::Result<bool> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        other => other.map(|()| true),
    }
}
