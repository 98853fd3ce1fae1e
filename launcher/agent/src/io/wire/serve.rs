//! The thread that serves all connections of the leader.

use super::connection::{Connection, Fault, State};
use super::handshake::{HandshakeError, Refusal};
use super::secret::Secret;
use super::session::CloseReason;
use super::strangers::{Report, Reports, StrangerReason};
use crate::io::mailbox::Mailbox;
use crate::io::sockets::{self, CHUNK, PAUSE};
use crate::io::store::StoreHandle;
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use serde::de::DeserializeOwned;
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

/// The time for sending the queued messages of a closed connection.
const CLOSE: Duration = Duration::from_secs(1);
/// The most connections to accept before others are served.
const BATCH: usize = 16;

/// The epoll marks: connections count from 1.
const WAKE: u64 = u64::MAX;
const FIRST_LISTENER: u64 = 1 << 63;

/// The limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the start of a connection to its first encrypted frame.
    pub handshake: Duration,
    /// From the first byte of a frame to its last.
    pub frame: Duration,
    /// Connections before the end of their handshake; above, the oldest is closed.
    pub strangers: usize,
    pub members: usize,
    /// Unsent bytes of one member; above, its connection is closed.
    pub queue: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            frame: Duration::from_secs(10),
            strangers: 256,
            members: 4096,
            queue: 1 << 20,
        }
    }
}

/// The ids are never reused. The first event of a connection is `Opened`, and the last is `Closed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent<In> {
    /// The client knows the secret. `local` is the address that the client reached.
    Opened {
        id: u64,
        peer: SocketAddr,
        local: SocketAddr,
    },
    Received {
        id: u64,
        message: In,
    },
    Closed {
        id: u64,
        reason: CloseReason,
    },
    /// Sent once per address and reason.
    Stranger {
        peer: IpAddr,
        reason: StrangerReason,
    },
    /// There were many reports; further ones are not sent.
    MoreStrangers,
}

#[derive(Debug)]
pub(super) enum Command {
    /// The connection, and a message's text.
    Send(u64, Vec<u8>),
    Close(u64),
    SetStore(Option<StoreHandle>),
    End(Duration),
}

pub(super) struct Loop<In, F> {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    mailbox: Mailbox<Command>,
    secret: Secret,
    limits: Limits,
    connections: HashMap<u64, Connection>,
    /// The connections before the end of their handshake, the oldest first.
    strangers: BTreeSet<u64>,
    deadlines: BTreeSet<(Instant, u64)>,
    last: u64,
    reports: Reports,
    store: Option<StoreHandle>,
    is_ending: bool,
    on_event: F,
    message: PhantomData<fn() -> In>,
}

