//! Addresses of a host's name. A name service that does not answer must not hold up the client's end.

use crate::io::mailbox::Mailbox;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread;

/// The addresses, or the resolver's error.
pub(super) type Resolved = Result<Vec<SocketAddr>, String>;

/// Resolves an address at once, and a name on a new thread, which sends the answer.
pub(super) fn start<C: From<Resolved> + Send + 'static>(host: &str, port: u16, mailbox: &Mailbox<C>) {
    if let Ok(address) = host.parse::<IpAddr>() {
        return mailbox.push(C::from(Ok(vec![SocketAddr::new(address, port)])));
    }
    let (host, answers) = (host.to_owned(), mailbox.clone());
    let resolve = move || {
        let found = (host.as_str(), port).to_socket_addrs();
        answers.push(C::from(found.map(Iterator::collect).map_err(|error| error.to_string())));
    };
    if let Err(error) = thread::Builder::new().name("resolver".to_owned()).spawn(resolve) {
        mailbox.push(C::from(Err(error.to_string())));
    }
}
