//! The limit of open files.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Raises the soft limit of this process to at least `needed` open files, as far as the hard limit allows. Returns the
/// earlier limit, for [`WorkerSpec`](super::WorkerSpec), if it was lower.
///
/// # Errors
///
/// The hard limit is lower; the soft limit is raised to it.
pub fn raise(needed: u64) -> (Option<Rlimit>, io::Result<()>) {
    let before = getrlimit(Resource::Nofile);
    if before.current.is_none_or(|current| current >= needed) {
        return (None, Ok(()));
    }
    let most = before.maximum.map_or(needed, |maximum| maximum.min(needed));
    let raised = setrlimit(Resource::Nofile, Rlimit { current: Some(most), ..before });
    let enough = match raised {
        Ok(()) if most < needed => Err(io::Error::other(format!("the hard limit is {most}"))),
        raised => raised.map_err(io::Error::from),
    };
    (Some(before), enough)
}
