//! The store where PyTorch's processes meet, served by the launcher: a server of the protocol of PyTorch's TCPStore.
//!
//! It ends when the launcher says, not with a worker. It knows nothing of workers and attempts: each store begins empty.

mod request;
mod server;
mod table;

pub use server::Met;

use request::Refusal;
use server::Server;
use std::io::{self, PipeWriter};
use std::net::{IpAddr, TcpListener};
use std::thread::{self, JoinHandle};

/// A bound port, where clients may connect already.
#[derive(Debug)]
pub struct Place {
    port: u16,
    listeners: Vec<TcpListener>,
}

impl Place {
    /// Takes the port on each of these addresses.
    pub fn take(addresses: &[IpAddr], port: u16) -> io::Result<Self> {
        let bind = |address: &IpAddr| TcpListener::bind((*address, port));
        let listeners = addresses.iter().map(bind).collect::<io::Result<_>>()?;
        Ok(Self { port, listeners })
    }

    /// Serves an empty store in a thread of its own. `tell` hears one sentence about each kind of client that is disconnected.
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

/// A store that is served until it is ended or dropped.
#[derive(Debug)]
pub struct Serving {
    stop: PipeWriter,
    thread: JoinHandle<Met>,
}

impl Serving {
    /// Disconnects all clients, and answers who they were.
    pub fn end(self) -> Met {
        drop(self.stop);
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests;
