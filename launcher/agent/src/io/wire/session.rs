//! An encrypted connection after its handshake: messages in frames.
//!
//! A frame is the length of its ciphertext as two bytes, the most significant first, and the ciphertext. An
//! empty message is not for the receiver: the client's first frame is empty and completes the handshake.

use crate::io::sockets::Outbox;
use snow::TransportState;
use std::io;

/// The most bytes of a frame.
const LONGEST_FRAME: usize = 64 << 10;
const HEADER: usize = 2;
const TAG: usize = 16;
/// The most bytes of a message.
pub(super) const LONGEST_MESSAGE: usize = LONGEST_FRAME - HEADER - TAG;

/// The reasons for the end of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The peer has closed the connection.
    #[error("it closed the connection")]
    Ended,
    #[error("the connection is lost ({0})")]
    Lost(io::ErrorKind),
    /// A frame was changed on its way, or has another type.
    #[error("it sent a malformed message")]
    Malformed,
    /// A frame was incomplete for too long.
    #[error("it sent a part of a message and then not the rest in time")]
    Slow,
    /// The peer does not read its messages.
    #[error("it does not read its messages")]
    QueueFull,
    /// This side has closed the connection.
    #[error("the connection was closed here")]
    Requested,
}

impl From<io::Error> for CloseReason {
    fn from(error: io::Error) -> Self {
        Self::Lost(error.kind())
    }
}

#[derive(Debug)]
pub(super) struct Session {
    noise: TransportState,
    inbox: Vec<u8>,
    /// The number of bytes of the inbox that are decrypted.
    read: usize,
    pub(super) outbox: Outbox,
}

impl Session {
    /// Begins with bytes that came after the handshake.
    pub(super) fn new(noise: TransportState, received: &[u8]) -> Self {
        Self { noise, inbox: received.to_vec(), read: 0, outbox: Outbox::default() }
    }

    /// Encrypts a message of at most [`LONGEST_MESSAGE`] bytes.
    pub(super) fn queue(&mut self, message: &[u8]) -> Result<(), CloseReason> {
        let length = message.len() + TAG;
        let mut frame = vec![0; HEADER + length];
        let header = u16::try_from(length).map_err(|_| CloseReason::Malformed)?;
        frame[..HEADER].copy_from_slice(&header.to_be_bytes());
        let written = self.noise.write_message(message, &mut frame[HEADER..]);
        written.map_err(|_| CloseReason::Malformed)?;
        self.outbox.push(&frame);
        Ok(())
    }

    /// Takes bytes that have come. Then [`Self::next`] must be called until it returns `None`.
    pub(super) fn receive(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
    }

    /// Decrypts the next message. `None`: its frame is incomplete.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>, CloseReason> {
        let rest = &self.inbox[self.read..];
        let frame = rest.split_first_chunk().map(|(header, rest)| {
            let length = usize::from(u16::from_be_bytes(*header));
            (length, rest.get(..length))
        });
        let (length, frame) = match frame {
            Some((length, _)) if !(TAG..=LONGEST_FRAME - HEADER).contains(&length) => {
                return Err(CloseReason::Malformed);
            }
            Some((length, Some(frame))) => (length, frame),
            _ => {
                self.keep_rest();
                return Ok(None);
            }
        };
        let mut message = vec![0; length - TAG];
        self.noise.read_message(frame, &mut message).map_err(|_| CloseReason::Malformed)?;
        self.read += HEADER + length;
        Ok(Some(message))
    }

    fn keep_rest(&mut self) {
        self.inbox.drain(..self.read);
        self.read = 0;
        if self.inbox.is_empty() {
            self.inbox = Vec::new();
        }
    }

    /// Returns whether a part of a frame has come.
    pub(super) fn is_partial(&self) -> bool {
        !self.inbox.is_empty()
    }
}
