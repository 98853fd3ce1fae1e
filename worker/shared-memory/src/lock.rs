//! Detection of live ranks: each rank locks its own byte of a file that all ranks have open. The kernel
//! releases the lock when the process ends.
//!
//! These are locks of the open file description (`F_OFD_SETLK`, Linux 3.15). Unlike locks of a process, they
//! stay when the process closes another descriptor of the same file.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks byte `index`. Returns false if another open file description has locked it.
pub(crate) fn try_lock(file: &File, index: usize) -> io::Result<bool> {
    match call(file, libc::F_OFD_SETLK, libc::F_WRLCK, index) {
        Ok(_) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(crate) fn release(file: &File, index: usize) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, index).map(|_| ())
}

/// Returns whether another open file description has locked byte `index`.
pub(crate) fn is_locked(file: &File, index: usize) -> io::Result<bool> {
    let lock = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, index)?;
    Ok(i32::from(lock.l_type) != libc::F_UNLCK)
}

fn call(file: &File, command: i32, kind: i32, index: usize) -> io::Result<libc::flock> {
    let start = libc::off_t::try_from(index).map_err(io::Error::other)?;
    // SAFETY: flock has only numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start;
    lock.l_len = 1;
    loop {
        // SAFETY: the descriptor is open, and lock is valid for reads and writes.
        if unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } != -1 {
            return Ok(lock);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Segment;

    #[test]
    fn a_byte_stays_locked_until_its_file_description_closes() {
        let (one, ticket) = Segment::create(2, 1).unwrap();
        let two = Segment::open(&ticket).unwrap();
        assert!(!is_locked(two.file(), 0).unwrap());
        assert!(try_lock(one.file(), 0).unwrap());
        assert!(try_lock(one.file(), 0).unwrap(), "a second lock of the same description succeeds");
        assert!(is_locked(two.file(), 0).unwrap());
        assert!(!is_locked(two.file(), 1).unwrap());
        assert!(!try_lock(two.file(), 0).unwrap());
        assert!(try_lock(two.file(), 1).unwrap());
        release(one.file(), 0).unwrap();
        assert!(!is_locked(two.file(), 0).unwrap());
        assert!(is_locked(one.file(), 1).unwrap());
        drop(two);
        // A process that another test starts shares the open file description until its exec.
        let started = std::time::Instant::now();
        while is_locked(one.file(), 1).unwrap() {
            assert!(started.elapsed().as_secs() < 10, "the lock outlives its file description");
            std::thread::yield_now();
        }
    }
}
