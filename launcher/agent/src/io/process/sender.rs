//! The senders of signals: the launcher names them, also behind its guardian.

use super::proc;
use nix::libc;
use rustix::process::{Pid, Signal};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// `siginfo_t` of a signal that a process has queued: 128 bytes, with its fields at the kernel's places.
#[repr(C)]
struct Queued {
    signal: libc::c_int,
    error: libc::c_int,
    code: libc::c_int,
    sender: Sender,
    rest:
        [u8; 128 - 3 * size_of::<libc::c_int>() - size_of::<libc::c_int>() * IS_PADDED - size_of::<Sender>()],
}

/// Whether padding precedes the pointer in [`Sender`].
const IS_PADDED: usize = (align_of::<Sender>() > align_of::<libc::c_int>()) as usize;

#[repr(C)]
struct Sender {
    pid: libc::pid_t,
    uid: libc::uid_t,
    value: usize,
}

const _: () = assert!(size_of::<Queued>() == size_of::<libc::siginfo_t>());

/// Sends the signal to the process of `pidfd`, which sees `sender` as its sender instead of this process, if the system allows
/// that. Fails if the process has ended.
#[expect(unsafe_code, reason = "no crate sends a signal with the pid of its sender")]
pub fn pass_on(pidfd: BorrowedFd<'_>, signal: Signal, sender: Option<Pid>) -> io::Result<()> {
    let plain = || rustix::process::pidfd_send_signal(pidfd, signal).map_err(io::Error::from);
    let Some(pid) = sender else {
        return plain();
    };
    let info = Queued {
        signal: signal.as_raw(),
        error: 0,
        // The kernel lets a process name another sender only with such a code.
        code: libc::SI_QUEUE,
        sender: Sender { pid: pid.as_raw_nonzero().get(), uid: rustix::process::getuid().as_raw(), value: 0 },
        rest: [0; _],
    };
    // SAFETY: the kernel only reads `info`, which is as large as the siginfo_t that it expects and lives until the call
    // returns; `pidfd` is borrowed, so the descriptor is open.
    let result = unsafe {
        libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.as_raw(), &raw const info, 0)
    };
    if result == 0 { Ok(()) } else { plain() }
}

/// Returns the process in words: `PID 7 (bash)`. Call it at once: the sender may end.
pub fn described(pid: Pid) -> String {
    let pid = pid.as_raw_nonzero().get();
    let name = proc::folder(pid.unsigned_abs()).map(|folder| fs::read_to_string(folder.join("comm")));
    match name {
        Some(Ok(name)) => format!("PID {pid} ({})", name.trim_end().replace(char::is_control, "?")),
        _ => format!("PID {pid}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::io::process::handlers;
    use crate::signals::USR2;
    use rustix::process::PidfdFlags;
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn a_signal_is_passed_on_under_the_name_of_its_sender() {
        let (heard, senders) = channel();
        handlers::listen(&[USR2], move |signal, sender| heard.send((signal, sender)).unwrap()).unwrap();
        let own = rustix::process::getpid();
        let pidfd = rustix::process::pidfd_open(own, PidfdFlags::empty()).unwrap();
        for sender in [Pid::from_raw(12345), None] {
            pass_on(pidfd.as_fd(), Signal::USR2, sender).unwrap();
            let next = std::iter::from_fn(|| senders.recv_timeout(Duration::from_secs(30)).ok());
            let (_, seen) = next.into_iter().find(|(signal, _)| *signal == USR2).unwrap();
            assert_eq!(seen, sender.or(Some(own)));
        }
        assert!(described(own).starts_with(&format!("PID {} (", own.as_raw_nonzero())));
    }
}
