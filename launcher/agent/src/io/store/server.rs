//! A thread that serves all clients: it reads and answers those that have sent data.

use super::request::{self, ClientError, Dialect, Request};
use super::table::{Client, Table};
use crate::io::mailbox::Mailbox;
use crate::io::sockets::{self, CHUNK, Outbox, PAUSE};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::{HashMap, HashSet};
use std::io::{self, PipeReader};
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;

/// Bytes of an incomplete request that a connection may keep before the bytes of all connections are counted.
const SMALL: usize = 4 << 10;
/// The limit for the bytes of all requests and answers in progress.
const UNDER_WAY: usize = 256 << 20;
/// More clients than any launch has.
const MOST_CLIENTS: u64 = 16 << 10;

/// The epoll marks: listening sockets count from 2, clients from `FIRST_CLIENT`.
const STOP: u64 = 0;
const PASSED: u64 = 1;
const FIRST_LISTENER: u64 = 2;
const FIRST_CLIENT: Client = 1 << 16;

/// The kinds of clients that came to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientsSeen {
    /// A client of PyTorch's store.
    pub clients: bool,
    /// A client of another protocol.
    pub strangers: bool,
}

impl ClientsSeen {
    /// Returns whether the port seems to be meant for something other than a store.
    pub fn only_strangers(self) -> bool {
        self.strangers && !self.clients
    }
}

pub(super) struct Server<T> {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    /// Clients of other listeners, with their first bytes.
    passed: Mailbox<(TcpStream, Vec<u8>)>,
    connections: HashMap<Client, Connection>,
    next: Client,
    most: usize,
    table: Table,
    clients_seen: ClientsSeen,
    report: T,
    reported: HashSet<mem::Discriminant<ClientError>>,
}

struct Connection {
    socket: TcpStream,
    dialect: Option<Dialect>,
    /// Whether the client has sent a valid request.
    is_known: bool,
    inbox: Vec<u8>,
    outbox: Outbox,
    /// Whether the answer waits until the client reads; its next requests wait for the answer.
    is_full: bool,
}

