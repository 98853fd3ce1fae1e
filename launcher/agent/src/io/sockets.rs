//! Non-blocking TCP sockets of a thread that serves several connections.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

/// The number of bytes to read at once.
pub(super) const CHUNK: usize = 64 << 10;
/// The pause after an error that repeats at once, such as too many open files.
pub(super) const PAUSE: Duration = Duration::from_millis(10);

/// Accepts a connection and makes it non-blocking. `None`: no connection waits.
pub(super) fn accept(listener: &TcpListener) -> io::Result<Option<(TcpStream, SocketAddr)>> {
    match listener.accept() {
        Ok((socket, peer)) => {
            socket.set_nonblocking(true)?;
            socket.set_nodelay(true)?;
            Ok(Some((socket, peer)))
        }
        Err(error) if error.kind() == ErrorKind::ConnectionAborted || is_early(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads once. `None`: no bytes have come. Zero bytes: the peer has closed the connection.
pub(super) fn read<'a>(mut socket: &TcpStream, chunk: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
    match socket.read(chunk) {
        Ok(count) => Ok(Some(&chunk[..count])),
        Err(error) if is_early(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Bytes that wait until the peer reads. It takes no memory while it is empty.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    bytes: Vec<u8>,
}

impl Outbox {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    #[cfg(test)]
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Sends as many bytes as the peer takes now.
    pub(super) fn send(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.bytes.len() {
            match socket.write(&self.bytes[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.bytes.drain(..sent);
        if self.bytes.is_empty() {
            self.bytes = Vec::new();
        }
        Ok(())
    }
}
