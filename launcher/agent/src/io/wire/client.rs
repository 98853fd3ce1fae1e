//! A member's side.

use super::attempt::ConnectError;
use super::connect::{self, Command, Connector, Ended, Endpoint};
use super::message::{self, SendError};
use super::secret::Secret;
use super::session::{CloseReason, Session};
use crate::io::mailbox::Mailbox;
use crate::io::sockets::{self, CHUNK};
use rustix::event::PollFlags;
use rustix::net::Shutdown;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// From the first byte of a frame to its last.
const FRAME: Duration = Duration::from_secs(10);
/// A connection that was open for less time is opened again after a pause.
const STABLE: Duration = Duration::from_secs(1);
/// The most unsent bytes.
const QUEUE: usize = 1 << 20;
/// The time for sending queued messages at the end.
const END: Duration = Duration::from_secs(1);

/// What a member's connection did. `Connected` and `Disconnected` alternate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientEvent<In> {
    Connected {
        local: SocketAddr,
        peer: SocketAddr,
    },
    Received(In),
    /// The client connects again.
    Disconnected {
        reason: CloseReason,
    },
    /// Sent once per reason until connected. After a permanent one, the client waits for
    /// [`Client::reconnect`]; else it tries again. `address` is one of the endpoint's addresses.
    CannotConnect {
        address: Option<SocketAddr>,
        reason: ConnectError,
    },
}

/// A running client, until it is ended or dropped.
#[derive(Debug)]
pub struct Client<Out> {
    mailbox: Mailbox<Command>,
    thread: Option<JoinHandle<()>>,
    message: PhantomData<fn(&Out)>,
}

impl<Out: Serialize> Client<Out> {
    /// Connects on a new thread, which calls `on_event`, from the local address `source` if there is one.
    pub fn connect<In: DeserializeOwned + 'static>(
        endpoint: Endpoint,
        secret: Secret,
        source: Option<IpAddr>,
        on_event: impl FnMut(ClientEvent<In>) + Send + 'static,
    ) -> io::Result<Self> {
        let mailbox = Mailbox::new()?;
        let connector = Connector::new(endpoint, secret, source, mailbox.clone());
        let member = Loop { connector, on_event, message: PhantomData };
        let run = move || drop(member.run());
        let thread = thread::Builder::new().name("member".to_owned()).spawn(run)?;
        Ok(Self { mailbox, thread: Some(thread), message: PhantomData })
    }

    /// Sends a message after earlier ones. Without a connection, it is dropped.
    pub fn send(&self, message: &Out) -> Result<(), SendError> {
        let text = message::encode(message)?;
        self.mailbox.push(Command::Send(text));
        Ok(())
    }

    /// Drops the connection, and connects again.
    pub fn reconnect(&self) {
        self.mailbox.push(Command::Reconnect);
    }

    /// Closes the connection after the queued messages are sent, or after one second.
    pub fn end(mut self) {
        self.mailbox.push(Command::End(END));
        if let Some(thread) = self.thread.take() {
            // A panic of `on_event` has been printed.
            let _ = thread.join();
        }
    }
}

impl<Out> Drop for Client<Out> {
    fn drop(&mut self) {
        self.mailbox.push(Command::End(Duration::ZERO));
    }
}

struct Loop<In, F> {
    connector: Connector,
    on_event: F,
    message: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned, F: FnMut(ClientEvent<In>)> Loop<In, F> {
    fn run(mut self) -> Result<(), Ended> {
        let mut pause = Duration::ZERO;
        loop {
            let on_event = &mut self.on_event;
            let report = |address, reason| on_event(ClientEvent::CannotConnect { address, reason });
            let (socket, session) = self.connector.connect(pause, report)?;
            let began = Instant::now();
            let reason = self.talk(&socket, session).map_or_else(Ok, Err)?;
            drop(socket);
            pause = match reason {
                // A leader that closes the connection at once would be asked without end.
                CloseReason::Ended | CloseReason::Lost(_) | CloseReason::Malformed
                    if began.elapsed() < STABLE =>
                {
                    connect::longer(pause)
                }
                _ => Duration::ZERO,
            };
            (self.on_event)(ClientEvent::Disconnected { reason });
        }
    }

    /// Returns the reason for the end of the connection; an error if the client must end.
    fn talk(&mut self, socket: &TcpStream, mut session: Session) -> Result<Ended, CloseReason> {
        let (local, peer) = (socket.local_addr()?, socket.peer_addr()?);
        (self.on_event)(ClientEvent::Connected { local, peer });
        let mut chunk = vec![0; CHUNK];
        let mut deadline = None;
        loop {
            session.outbox.send(socket)?;
            if session.outbox.len() > QUEUE {
                return Err(CloseReason::QueueFull);
            }
            let is_ready = self.connector.wait(Some((socket, wanted(&session))), deadline);
            for command in self.connector.take() {
                match command {
                    Command::Send(text) => session.queue(&text)?,
                    Command::Reconnect => return Err(CloseReason::Requested),
                    Command::Resolved(_) => {}
                    Command::End(limit) => {
                        // The peer may have closed the connection already.
                        let _ = self.close(socket, session, Instant::now() + limit, &mut chunk);
                        return Ok(Ended);
                    }
                }
            }
            if is_ready && let Some(bytes) = sockets::read(socket, &mut chunk)? {
                let was_partial = session.is_partial();
                let count = self.receive(&mut session, bytes)?;
                deadline = match session.is_partial() {
                    true if was_partial && count == 0 => deadline,
                    true => Some(Instant::now() + FRAME),
                    false => None,
                };
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(CloseReason::Slow);
            }
        }
    }

    /// Returns the number of messages.
    fn receive(&mut self, session: &mut Session, bytes: &[u8]) -> Result<usize, CloseReason> {
        if bytes.is_empty() {
            return Err(CloseReason::Ended);
        }
        session.receive(bytes);
        let mut count = 0;
        while let Some(message) = session.next()? {
            let message = serde_json::from_slice(&message).map_err(|_| CloseReason::Malformed)?;
            (self.on_event)(ClientEvent::Received(message));
            count += 1;
        }
        Ok(count)
    }

    /// Sends what is queued, tells the leader that nothing follows, and waits until it closes the connection.
    fn close(
        &mut self,
        socket: &TcpStream,
        mut session: Session,
        until: Instant,
        chunk: &mut [u8],
    ) -> Result<(), CloseReason> {
        while Instant::now() < until {
            session.outbox.send(socket)?;
            if session.outbox.is_empty() {
                rustix::net::shutdown(socket, Shutdown::Write).map_err(io::Error::from)?;
            }
            if self.connector.wait(Some((socket, wanted(&session))), Some(until))
                && sockets::read(socket, chunk)?.is_some_and(<[u8]>::is_empty)
            {
                break;
            }
            self.connector.take();
        }
        Ok(())
    }
}

fn wanted(session: &Session) -> PollFlags {
    if session.outbox.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
}
