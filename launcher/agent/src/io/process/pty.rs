//! Pseudo terminals for the output of workers.

use crate::io::output::Stream;
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{OptionalActions, OutputModes, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize};
use std::io;
use std::os::fd::OwnedFd;

const FLAGS: OpenptFlags = OpenptFlags::RDWR.union(OpenptFlags::NOCTTY).union(OpenptFlags::CLOEXEC);

/// Opens one with the size and modes of the terminal at `stream`. Returns the launcher's end and the worker's.
pub(super) fn open(stream: Stream) -> io::Result<(OwnedFd, OwnedFd)> {
    let launchers = openpt(FLAGS)?;
    unlockpt(&launchers)?;
    let workers = ioctl_tiocgptpeer(&launchers, FLAGS)?;
    let mut modes = stream.with_fd(|fd| tcgetattr(fd))?;
    // Bytes pass unchanged. The launcher's terminal translates line ends.
    modes.output_modes.remove(OutputModes::OPOST);
    tcsetattr(&workers, OptionalActions::Now, &modes)?;
    tcsetwinsize(&launchers, stream.with_fd(|fd| tcgetwinsize(fd))?)?;
    Ok((launchers, workers))
}