impl<T: Fn(ClientError)> Server<T> {
    /// Closing the other end of `stop` ends the server; `report` gets each kind of error once.
    pub(super) fn new(
        listeners: Vec<TcpListener>,
        stop: &PipeReader,
        passed: Mailbox<(TcpStream, Vec<u8>)>,
        report: T,
    ) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        epoll::add(&epoll, &passed, EventData::new_u64(PASSED), EventFlags::IN)?;
        for (listener, mark) in listeners.iter().zip(FIRST_LISTENER..FIRST_CLIENT) {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, EventData::new_u64(mark), EventFlags::IN)?;
        }
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(Self {
            epoll,
            listeners,
            passed,
            connections: HashMap::new(),
            next: FIRST_CLIENT,
            most: (files / 2).min(MOST_CLIENTS) as usize,
            table: Table::default(),
            clients_seen: ClientsSeen::default(),
            report,
            reported: HashSet::new(),
        })
    }

    pub(super) fn run(mut self) -> ClientsSeen {
        let mut events: Vec<Event> = Vec::with_capacity(256);
        let mut chunk = vec![0; CHUNK];
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => thread::sleep(PAUSE),
            }
            for event in &events {
                match event.data.u64() {
                    STOP => return self.clients_seen,
                    PASSED => {
                        for (socket, bytes) in self.passed.take() {
                            if let Some(client) = self.welcome(socket, bytes) {
                                self.serve(client, EventFlags::IN, &mut chunk);
                            }
                        }
                    }
                    mark if mark < FIRST_CLIENT => self.accept(mark),
                    client => self.serve(client, event.flags, &mut chunk),
                }
            }
        }
    }

    fn accept(&mut self, mark: u64) {
        let Some(listener) = self.listeners.get((mark - FIRST_LISTENER) as usize) else {
            return;
        };
        match sockets::accept(listener) {
            Ok(None) => {}
            Ok(Some((socket, _))) => {
                self.welcome(socket, Vec::new());
            }
            Err(_) => thread::sleep(PAUSE),
        }
    }

    /// Takes a client with its first bytes. `None`: its socket is closed.
    fn welcome(&mut self, socket: TcpStream, inbox: Vec<u8>) -> Option<Client> {
        if self.connections.len() >= self.most {
            self.report(ClientError::Clients);
            return None;
        }
        let client = self.next;
        epoll::add(&self.epoll, &socket, EventData::new_u64(client), EventFlags::IN).ok()?;
        self.next += 1;
        let connection = Connection {
            socket,
            dialect: None,
            is_known: false,
            inbox,
            outbox: Outbox::default(),
            is_full: false,
        };
        self.connections.insert(client, connection);
        Some(client)
    }

    fn serve(&mut self, client: Client, flags: EventFlags, chunk: &mut [u8]) {
        if let Err(reason) = self.try_serve(client, flags, chunk) {
            self.close(client);
            if let Some(error) = reason {
                self.report(error);
            }
        }
    }

    fn close(&mut self, client: Client) {
        self.table.forget(client);
        if let Some(connection) = self.connections.remove(&client) {
            // Closing also removes it, unless a process that is being started still has the socket.
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    fn report(&mut self, error: ClientError) {
        self.clients_seen.strangers |= error == ClientError::Stranger;
        if self.reported.insert(mem::discriminant(&error)) {
            (self.report)(error);
        }
    }

    /// Reads new bytes, and answers complete requests as long as the client reads the answers. Errors: the
    /// connection must be closed; `Some` has the reason for the user.
    fn try_serve(
        &mut self,
        client: Client,
        flags: EventFlags,
        chunk: &mut [u8],
    ) -> Result<(), Option<ClientError>> {
        // An earlier event may have closed the connection.
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(());
        };
        if flags.contains(EventFlags::OUT) {
            connection.send(&self.epoll, client).map_err(|_| None)?;
        } else {
            match sockets::read(&connection.socket, chunk) {
                Ok(None) => {}
                Ok(Some([])) | Err(_) => return Err(None),
                Ok(Some(bytes)) => connection.inbox.extend_from_slice(bytes),
            }
        }
        let mut inbox = mem::take(&mut connection.inbox);
        let mut done = 0;
        if connection.dialect.is_none()
            && let Some((dialect, length)) = request::greet(&inbox)?
        {
            connection.dialect = Some(dialect);
            connection.is_known = dialect == Dialect::Current;
            done = length;
        }
        while let Some(connection) = self.connections.get_mut(&client)
            && !connection.is_full
            && let Some(dialect) = connection.dialect
        {
            let read = request::read(&inbox[done..], dialect);
            // An old client sends no greeting: its first request identifies it.
            let read =
                read.map_err(|error| if connection.is_known { error } else { ClientError::Stranger })?;
            let Some((request, length)) = read else {
                break;
            };
            connection.is_known = true;
            self.clients_seen.clients = true;
            let (answer, woken) = respond(&mut self.table, client, &request)?;
            self.send(client, &answer).map_err(|_| None)?;
            for other in woken {
                if self.send(other, &[STOP_WAITING]).is_err() {
                    self.close(other);
                }
            }
            done += length;
        }
        inbox.drain(..done);
        Ok(self.keep(client, inbox)?)
    }

    /// Keeps the bytes of an incomplete request.
    fn keep(&mut self, client: Client, inbox: Vec<u8>) -> Result<(), ClientError> {
        let is_large = inbox.len() > SMALL;
        // An empty buffer is freed.
        if let Some(connection) = self.connections.get_mut(&client)
            && !inbox.is_empty()
        {
            connection.inbox = inbox;
        }
        match is_large && self.under_way() > UNDER_WAY {
            true => Err(ClientError::Full),
            false => Ok(()),
        }
    }

    fn under_way(&self) -> usize {
        let each = |connection: &Connection| connection.inbox.len() + connection.outbox.len();
        self.connections.values().map(each).sum()
    }

    fn send(&mut self, client: Client, bytes: &[u8]) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(());
        };
        connection.outbox.push(bytes);
        connection.send(&self.epoll, client)
    }
}

