//! One thread that serves all clients: whoever has sent something is read, answered and left.

use super::request::{self, Dialect, Refusal, Request};
use super::table::{Client, Table};
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use std::collections::{HashMap, HashSet};
use std::io::{self, ErrorKind, PipeReader, Read, Write};
use std::mem;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

/// What is read at a time.
const CHUNK: usize = 64 << 10;
/// A connection may keep so much of a request that is not whole before all are counted.
const SMALL: usize = 4 << 10;
/// What the requests and answers under way may take together.
const UNDER_WAY: usize = 256 << 20;
/// More clients than any launch has.
const MOST_CLIENTS: u64 = 16 << 10;
/// After an error that comes again at once, such as of too many open files.
const PAUSE: Duration = Duration::from_millis(10);

/// The marks of what wakes the thread: the end, the listening sockets from 1 on, and then the clients.
const STOP: u64 = 0;
const FIRST_CLIENT: Client = 1 << 16;

/// Who has come to a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Met {
    /// A client of PyTorch's store.
    pub clients: bool,
    /// Somebody who speaks another protocol.
    pub strangers: bool,
}

impl Met {
    /// Whether the port seems to be meant for something else than a store.
    pub fn is_in_the_way(self) -> bool {
        self.strangers && !self.clients
    }
}

pub(super) struct Server<T> {
    epoll: OwnedFd,
    listeners: Vec<TcpListener>,
    connections: HashMap<Client, Connection>,
    next: Client,
    most: usize,
    table: Table,
    met: Met,
    tell: T,
    told: HashSet<mem::Discriminant<Refusal>>,
}

struct Connection {
    socket: TcpStream,
    dialect: Option<Dialect>,
    /// It has sent a request that is one.
    is_known: bool,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    /// Whether the answer waits for the client to read, and requests for the answer.
    is_full: bool,
}

/// A connection is to be closed, for a reason that somebody should hear, or none.
struct Close(Option<Refusal>);

impl From<io::Error> for Close {
    fn from(_: io::Error) -> Self {
        Self(None)
    }
}

impl From<Refusal> for Close {
    fn from(refusal: Refusal) -> Self {
        Self(Some(refusal))
    }
}

impl<T: Fn(Refusal)> Server<T> {
    /// `stop` ends it by being closed at its other end; `tell` hears of each kind of refusal once.
    ///
    /// # Errors
    /// The system refuses a descriptor.
    pub(super) fn new(listeners: Vec<TcpListener>, stop: &PipeReader, tell: T) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, stop, EventData::new_u64(STOP), EventFlags::IN)?;
        for (listener, mark) in listeners.iter().zip(STOP + 1..FIRST_CLIENT) {
            listener.set_nonblocking(true)?;
            epoll::add(&epoll, listener, EventData::new_u64(mark), EventFlags::IN)?;
        }
        let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        Ok(Self {
            epoll,
            listeners,
            connections: HashMap::new(),
            next: FIRST_CLIENT,
            most: (files / 2).min(MOST_CLIENTS) as usize,
            table: Table::default(),
            met: Met::default(),
            tell,
            told: HashSet::new(),
        })
    }

    /// Serves until it is stopped.
    pub(super) fn run(mut self) -> Met {
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
                    STOP => return self.met,
                    mark if mark < FIRST_CLIENT => self.accept(mark),
                    client => self.serve(client, event.flags, &mut chunk),
                }
            }
        }
    }

    fn accept(&mut self, mark: u64) {
        let Some(listener) = self.listeners.get((mark - 1) as usize) else {
            return;
        };
        match listener.accept() {
            Ok(_) if self.connections.len() >= self.most => self.tell(Refusal::Clients),
            Ok((socket, _)) => {
                // A client that cannot be served is closed.
                let _ = self.welcome(socket);
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted => {}
                _ => thread::sleep(PAUSE),
            },
        }
    }

    fn welcome(&mut self, socket: TcpStream) -> io::Result<()> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let client = self.next;
        epoll::add(&self.epoll, &socket, EventData::new_u64(client), EventFlags::IN)?;
        self.next += 1;
        let connection = Connection {
            socket,
            dialect: None,
            is_known: false,
            inbox: Vec::new(),
            outbox: Vec::new(),
            is_full: false,
        };
        self.connections.insert(client, connection);
        Ok(())
    }

    fn serve(&mut self, client: Client, flags: EventFlags, chunk: &mut [u8]) {
        if let Err(Close(reason)) = self.try_serve(client, flags, chunk) {
            self.close(client);
            if let Some(refusal) = reason {
                self.tell(refusal);
            }
        }
    }

    fn close(&mut self, client: Client) {
        self.table.forget(client);
        if let Some(connection) = self.connections.remove(&client) {
            // Closing does it too, unless a process that is just being started has the socket for a moment.
            let _ = epoll::delete(&self.epoll, &connection.socket);
        }
    }

    fn tell(&mut self, refusal: Refusal) {
        self.met.strangers |= refusal == Refusal::Stranger;
        if self.told.insert(mem::discriminant(&refusal)) {
            (self.tell)(refusal);
        }
    }

    fn try_serve(&mut self, client: Client, flags: EventFlags, chunk: &mut [u8]) -> Result<(), Close> {
        // It may have been closed by an event before this one.
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(());
        };
        if flags.contains(EventFlags::OUT) {
            connection.send(&self.epoll, client)?;
        } else {
            match connection.socket.read(chunk) {
                Ok(0) => return Err(Close(None)),
                Ok(count) => connection.inbox.extend_from_slice(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.answer_all(client)
    }

    /// Answers the requests that are whole, as long as the client reads the answers.
    fn answer_all(&mut self, client: Client) -> Result<(), Close> {
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(());
        };
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
            // An old client does not say what it is: its first request tells.
            let read = read.map_err(|refusal| match connection.is_known {
                true => refusal,
                false => Refusal::Stranger,
            })?;
            let Some((request, length)) = read else {
                break;
            };
            connection.is_known = true;
            self.met.clients = true;
            self.answer(client, &request)?;
            done += length;
        }
        inbox.drain(..done);
        let is_large = inbox.len() > SMALL;
        if let Some(connection) = self.connections.get_mut(&client)
            && !inbox.is_empty()
        {
            connection.inbox = inbox;
        }
        if is_large && self.under_way() > UNDER_WAY {
            return Err(Refusal::Full.into());
        }
        Ok(())
    }

    fn under_way(&self) -> usize {
        let each = |connection: &Connection| connection.inbox.len() + connection.outbox.len();
        self.connections.values().map(each).sum()
    }

    fn answer(&mut self, client: Client, request: &Request<'_>) -> Result<(), Close> {
        let (answer, woken) = respond(&mut self.table, client, request)?;
        self.send(client, &answer)?;
        for other in woken {
            if self.send(other, &[STOP_WAITING]).is_err() {
                self.close(other);
            }
        }
        Ok(())
    }

    fn send(&mut self, client: Client, bytes: &[u8]) -> io::Result<()> {
        let Some(connection) = self.connections.get_mut(&client) else {
            return Ok(());
        };
        connection.outbox.extend_from_slice(bytes);
        connection.send(&self.epoll, client)
    }
}

