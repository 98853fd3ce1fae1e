//! The socket that the starter opened for this task.

use crate::{PMI_FD, PMI_RANK, PMI_SIZE, PmiError};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Other tasks may start later, and read a large data folder.
const PATIENCE: Duration = Duration::from_secs(15 * 60);

/// The longest answer: more is no answer of the protocol.
const LONGEST_ANSWER: usize = 1 << 16;

/// Rank of this task, and number of tasks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Task {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

impl Task {
    pub(crate) fn of_variables(get: &dyn Fn(&str) -> Option<String>) -> Result<Self, PmiError> {
        let (rank, size) = (number(get, PMI_RANK)?, number(get, PMI_SIZE)?);
        match rank < size {
            true => Ok(Self { rank, size }),
            false => Err(PmiError::Variable {
                name: PMI_RANK,
                value: rank.to_string(),
                expected: "a number below PMI_SIZE",
            }),
        }
    }
}

fn number(get: &dyn Fn(&str) -> Option<String>, name: &'static str) -> Result<usize, PmiError> {
    let value = get(name).unwrap_or_default();
    let expected = "a whole number of at least 0";
    value.trim().parse().map_err(|_| PmiError::Variable { name, value, expected })
}

#[derive(Debug)]
pub(crate) struct Socket(UnixStream);

impl Socket {
    /// Returns the socket that [`PMI_FD`] names; `None` if the variable is not set, or is inherited from a
    /// process that had it: the number is then closed, or of something else.
    pub(crate) fn of_starter(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, PmiError> {
        let Some(value) = get(PMI_FD) else { return Ok(None) };
        let Some(fd) = value.trim().parse::<RawFd>().ok().filter(|fd| *fd > 2) else {
            return Err(PmiError::Variable { name: PMI_FD, value, expected: "the number of an open socket" });
        };
        // SAFETY: only used for two system calls, which answer EBADF for a closed number.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if rustix::net::sockopt::socket_type(borrowed).is_err() {
            return Ok(None);
        }
        // A copy: an MPI library in this process uses the original, and closes it. Child processes do not get it.
        let own = rustix::io::fcntl_dupfd_cloexec(borrowed, 0).map_err(io::Error::from)?;
        Ok(Some(Self::new(UnixStream::from(own))?))
    }

    pub(crate) fn new(socket: UnixStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(PATIENCE))?;
        Ok(Self(socket))
    }

    pub(crate) fn send(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())
    }

    /// Returns the answer to `text`: a line without its end.
    pub(crate) fn ask(&mut self, text: &str) -> io::Result<String> {
        self.send(text)?;
        let mut line = Vec::new();
        loop {
            match self.bytes(1)?[0] {
                b'\n' => return Ok(String::from_utf8_lossy(&line).into_owned()),
                byte if line.len() < LONGEST_ANSWER => line.push(byte),
                _ => return Err(too_long()),
            }
        }
    }

    /// Returns the next bytes. Nothing more is read: the bytes after them may be for an MPI library.
    pub(crate) fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        if length > LONGEST_ANSWER {
            return Err(too_long());
        }
        let mut bytes = vec![0; length];
        self.0.read_exact(&mut bytes).map_err(|error| match error.kind() {
            ErrorKind::WouldBlock => io::Error::new(
                ErrorKind::TimedOut,
                format!("no answer within {} min", PATIENCE.as_secs() / 60),
            ),
            ErrorKind::UnexpectedEof => io::Error::new(error.kind(), "it closed the connection"),
            _ => error,
        })?;
        Ok(bytes)
    }
}

fn too_long() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "its answer is longer than 64 KiB")
}

/// Returns the value of `key` in `key=value` pairs between `separator`s.
pub(crate) fn value<'a>(answer: &'a str, key: &str, separator: char) -> Option<&'a str> {
    answer.split(separator).find_map(|pair| pair.trim().strip_prefix(key)?.strip_prefix('='))
}
