//! The leader's side.

use super::message::{self, SendError};
use super::secret::Secret;
use super::serve::{Command, Limits, Loop, ServerEvent};
use crate::io::mailbox::Mailbox;
use crate::io::store::StoreHandle;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::marker::PhantomData;
use std::net::{SocketAddr, TcpListener};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Connections that the system holds until they are accepted.
const BACKLOG: i32 = 4096;
/// The time for sending queued messages at the end.
const END: Duration = Duration::from_secs(1);

/// Bound addresses. Clients can already connect.
#[derive(Debug)]
pub struct BoundServer {
    listeners: Vec<TcpListener>,
}

impl BoundServer {
    /// Binds each address. The IPv6 address `::` also serves IPv4, unless `0.0.0.0` is bound too.
    pub fn bind(addresses: &[SocketAddr]) -> io::Result<Self> {
        let serves_all = |address: &SocketAddr| address.is_ipv4() && address.ip().is_unspecified();
        let only_v6 = addresses.iter().any(serves_all);
        let listeners = addresses.iter().map(|address| open(address, only_v6));
        Ok(Self { listeners: listeners.collect::<io::Result<_>>()? })
    }

    /// Returns the bound addresses with their ports.
    pub fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(TcpListener::local_addr).collect()
    }

    /// Serves on a new thread, which calls `on_event`.
    pub fn serve<In, Out>(
        self,
        secret: Secret,
        limits: Limits,
        on_event: impl FnMut(ServerEvent<In>) + Send + 'static,
    ) -> io::Result<Server<Out>>
    where
        In: DeserializeOwned + 'static,
    {
        let mailbox = Mailbox::new()?;
        let serving = Loop::new(self.listeners, mailbox.clone(), secret, limits, on_event)?;
        let thread = thread::Builder::new().name("leader".to_owned()).spawn(move || serving.run())?;
        Ok(Server { mailbox, thread: Some(thread), message: PhantomData })
    }
}

fn open(address: &SocketAddr, only_v6: bool) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    // A port is free again at once after its server has ended.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(&socket, only_v6)?;
    }
    bind(&socket, address)?;
    listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// A running server, until it is ended or dropped.
#[derive(Debug)]
pub struct Server<Out> {
    mailbox: Mailbox<Command>,
    thread: Option<JoinHandle<()>>,
    message: PhantomData<fn(&Out)>,
}

impl<Out: Serialize> Server<Out> {
    /// Sends a message after earlier ones. It is dropped if the connection is no longer open.
    pub fn send(&self, id: u64, message: &Out) -> Result<(), SendError> {
        let text = message::encode(message)?;
        self.mailbox.push(Command::Send(id, text));
        Ok(())
    }

    /// Closes a connection after its queued messages are sent, or after one second.
    pub fn close(&self, id: u64) {
        self.mailbox.push(Command::Close(id));
    }

    /// Passes clients of PyTorch's store to this store. Without a store, they are strangers. Set `None` before the
    /// store's end.
    pub fn set_store(&self, store: Option<StoreHandle>) {
        self.mailbox.push(Command::SetStore(store));
    }

    /// Closes all connections in the same way, without events.
    pub fn end(mut self) {
        self.mailbox.push(Command::End(END));
        if let Some(thread) = self.thread.take() {
            // A panic of `on_event` has been printed.
            let _ = thread.join();
        }
    }
}

impl<Out> Drop for Server<Out> {
    fn drop(&mut self) {
        self.mailbox.push(Command::End(Duration::ZERO));
    }
}
