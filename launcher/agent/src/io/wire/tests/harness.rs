//! Both sides with their events, and a client that sends single bytes.

use super::super::handshake::Handshake;
use super::super::session::Session;
use super::super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

pub(super) const SECRET: &str = "the secret of these tests";
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn secret(text: &str) -> Secret {
    Secret::from_text(text.as_bytes()).unwrap()
}

pub(super) struct Leader {
    pub(super) address: SocketAddr,
    pub(super) server: Server<String>,
    pub(super) events: Receiver<ServerEvent<String>>,
}

impl Leader {
    pub(super) fn new(secret: &Secret) -> Self {
        Self::limited(secret, Limits::default())
    }

    pub(super) fn limited(secret: &Secret, limits: Limits) -> Self {
        let bound = BoundServer::bind(&[(Ipv4Addr::LOCALHOST, 0).into()]).unwrap();
        Self::serve(bound, secret, limits)
    }

    pub(super) fn serve(bound: BoundServer, secret: &Secret, limits: Limits) -> Self {
        let address = bound.addresses().unwrap()[0];
        let (sender, events) = mpsc::channel();
        let server = bound.serve(secret.clone(), limits, move |event| drop(sender.send(event))).unwrap();
        Self { address, server, events }
    }

    pub(super) fn next(&self) -> ServerEvent<String> {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    /// Returns id, the member's address, and the own one.
    pub(super) fn expect_opened(&self) -> (u64, SocketAddr, SocketAddr) {
        match self.next() {
            ServerEvent::Opened { id, peer, local } => (id, peer, local),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_message(&self) -> (u64, String) {
        match self.next() {
            ServerEvent::Received { id, message } => (id, message),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_stranger(&self, expected: StrangerReason) {
        match self.next() {
            ServerEvent::Stranger { peer, reason } => {
                assert_eq!((peer, reason), (Ipv4Addr::LOCALHOST.into(), expected));
            }
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_nothing(&self) {
        let next = self.events.recv_timeout(Duration::from_millis(50));
        assert!(next.is_err(), "{next:?}");
    }
}

pub(super) struct Member {
    pub(super) client: Client<String>,
    events: Receiver<ClientEvent<String>>,
}

impl Member {
    pub(super) fn new(leader: &Leader, secret: &Secret) -> Self {
        Self::at(&leader.address.ip().to_string(), leader.address.port(), secret)
    }

    pub(super) fn at(host: &str, port: u16, secret: &Secret) -> Self {
        Self::from(host, port, secret, None)
    }

    pub(super) fn from(host: &str, port: u16, secret: &Secret, source: Option<std::net::IpAddr>) -> Self {
        let (sender, events) = mpsc::channel();
        let endpoint = Endpoint { host: host.to_owned(), port };
        let on_event = move |event| drop(sender.send(event));
        let client = Client::connect(endpoint, secret.clone(), source, on_event).unwrap();
        Self { client, events }
    }

    pub(super) fn next(&self) -> ClientEvent<String> {
        self.events.recv_timeout(PATIENCE).unwrap()
    }

    /// Returns the own address and the leader's.
    pub(super) fn expect_connected(&self) -> (SocketAddr, SocketAddr) {
        match self.next() {
            ClientEvent::Connected { local, peer } => (local, peer),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_message(&self) -> String {
        match self.next() {
            ClientEvent::Received(message) => message,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_failure(&self) -> ConnectError {
        match self.next() {
            ClientEvent::CannotConnect { reason, .. } => reason,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn expect_nothing(&self, time: Duration) {
        let next = self.events.recv_timeout(time);
        assert!(next.is_err(), "{next:?}");
    }
}

/// A session whose bytes the test sends. The first bytes contain the first, empty frame.
pub(super) struct Raw(pub(super) Session);

impl Raw {
    pub(super) fn frame(&mut self, message: &[u8]) -> Vec<u8> {
        self.0.queue(message).unwrap();
        self.0.outbox.take()
    }

    pub(super) fn send(&mut self, socket: &mut TcpStream, message: &[u8]) {
        let frame = self.frame(message);
        socket.write_all(&frame).unwrap();
    }
}

/// Makes a handshake, without the client's first frame.
pub(super) fn client(leader: SocketAddr, secret: &Secret) -> (Raw, TcpStream) {
    let mut socket = TcpStream::connect(leader).unwrap();
    let (handshake, greeting) = Handshake::begin(secret).unwrap();
    socket.write_all(&greeting).unwrap();
    (finish(handshake, &mut socket), socket)
}

pub(super) fn finish(handshake: Handshake, socket: &mut TcpStream) -> Raw {
    let mut answer = Vec::new();
    while !Handshake::is_answered(&answer).unwrap() {
        let mut byte = [0];
        socket.read_exact(&mut byte).unwrap();
        answer.extend(byte);
    }
    Raw(handshake.finish(&answer).unwrap())
}

/// Expects that the leader closes the connection, and returns the last bytes.
pub(super) fn expect_end(socket: &mut TcpStream) -> Vec<u8> {
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = Vec::new();
    match socket.read_to_end(&mut bytes) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    bytes
}
