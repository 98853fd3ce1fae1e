//! A server of PyTorch's TCPStore protocol, run by the launcher for PyTorch's processes.
//!
//! The launcher ends it, not a worker. It does not know workers or attempts: each store begins empty.

mod request;
mod server;
mod table;

pub use server::ClientsSeen;

use crate::io::mailbox::Mailbox;
use request::ClientError;
use server::Server;
use std::io::{self, PipeWriter};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

/// A bound port. Clients can already connect.
#[derive(Debug)]
pub struct BoundPort {
    port: u16,
    listeners: Vec<TcpListener>,
}

impl BoundPort {
    /// Binds the port at each of these addresses. Without an address, the clients come by [`StoreHandle`] only.
    pub fn bind(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let bind = |address: &IpAddr| TcpListener::bind((*address, port));
        let listeners = addresses.iter().map(bind).collect::<io::Result<_>>()?;
        Ok(Self { port, listeners })
    }

    /// Serves an empty store on a new thread. `report` gets one sentence per kind of disconnected client.
    pub fn serve(self, report: impl Fn(String) + Send + 'static) -> io::Result<Serving> {
        let (stop, stop_out) = io::pipe()?;
        let port = self.port;
        let report = move |error: ClientError| {
            let remedy = error.remedy();
            report(format!("PyTorch's store at port {port} disconnected a client: {error}{remedy}"));
        };
        let handle = StoreHandle { clients: Mailbox::new()? };
        let server = Server::new(self.listeners, &stop, handle.clients.clone(), report)?;
        let serve = move || {
            let _open = stop;
            server.run()
        };
        let thread = thread::Builder::new().name("store".to_owned()).spawn(serve)?;
        Ok(Serving { stop: stop_out, thread, handle })
    }
}

/// A running store server, until it is ended or dropped.
#[derive(Debug)]
pub struct Serving {
    stop: PipeWriter,
    thread: JoinHandle<ClientsSeen>,
    handle: StoreHandle,
}

impl Serving {
    /// Returns a handle for passing clients to this store, until its end.
    pub fn handle(&self) -> StoreHandle {
        self.handle.clone()
    }

    /// Disconnects all clients, and returns their kinds.
    pub fn end(self) -> ClientsSeen {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

/// Passes clients of another listener to a store.
#[derive(Clone, Debug)]
pub struct StoreHandle {
    clients: Mailbox<(TcpStream, Vec<u8>)>,
}

impl StoreHandle {
    /// Returns whether a client of the store may have sent these first bytes.
    pub(super) fn accepts(bytes: &[u8]) -> bool {
        !bytes.is_empty() && request::greet(bytes).is_ok()
    }

    /// Passes a non-blocking socket and the bytes that are read from it.
    pub(super) fn pass(&self, socket: TcpStream, bytes: Vec<u8>) {
        self.clients.push((socket, bytes));
    }
}

#[cfg(test)]
mod tests;