impl<In: DeserializeOwned, F: FnMut(ServerEvent<In>)> Loop<In, F> {
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        mailbox: Mailbox<Command>,
        secret: Secret,
        limits: Limits,
        on_event: F,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &mailbox, EventData::new_u64(WAKE), EventFlags::IN)?;
        for (listener, mark) in listeners.iter().zip(FIRST_LISTENER..) {
            epoll::add(&epoll, listener, EventData::new_u64(mark), EventFlags::IN)?;
        }
        Ok(Self {
            epoll,
            listeners,
            mailbox,
            secret,
            limits,
            connections: HashMap::new(),
            strangers: BTreeSet::new(),
            deadlines: BTreeSet::new(),
            last: 0,
            reports: Reports::default(),
            store: None,
            is_ending: false,
            on_event,
            message: PhantomData,
        })
    }

    pub(super) fn run(mut self) {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let mut chunk = vec![0; CHUNK];
        while !(self.is_ending && self.connections.is_empty()) {
            let timeout = self.deadlines.first().map(|(deadline, _)| {
                let rest = deadline.saturating_duration_since(Instant::now());
                Timespec::try_from(rest).unwrap_or_default()
            });
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => thread::sleep(PAUSE),
            }
            let now = Instant::now();
            for event in &events {
                match event.data.u64() {
                    WAKE => self.obey(now),
                    mark if mark >= FIRST_LISTENER => self.accept((mark - FIRST_LISTENER) as usize, now),
                    id => self.serve(id, &mut chunk, now),
                }
            }
            self.expire(now);
        }
    }

    fn accept(&mut self, listener: usize, now: Instant) {
        for _ in 0..BATCH {
            // The listeners are closed at the end.
            let Some(listener) = self.listeners.get(listener) else {
                return;
            };
            match sockets::accept(listener) {
                Ok(None) => return,
                Ok(Some((socket, peer))) => {
                    let connection = Connection::new(socket, peer, now + self.limits.handshake);
                    // If it cannot be served, the socket is closed.
                    let _ = self.welcome(connection);
                }
                // Such as too many open files.
                Err(_) if !self.strangers.is_empty() => self.close_oldest_stranger(),
                Err(_) => return thread::sleep(PAUSE),
            }
        }
    }

    fn welcome(&mut self, connection: Connection) -> io::Result<()> {
        if self.strangers.len() >= self.limits.strangers {
            self.close_oldest_stranger();
        }
        let id = self.last + 1;
        epoll::add(&self.epoll, &connection.socket, EventData::new_u64(id), connection.flags)?;
        self.last = id;
        self.strangers.insert(id);
        self.deadlines.extend(connection.deadline.map(|deadline| (deadline, id)));
        self.connections.insert(id, connection);
        Ok(())
    }

    fn close_oldest_stranger(&mut self) {
        if let Some(oldest) = self.strangers.first() {
            self.close(*oldest, &Fault::Handshake(HandshakeError::Refused(Refusal::TooMany)));
        }
    }

    fn obey(&mut self, now: Instant) {
        for command in self.mailbox.take() {
            match command {
                Command::Send(id, message) => {
                    if let Some(connection) = self.connections.get_mut(&id)
                        && connection.state == State::Member
                    {
                        let queued = connection.queue(&message);
                        self.proceed(id, |_, _| queued.map_err(Fault::from));
                    }
                }
                Command::Close(id) => self.begin_close(id, now + CLOSE),
                Command::SetStore(store) => self.store = store,
                Command::End(limit) => {
                    self.is_ending = true;
                    self.listeners.clear();
                    let all: Vec<u64> = self.connections.keys().copied().collect();
                    all.into_iter().for_each(|id| self.begin_close(id, now + limit));
                }
            }
        }
    }

    fn begin_close(&mut self, id: u64, deadline: Instant) {
        match self.connections.get_mut(&id).map(|connection| connection.state) {
            None => {}
            Some(State::Stranger) => self.close(id, &CloseReason::Requested.into()),
            Some(State::Member | State::Closing) => self.proceed(id, |_, connection| {
                connection.state = State::Closing;
                connection.deadline = Some(deadline);
                Ok(())
            }),
        }
    }

    fn serve(&mut self, id: u64, chunk: &mut [u8], now: Instant) {
        self.proceed(id, |server, connection| match sockets::read(&connection.socket, chunk) {
            Ok(None) => Ok(()),
            Ok(Some([])) => Err(CloseReason::Ended.into()),
            Ok(Some(_)) if connection.state == State::Closing => Ok(()),
            Ok(Some(bytes)) => server.receive(id, connection, bytes, now),
            Err(error) => Err(error.into()),
        });
    }

    /// Takes a step of a connection, sends what it has queued, and updates epoll and the deadline. Closes the
    /// connection after an error.
    fn proceed(&mut self, id: u64, step: impl FnOnce(&mut Self, &mut Connection) -> Result<(), Fault>) {
        // An earlier event may have closed it.
        let Some(mut connection) = self.connections.remove(&id) else {
            return;
        };
        let deadline = connection.deadline;
        let done = step(self, &mut connection).and_then(|()| {
            connection.flush(self.limits.queue)?;
            let wanted = connection.wanted();
            if wanted != connection.flags {
                connection.flags = wanted;
                epoll::modify(&self.epoll, &connection.socket, EventData::new_u64(id), wanted)
                    .map_err(io::Error::from)?;
            }
            Ok(())
        });
        if connection.deadline != deadline {
            self.deadlines.extend(connection.deadline.map(|deadline| (deadline, id)));
            deadline.map(|deadline| self.deadlines.remove(&(deadline, id)));
        }
        self.connections.insert(id, connection);
        if let Err(fault) = done {
            self.close(id, &fault);
        }
    }

    fn receive(
        &mut self,
        id: u64,
        connection: &mut Connection,
        bytes: &[u8],
        now: Instant,
    ) -> Result<(), Fault> {
        // This connection is not in the map now.
        let others = self.strangers.len() - usize::from(connection.state == State::Stranger);
        let is_full = self.connections.len() - others >= self.limits.members;
        let (peer, local) = (connection.peer, connection.local()?);
        let was_partial = connection.is_partial();
        let mut state = connection.state;
        let mut count = 0;
        let Some(session) = connection.receive(bytes, &self.secret, is_full)? else {
            return Ok(());
        };
        let ended = loop {
            let message = match session.next() {
                Ok(Some(message)) => message,
                Ok(None) => break Ok(()),
                Err(reason) => break Err(reason),
            };
            count += 1;
            if state == State::Stranger {
                state = State::Member;
                self.strangers.remove(&id);
                (self.on_event)(ServerEvent::Opened { id, peer, local });
            }
            if message.is_empty() {
                continue;
            }
            match serde_json::from_slice(&message) {
                Ok(message) => (self.on_event)(ServerEvent::Received { id, message }),
                Err(_) => break Err(CloseReason::Malformed),
            }
        };
        connection.state = state;
        if state == State::Member {
            match connection.is_partial() {
                false => connection.deadline = None,
                true if was_partial && count == 0 => {}
                true => connection.deadline = Some(now + self.limits.frame),
            }
        }
        Ok(ended?)
    }

    fn expire(&mut self, now: Instant) {
        while let Some((deadline, id)) = self.deadlines.first().copied()
            && deadline <= now
        {
            self.deadlines.pop_first();
            self.close(id, &CloseReason::Slow.into());
        }
    }

    fn close(&mut self, id: u64, fault: &Fault) {
        let Some(connection) = self.connections.remove(&id) else {
            return;
        };
        connection.deadline.map(|deadline| self.deadlines.remove(&(deadline, id)));
        self.strangers.remove(&id);
        // Closing also removes it, unless a process that is being started still has the socket.
        let _ = epoll::delete(&self.epoll, &connection.socket);
        if let Fault::Handshake(HandshakeError::Refused(refusal)) = fault {
            connection.refuse(*refusal);
        }
        if self.is_ending {
            return;
        }
        if let Some(store) = &self.store
            && matches!(fault, Fault::Handshake(HandshakeError::OtherProtocol))
            && StoreHandle::accepts(&connection.greeting)
        {
            return store.pass(connection.socket, connection.greeting);
        }
        let reason = match (connection.state, fault) {
            (State::Stranger, _) => return self.report(&connection, fault),
            (State::Member, Fault::Closed(reason)) => *reason,
            (State::Closing, _) | (State::Member, Fault::Handshake(_)) => CloseReason::Requested,
        };
        (self.on_event)(ServerEvent::Closed { id, reason });
    }

    fn report(&mut self, connection: &Connection, fault: &Fault) {
        let peer = connection.peer.ip();
        let reason = connection.stranger_reason(fault);
        match self.reports.admit(peer, reason) {
            Report::New => (self.on_event)(ServerEvent::Stranger { peer, reason }),
            Report::Last => (self.on_event)(ServerEvent::MoreStrangers),
            Report::Known => {}
        }
    }
}
