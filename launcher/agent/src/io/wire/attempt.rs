//! One attempt to connect to the leader.

use super::handshake::{Handshake, HandshakeError, Refusal};
use super::secret::Secret;
use super::session::Session;
use crate::io::sockets::{self, Outbox};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, socket_with, sockopt};
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, TcpStream};

/// The reasons why a member has no connection, from the least telling to the most telling.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, thiserror::Error)]
pub enum ConnectError {
    /// The resolver's words.
    #[error("its name cannot be resolved: {0}")]
    Unresolvable(String),
    /// None of the endpoint's addresses is of the local address's family.
    #[error("none of its addresses can be reached from {0}: one is IPv4, the other IPv6")]
    Family(IpAddr),
    /// The error for the local address to connect from.
    #[error("the local address {0} cannot be used: {1}")]
    Source(IpAddr, ErrorKind),
    #[error("{0}")]
    Other(ErrorKind),
    #[error("there is no route to it")]
    Unreachable,
    #[error("no process listens at that port")]
    Refused,
    #[error("it does not answer; a firewall may block the port")]
    TimedOut,
    #[error("it closed the connection during the handshake")]
    Closed,
    /// Connected, but without an answer to the greeting.
    #[error("a process listens at that port, but does not answer")]
    Silent,
    #[error("a program that is not dtrain listens at that port")]
    NotALeader,
    #[error("it refused the connection: {0}")]
    Rejected(Refusal),
}

impl ConnectError {
    /// Returns whether another attempt ends in the same way.
    pub fn is_permanent(&self) -> bool {
        matches!(self, Self::Rejected(refusal) if *refusal != Refusal::TooMany)
    }
}

/// The reason for an error of the connection's start.
impl From<io::Error> for ConnectError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            ErrorKind::ConnectionRefused => Self::Refused,
            ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Self::Unreachable,
            ErrorKind::TimedOut => Self::TimedOut,
            kind => Self::Other(kind),
        }
    }
}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::OtherProtocol => Self::NotALeader,
            HandshakeError::Refused(refusal) => Self::Rejected(refusal),
        }
    }
}

/// A connection that is being opened.
#[derive(Debug)]
pub(super) struct Attempt {
    pub(super) socket: TcpStream,
    /// The handshake after its first message is sent, and the answer's bytes.
    handshake: Option<(Handshake, Vec<u8>)>,
}

impl Attempt {
    /// Starts to connect, from the local address `source` if there is one.
    pub(super) fn start(address: SocketAddr, source: Option<IpAddr>) -> Result<Self, ConnectError> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from)?;
        sockopt::set_tcp_nodelay(&socket, true).map_err(io::Error::from)?;
        let socket = TcpStream::from(socket);
        if let Some(source) = source {
            bind(&socket, &SocketAddr::new(source, 0))
                .map_err(|error| ConnectError::Source(source, io::Error::from(error).kind()))?;
        }
        match connect(&socket, &address) {
            Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(Self { socket, handshake: None }),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// Returns whether the socket is awaited for its connection, and not for an answer.
    pub(super) fn is_connecting(&self) -> bool {
        self.handshake.is_none()
    }

    /// Goes on when the socket is ready. `None`: it must be awaited again.
    pub(super) fn proceed(
        &mut self,
        secret: &Secret,
        chunk: &mut [u8],
    ) -> Result<Option<Session>, ConnectError> {
        let Some((_, answer)) = &mut self.handshake else {
            self.greet(secret)?;
            return Ok(None);
        };
        match sockets::read(&self.socket, chunk) {
            Ok(None) => return Ok(None),
            Ok(Some([])) | Err(_) => return Err(ConnectError::Closed),
            Ok(Some(bytes)) => answer.extend_from_slice(bytes),
        }
        if !Handshake::is_answered(answer)? {
            return Ok(None);
        }
        let finish = |(handshake, answer): (Handshake, Vec<u8>)| handshake.finish(&answer);
        Ok(self.handshake.take().map(finish).transpose()?)
    }

    fn greet(&mut self, secret: &Secret) -> Result<(), ConnectError> {
        sockopt::socket_error(&self.socket).and_then(|error| error).map_err(io::Error::from)?;
        // A free port of this machine can be connected to itself.
        if self.socket.peer_addr()? == self.socket.local_addr()? {
            return Err(ConnectError::Refused);
        }
        let (handshake, greeting) =
            Handshake::begin(secret).map_err(|_| ConnectError::Other(ErrorKind::Other))?;
        // A new socket takes these few bytes.
        let mut outbox = Outbox::default();
        outbox.push(&greeting);
        outbox.send(&self.socket).map_err(|_| ConnectError::Closed)?;
        self.handshake = Some((handshake, Vec::new()));
        Ok(())
    }

    /// Returns the reason if the attempt took too long.
    pub(super) fn timed_out(&self) -> ConnectError {
        if self.is_connecting() { ConnectError::TimedOut } else { ConnectError::Silent }
    }
}