impl Connection {
    /// Sends as many answers as the client takes. The rest and the client's requests wait.
    fn send(&mut self, epoll: impl AsFd, client: Client) -> io::Result<()> {
        self.outbox.send(&self.socket)?;
        let is_full = !self.outbox.is_empty();
        if is_full != self.is_full {
            self.is_full = is_full;
            let flags = if is_full { EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(epoll, &self.socket, EventData::new_u64(client), flags)?;
        }
        Ok(())
    }
}

/// Answers to a waiting client.
const STOP_WAITING: u8 = 0;
const WAIT_CANCELED: u8 = 1;

/// Returns the answer to a request, which may be empty, and the clients that the request wakes.
fn respond(
    table: &mut Table,
    client: Client,
    request: &Request<'_>,
) -> Result<(Vec<u8>, Vec<Client>), ClientError> {
    let silence = |woken| (Vec::new(), woken);
    let answer = match request {
        Request::Set(key, value) => return table.set(key, value).map(silence),
        Request::CompareSet(key, expected, value) => {
            let (present, woken) = table.compare_set(key, expected, value)?;
            return Ok((text(present), woken));
        }
        Request::Get(key) => text(table.get(key)),
        Request::Add(key, by) => {
            let (sum, woken) = table.add(key, *by)?;
            return Ok((sum.to_ne_bytes().to_vec(), woken));
        }
        Request::Check(keys) => vec![u8::from(!table.check(keys))],
        Request::Wait(keys) if table.wait(client, keys)? => vec![STOP_WAITING],
        Request::Wait(_) => Vec::new(),
        Request::CountKeys => number(table.keys().len()),
        Request::Delete(key) => number(table.delete(key).into()),
        Request::Append(key, value) => return table.append(key, value).map(silence),
        Request::MultiGet(keys) => texts(keys.iter().map(|key| table.get(key)))?,
        Request::MultiSet(pairs) => {
            let woken = pairs.iter().map(|(key, value)| table.set(key, value));
            return Ok(silence(woken.collect::<Result<Vec<_>, _>>()?.concat()));
        }
        Request::CancelWait => {
            table.forget(client);
            vec![WAIT_CANCELED]
        }
        Request::Ping(nonce) => nonce.to_vec(),
        Request::Push(key, value) => {
            return Ok(silence(table.push(key, value)?.into_iter().collect()));
        }
        Request::Pop(key) => {
            let (length, value) = table.pop(key);
            let value = value.map(|value| text(&value)).unwrap_or_default();
            [number(length), value].concat()
        }
        Request::QueueLength(key) => number(table.queue_length(key)),
        Request::ListKeys => {
            let keys = texts(table.keys())?;
            [number(table.keys().len()), keys].concat()
        }
        Request::Barrier(key, world) => match table.barrier(client, key, *world)? {
            Some(woken) => return Ok((vec![STOP_WAITING], woken)),
            None => Vec::new(),
        },
    };
    Ok((answer, Vec::new()))
}

fn number(number: usize) -> Vec<u8> {
    (number as u64).to_ne_bytes().to_vec()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&number(bytes.len())[..], bytes].concat()
}

/// Encodes several texts one after the other.
fn texts<'a>(all: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, ClientError> {
    let mut answer = Vec::new();
    for bytes in all {
        if answer.len() + bytes.len() > request::LONGEST_REQUEST {
            return Err(ClientError::Request);
        }
        answer.extend(number(bytes.len()));
        answer.extend_from_slice(bytes);
    }
    Ok(answer)
}
