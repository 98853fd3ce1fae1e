//! A server of PyTorch's TCPStore protocol, run by the launcher for PyTorch's processes.
//!
//! The launcher ends it, not a worker. It does not know workers or attempts: each store begins empty.

mod request;
mod server;
mod table;

pub use server::Met;

use request::Refusal;
use server::Server;
use std::io::{self, PipeWriter};
use std::net::{IpAddr, TcpListener};
use std::thread::{self, JoinHandle};

/// A bound port. Clients can already connect.
#[derive(Debug)]
pub struct Place {
    port: u16,
    listeners: Vec<TcpListener>,
}

impl Place {
    /// Binds the port at each of these addresses.
    pub fn take(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let bind = |address: &IpAddr| TcpListener::bind((*address, port));
        let listeners = addresses.iter().map(bind).collect::<io::Result<_>>()?;
        Ok(Self { port, listeners })
    }

    /// Serves an empty store on a new thread. `tell` gets one sentence per kind of disconnected client.
    pub fn serve(self, tell: impl Fn(String) + Send + 'static) -> io::Result<Serving> {
        let (stop, stop_out) = io::pipe()?;
        let port = self.port;
        let tell = move |refusal: Refusal| {
            let remedy = refusal.remedy();
            tell(format!("PyTorch's store at port {port} disconnected a client: {refusal}{remedy}"));
        };
        let server = Server::new(self.listeners, &stop, tell)?;
        let serve = move || {
            let _open = stop;
            server.run()
        };
        let thread = thread::Builder::new().name("store".to_owned()).spawn(serve)?;
        Ok(Serving { stop: stop_out, thread })
    }
}

/// A running store server, until it is ended or dropped.
#[derive(Debug)]
pub struct Serving {
    stop: PipeWriter,
    thread: JoinHandle<Met>,
}

impl Serving {
    /// Disconnects all clients, and returns their kinds.
    pub fn end(self) -> Met {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