impl Connection {
    /// Sends what the client takes of its answers. The rest waits, and so do its requests.
    fn send(&mut self, epoll: impl AsFd, client: Client) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.outbox.len() {
            match self.socket.write(&self.outbox[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.outbox.drain(..sent);
        let is_full = !self.outbox.is_empty();
        if !is_full {
            self.outbox = Vec::new();
        }
        if is_full != self.is_full {
            self.is_full = is_full;
            let flags = if is_full { EventFlags::OUT } else { EventFlags::IN };
            epoll::modify(epoll, &self.socket, EventData::new_u64(client), flags)?;
        }
        Ok(())
    }
}

/// What a client that waits hears.
const STOP_WAITING: u8 = 0;
const WAIT_CANCELED: u8 = 1;
const READY: u8 = 0;
const NOT_READY: u8 = 1;

/// The answer to a request, if it has one, and who has waited for what it did.
fn respond(
    table: &mut Table,
    client: Client,
    request: &Request<'_>,
) -> Result<(Vec<u8>, Vec<Client>), Refusal> {
    let nobody = |answer| (answer, Vec::new());
    let silence = |woken| (Vec::new(), woken);
    Ok(match request {
        Request::Set { key, value } => silence(table.set(key, value)?),
        Request::CompareSet { key, expected, value } => {
            let (present, woken) = table.compare_set(key, expected, value)?;
            (text(present), woken)
        }
        Request::Get(key) => nobody(text(table.get(key))),
        Request::Add { key, by } => {
            let (sum, woken) = table.add(key, *by)?;
            (sum.to_ne_bytes().to_vec(), woken)
        }
        Request::Check(keys) => nobody(vec![if table.check(keys) { READY } else { NOT_READY }]),
        Request::Wait(keys) => nobody(match table.wait(client, keys)? {
            true => vec![STOP_WAITING],
            false => Vec::new(),
        }),
        Request::CountKeys => nobody(number(table.keys().len())),
        Request::Delete(key) => nobody(number(table.delete(key).into())),
        Request::Append { key, value } => silence(table.append(key, value)?),
        Request::MultiGet(keys) => nobody(texts(keys.iter().map(|key| table.get(key)))?),
        Request::MultiSet(pairs) => {
            let mut woken = Vec::new();
            for (key, value) in pairs {
                woken.extend(table.set(key, value)?);
            }
            silence(woken)
        }
        Request::CancelWait => {
            table.forget(client);
            nobody(vec![WAIT_CANCELED])
        }
        Request::Ping(nonce) => nobody(nonce.to_vec()),
        Request::Push { key, value } => silence(table.push(key, value)?.into_iter().collect()),
        Request::Pop(key) => {
            let (length, value) = table.pop(key);
            nobody(
                [
                    number(length),
                    value.map(|value| text(&value)).unwrap_or_default(),
                ]
                .concat(),
            )
        }
        Request::QueueLength(key) => nobody(number(table.queue_length(key))),
        Request::ListKeys => {
            let keys = texts(table.keys())?;
            nobody([number(table.keys().len()), keys].concat())
        }
        Request::Barrier { key, world } => match table.barrier(client, key, *world)? {
            Some(woken) => (vec![STOP_WAITING], woken),
            None => nobody(Vec::new()),
        },
    })
}

fn number(number: usize) -> Vec<u8> {
    (number as u64).to_ne_bytes().to_vec()
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&number(bytes.len())[..], bytes].concat()
}

/// Several, one after the other.
fn texts<'a>(all: impl Iterator<Item = &'a [u8]>) -> Result<Vec<u8>, Refusal> {
    let mut answer = Vec::new();
    for bytes in all {
        Refusal::check_answer(answer.len() + bytes.len())?;
        answer.extend(number(bytes.len()));
        answer.extend_from_slice(bytes);
    }
    Ok(answer)
}
