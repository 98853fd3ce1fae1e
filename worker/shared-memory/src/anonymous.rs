//! Files of memory without a name.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use crate::error::{MemoryError, failed};

/// Creates an empty file in memory that can be sealed.
pub(crate) fn create(name: &str) -> Result<File, MemoryError> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // A kernel may refuse files that could be executed (vm.memfd_noexec = 2). Before Linux 6.3 the flag is unknown.
    let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => memfd_create(name, flags),
        created => created,
    };
    Ok(file.map_err(failed("create shared memory (memfd_create)"))?.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn memory_cannot_be_executed_where_the_kernel_can_refuse_it() {
        let mode = create("x").unwrap().metadata().unwrap().permissions().mode();
        let is_known = memfd_create("y", MemfdFlags::NOEXEC_SEAL).is_ok();
        assert_eq!(mode & 0o111 == 0, is_known, "{mode:o}");
    }
}
