//! Connects to the leader, as often as it takes.

use super::attempt::{Attempt, ConnectError};
use super::resolve::{self, Resolved};
use super::secret::Secret;
use super::session::Session;
use crate::io::mailbox::Mailbox;
use crate::io::sockets::{CHUNK, PAUSE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// The time for resolving the name.
const RESOLVE: Duration = Duration::from_millis(1500);
/// The time for one address. The first time, all addresses share it.
const ATTEMPT: Duration = Duration::from_millis(1300);
/// The pauses between attempts double from the first to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Where the leader listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// A name, or an address without brackets.
    pub host: String,
    pub port: u16,
}

#[derive(Debug)]
pub(super) enum Command {
    /// A message's text.
    Send(Vec<u8>),
    Reconnect,
    Resolved(Resolved),
    /// Queued messages may still be sent for this time.
    End(Duration),
}

impl From<Resolved> for Command {
    fn from(resolved: Resolved) -> Self {
        Self::Resolved(resolved)
    }
}

/// The client must end.
#[derive(Debug)]
pub(super) struct Ended;

#[derive(Debug)]
pub(super) struct Connector {
    endpoint: Endpoint,
    secret: Secret,
    source: Option<IpAddr>,
    mailbox: Mailbox<Command>,
    is_resolving: bool,
    resolved: Option<Resolved>,
}

/// Returns the pause after this one.
pub(super) fn longer(pause: Duration) -> Duration {
    (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE)
}

impl Connector {
    pub(super) fn new(
        endpoint: Endpoint,
        secret: Secret,
        source: Option<IpAddr>,
        mailbox: Mailbox<Command>,
    ) -> Self {
        Self { endpoint, secret, source, mailbox, is_resolving: false, resolved: None }
    }

    /// Tries until connected, after a pause. `report` gets each reason once.
    pub(super) fn connect(
        &mut self,
        mut pause: Duration,
        mut report: impl FnMut(Option<SocketAddr>, ConnectError),
    ) -> Result<(TcpStream, Session), Ended> {
        let mut reported = HashSet::new();
        let mut until = Some(Instant::now() + pause);
        loop {
            if self.pause(until)? {
                reported.clear();
                pause = Duration::ZERO;
            }
            let (address, reason) = match self.try_all(reported.is_empty())? {
                Ok(connected) => return Ok(connected),
                Err(failed) => failed,
            };
            pause = longer(pause);
            until = (!reason.is_permanent()).then(|| Instant::now() + pause);
            if reported.insert(reason.clone()) {
                report(address, reason);
            }
        }
    }

    /// Tries all addresses. Returns the most telling reason and its address if none can be connected.
    #[expect(clippy::type_complexity, reason = "only used above")]
    fn try_all(
        &mut self,
        is_first: bool,
    ) -> Result<Result<(TcpStream, Session), (Option<SocketAddr>, ConnectError)>, Ended> {
        let mut addresses = match self.resolve()? {
            Ok(addresses) => addresses,
            Err(words) => return Ok(Err((None, ConnectError::Unresolvable(words)))),
        };
        let mut failed = None;
        if let Some(source) = self.source {
            addresses.retain(|address| address.is_ipv4() == source.is_ipv4());
            failed = Some((ConnectError::Family(source), None));
        }
        let count = if is_first { addresses.len().max(1) as u32 } else { 1 };
        for address in addresses {
            match self.attempt(address, ATTEMPT / count)? {
                Ok(connected) => return Ok(Ok(connected)),
                Err(reason) => failed = failed.max(Some((reason, Some(address)))),
            }
        }
        let nothing = || (ConnectError::Unresolvable("it has no address".to_owned()), None);
        let (reason, address) = failed.unwrap_or_else(nothing);
        Ok(Err((address, reason)))
    }

    fn resolve(&mut self) -> Result<Resolved, Ended> {
        if !self.is_resolving && self.resolved.is_none() {
            self.is_resolving = true;
            resolve::start(&self.endpoint.host, self.endpoint.port, &self.mailbox);
        }
        let until = Instant::now() + RESOLVE;
        while Instant::now() < until {
            if let Some(resolved) = self.resolved.take() {
                return Ok(resolved);
            }
            self.idle(None, Some(until))?;
        }
        Ok(Err("the name service does not answer".to_owned()))
    }

    fn attempt(
        &mut self,
        address: SocketAddr,
        limit: Duration,
    ) -> Result<Result<(TcpStream, Session), ConnectError>, Ended> {
        let until = Instant::now() + limit;
        let mut attempt = match Attempt::start(address, self.source) {
            Ok(attempt) => attempt,
            Err(reason) => return Ok(Err(reason)),
        };
        let mut chunk = vec![0; CHUNK];
        while Instant::now() < until {
            let awaited = if attempt.is_connecting() { PollFlags::OUT } else { PollFlags::IN };
            let (is_ready, _) = self.idle(Some((&attempt.socket, awaited)), Some(until))?;
            match if is_ready { attempt.proceed(&self.secret, &mut chunk) } else { Ok(None) } {
                Ok(None) => {}
                Ok(Some(session)) => return Ok(Ok((attempt.socket, session))),
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(Err(attempt.timed_out()))
    }

    /// Waits until then, or until the name is resolved. Returns whether [`Command::Reconnect`] ended it.
    fn pause(&mut self, until: Option<Instant>) -> Result<bool, Ended> {
        let mut is_called = false;
        while !is_called && self.resolved.is_none() && until.is_none_or(|until| Instant::now() < until) {
            (_, is_called) = self.idle(None, until)?;
        }
        Ok(is_called)
    }

    /// Waits without a connection. Returns whether the socket is ready, and whether to connect again.
    fn idle(
        &mut self,
        socket: Option<(&TcpStream, PollFlags)>,
        until: Option<Instant>,
    ) -> Result<(bool, bool), Ended> {
        let is_ready = self.wait(socket, until);
        let mut is_called = false;
        for command in self.take() {
            match command {
                Command::Send(_) => {}
                Command::Reconnect => is_called = true,
                Command::Resolved(resolved) => self.resolved = Some(resolved),
                Command::End(_) => return Err(Ended),
            }
        }
        Ok((is_ready, is_called))
    }

    /// Waits for commands and the socket. Returns whether the socket is ready.
    pub(super) fn wait(&self, socket: Option<(&TcpStream, PollFlags)>, until: Option<Instant>) -> bool {
        let rest = until.map(|until| until.saturating_duration_since(Instant::now()));
        let timeout = rest.map(|rest| Timespec::try_from(rest).unwrap_or_default());
        let mut awaited = vec![PollFd::new(&self.mailbox, PollFlags::IN)];
        awaited.extend(socket.map(|(socket, flags)| PollFd::new(socket, flags)));
        match poll(&mut awaited, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => thread::sleep(PAUSE),
        }
        awaited.get(1).is_some_and(|socket| !socket.revents().is_empty())
    }

    /// Returns new commands.
    pub(super) fn take(&mut self) -> Vec<Command> {
        let commands = self.mailbox.take();
        let is_resolved = |command: &Command| matches!(command, Command::Resolved(_));
        self.is_resolving &= !commands.iter().any(is_resolved);
        commands
    }
}
