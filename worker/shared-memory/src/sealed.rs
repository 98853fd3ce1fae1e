//! Bytes that one process writes once and any process of the machine maps, read-only.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::ptr::{self, NonNull};
use std::slice;

use rustix::fs::SealFlags;
use rustix::mm::{MapFlags, ProtFlags};

use crate::anonymous;
use crate::error::{MemoryError, failed};

/// Bytes of an identity, by which a process recognises the memory.
pub const IDENTITY_BYTES: usize = 32;

/// Memory of which the kernel knows that no process can change it, so that references to it are sound. It has no
/// name: the kernel frees it with its last descriptor and mapping.
#[derive(Debug)]
pub struct Sealed {
    base: NonNull<u8>,
    /// Without the identity, which follows them.
    bytes: usize,
    file: File,
}

// SAFETY: the mapping belongs to the process, not to a thread, and lives as long as the value.
unsafe impl Send for Sealed {}
// SAFETY: nobody can write to the memory.
unsafe impl Sync for Sealed {}

impl Sealed {
    /// Creates memory with the bytes that `write` writes. It returns their identity, such as their hash.
    pub fn create(
        write: impl FnOnce(&mut dyn Write) -> io::Result<[u8; IDENTITY_BYTES]>,
    ) -> Result<Self, MemoryError> {
        let mut file = anonymous::create("dtrain-data")?;
        let identity = write(&mut file).map_err(failed("write to shared memory"))?;
        file.write_all(&identity).map_err(failed("write to shared memory"))?;
        let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(failed("seal shared memory"))?;
        Self::map(file)
    }

    /// Opens the memory at a path of [`Sealed::path`], if it has this identity.
    pub fn open(path: &str, identity: &[u8; IDENTITY_BYTES]) -> Result<Self, MemoryError> {
        let wrong = |found| MemoryError::WrongFile(path.to_owned(), found);
        let file = match own_descriptor(path) {
            Some(descriptor) => duplicate(descriptor),
            // In another container the path can be any file: opening a pipe must not block.
            None => OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path),
        };
        let file = file.map_err(failed(format!("open shared memory at {path}")))?;
        let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::WRITE | SealFlags::SHRINK) {
            return Err(wrong("a file that is not sealed"));
        }
        let sealed = Self::map(file)?;
        let mut found = [0; IDENTITY_BYTES];
        sealed.file.read_exact_at(&mut found, sealed.bytes as u64).map_err(failed(format!("read {path}")))?;
        if found == *identity { Ok(sealed) } else { Err(wrong("another run's memory")) }
    }

    fn map(file: File) -> Result<Self, MemoryError> {
        let length = file.metadata().map_err(failed("read the size of shared memory"))?.len();
        let length = usize::try_from(length).unwrap_or(0);
        let bytes = length.checked_sub(IDENTITY_BYTES).ok_or(MemoryError::Size(1, length))?;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base =
            unsafe { rustix::mm::mmap(ptr::null_mut(), length, ProtFlags::READ, MapFlags::SHARED, &file, 0) }
                .map_err(failed("map shared memory"))?;
        let base = NonNull::new(base.cast()).ok_or(MemoryError::Size(1, length))?;
        Ok(Self { base, bytes, file })
    }

    /// Returns the bytes, page-aligned.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping has these bytes and lives as long as the value. The seals, which cannot be removed, keep
        // every process from changing or truncating them.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.bytes) }
    }

    /// Returns the path at which other processes of the same user can open the memory while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }
}

/// Returns the descriptor at a path of [`Sealed::path`] if it is this process's. Without a /proc of this process, as in a
/// chroot, only its own memory can be opened.
fn own_descriptor(path: &str) -> Option<RawFd> {
    path.strip_prefix(&format!("/proc/{}/fd/", std::process::id()))?.parse().ok()
}

fn duplicate(descriptor: RawFd) -> io::Result<File> {
    // SAFETY: it touches no memory; a number that is not open is an error.
    let new = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if new < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new, so nobody else closes it.
    Ok(unsafe { File::from_raw_fd(new) })
}

impl Drop for Sealed {
    fn drop(&mut self) {
        // SAFETY: base and length are those of the mapping, and only this line unmaps it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes + IDENTITY_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sealed(content: &[u8], identity: u8) -> Sealed {
        Sealed::create(|out| out.write_all(content).map(|()| [identity; IDENTITY_BYTES])).unwrap()
    }

    #[test]
    fn others_map_the_same_bytes_and_nobody_can_change_them() {
        for content in [&b""[..], b"names of images", &[7; 10_000]] {
            let own = sealed(content, 3);
            let other = Sealed::open(&own.path(), &[3; IDENTITY_BYTES]).unwrap();
            assert_eq!((own.bytes(), other.bytes()), (content, content));
            let file = OpenOptions::new().write(true).open(own.path()).unwrap();
            assert!(file.set_len(1).is_err() && file.write_all_at(b"x", 0).is_err());
            drop(own);
            assert_eq!(other.bytes(), content);
            // The second one can be opened too.
            assert_eq!(Sealed::open(&other.path(), &[3; IDENTITY_BYTES]).unwrap().bytes(), content);
        }
    }

    #[test]
    fn own_memory_is_opened_without_proc() {
        let own = sealed(b"names", 3);
        assert_eq!(own_descriptor(&own.path()), Some(own.file.as_raw_fd()));
        assert_eq!(own_descriptor("/proc/self/fd/3"), None);
        assert!(own_descriptor(&format!("/proc/{}/fd/x", std::process::id())).is_none());
        let copy = duplicate(own.file.as_raw_fd()).unwrap();
        assert_eq!(Sealed::map(copy).unwrap().bytes(), b"names");
        assert!(duplicate(1_000_000).is_err());
    }

    #[test]
    fn other_files_are_errors() {
        let own = sealed(b"names", 3);
        let said = |path: &str| Sealed::open(path, &[4; IDENTITY_BYTES]).unwrap_err().to_string();
        assert!(said(&own.path()).contains("another run's memory"));
        assert!(said("/proc/self/exe").contains("not sealed"));
        assert!(said("/proc/self/fd/100000").contains("cannot open shared memory at"));
        let failed = Sealed::create(|_| Err(io::Error::other("full")));
        assert!(failed.unwrap_err().to_string().contains("cannot write to shared memory: full"));
    }
}
