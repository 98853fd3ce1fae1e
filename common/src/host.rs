//! This machine.

/// Returns the name of this host, as the kernel knows it.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
