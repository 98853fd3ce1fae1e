//! One connection of the server.

use super::handshake::{self, HandshakeError, Refusal};
use super::secret::Secret;
use super::session::{CloseReason, Session};
use super::strangers::StrangerReason;
use crate::io::sockets;
use rustix::event::epoll::EventFlags;
use rustix::net::Shutdown;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Stranger,
    Member,
    /// This side ends it: queued messages are sent, then the peer's end is awaited.
    Closing,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) socket: TcpStream,
    pub(super) peer: SocketAddr,
    pub(super) state: State,
    pub(super) deadline: Option<Instant>,
    /// The events that epoll waits for.
    pub(super) flags: EventFlags,
    /// The bytes before the handshake's end.
    pub(super) greeting: Vec<u8>,
    session: Option<Session>,
}

/// The reasons for ending a connection.
#[derive(Debug)]
pub(super) enum Fault {
    Handshake(HandshakeError),
    Closed(CloseReason),
}

impl<T: Into<CloseReason>> From<T> for Fault {
    fn from(reason: T) -> Self {
        Self::Closed(reason.into())
    }
}

impl Connection {
    pub(super) fn new(socket: TcpStream, peer: SocketAddr, deadline: Instant) -> Self {
        Self {
            socket,
            peer: canonical(peer),
            state: State::Stranger,
            deadline: Some(deadline),
            flags: EventFlags::IN,
            greeting: Vec::new(),
            session: None,
        }
    }

    /// Returns this side's address.
    pub(super) fn local(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr().map(canonical)
    }

    /// Takes bytes that have come, and answers a greeting. `None`: more bytes are needed for the handshake.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        secret: &Secret,
        is_full: bool,
    ) -> Result<Option<&mut Session>, Fault> {
        if let Some(session) = &mut self.session {
            session.receive(bytes);
        } else {
            self.greeting.extend_from_slice(bytes);
            let session = handshake::answer(&self.greeting, secret).map_err(Fault::Handshake)?;
            if is_full && session.is_some() {
                return Err(Fault::Handshake(HandshakeError::Refused(Refusal::TooMany)));
            }
            self.session = session;
        }
        Ok(self.session.as_mut())
    }

    /// Encrypts a message.
    pub(super) fn queue(&mut self, message: &[u8]) -> Result<(), CloseReason> {
        self.session.as_mut().map_or(Ok(()), |session| session.queue(message))
    }

    /// Sends what the peer takes now; `limit` is for the rest. When this side ends the connection, tells the peer
    /// after the last byte.
    pub(super) fn flush(&mut self, limit: usize) -> Result<(), CloseReason> {
        let Some(session) = &mut self.session else {
            return Ok(());
        };
        session.outbox.send(&self.socket)?;
        match self.state {
            State::Closing if session.outbox.is_empty() => {
                Ok(rustix::net::shutdown(&self.socket, Shutdown::Write).map_err(io::Error::from)?)
            }
            State::Member if session.outbox.len() > limit => Err(CloseReason::QueueFull),
            _ => Ok(()),
        }
    }

    /// Returns the events to wait for.
    pub(super) fn wanted(&self) -> EventFlags {
        match &self.session {
            Some(session) if !session.outbox.is_empty() => EventFlags::IN | EventFlags::OUT,
            _ => EventFlags::IN,
        }
    }

    /// Returns whether a part of a frame has come.
    pub(super) fn is_partial(&self) -> bool {
        self.session.as_ref().is_some_and(Session::is_partial)
    }

    /// Sends a refusal as far as possible.
    pub(super) fn refuse(&self, refusal: Refusal) {
        // Before its session, nothing was sent: the socket takes these few bytes.
        if self.session.is_none() {
            let mut outbox = sockets::Outbox::default();
            outbox.push(&refusal.answer());
            let _ = outbox.send(&self.socket);
        }
    }

    /// Returns why this stranger did not become a member.
    pub(super) fn stranger_reason(&self, fault: &Fault) -> StrangerReason {
        match fault {
            Fault::Handshake(HandshakeError::OtherProtocol) => StrangerReason::OtherProtocol,
            Fault::Handshake(HandshakeError::Refused(refusal)) => StrangerReason::Refused(*refusal),
            Fault::Closed(CloseReason::Malformed) => StrangerReason::MalformedFrame,
            Fault::Closed(_) if self.greeting.is_empty() => StrangerReason::Silent,
            Fault::Closed(CloseReason::Slow) => StrangerReason::Slow,
            Fault::Closed(_) => StrangerReason::Unfinished,
        }
    }
}

/// A server of IPv6 gives clients of IPv4 addresses such as `::ffff:192.0.2.1`.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => (v4, address.port()).into(),
        // With the interface of a link-local address.
        IpAddr::V6(_) => address,
    }
}
