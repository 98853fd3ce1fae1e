#![allow(clippy::unwrap_used)]

use super::request::tests::Argument::{Bytes, Number};
use super::request::tests::{greeting, sent};
use super::*;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::sync::mpsc::{self, Receiver};

struct Store {
    port: u16,
    serving: Serving,
    reported: Receiver<String>,
}

impl Store {
    fn new() -> Self {
        let bound = BoundPort::bind(&[Ipv4Addr::LOCALHOST.into()], 0).unwrap();
        let port = bound.listeners[0].local_addr().unwrap().port();
        let (report, reported) = mpsc::channel();
        let serving = bound.serve(move |text| drop(report.send(text))).unwrap();
        Self { port, serving, reported }
    }

    fn connect(&self) -> TcpStream {
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap()
    }

    fn client(&self) -> TcpStream {
        let mut client = self.connect();
        client.write_all(&greeting()).unwrap();
        client
    }
}

fn hear<const N: usize>(client: &mut TcpStream) -> [u8; N] {
    let mut answer = [0; N];
    client.read_exact(&mut answer).unwrap();
    answer
}

/// Expects that the server answers a ping.
#[track_caller]
fn expect_answer(client: &mut TcpStream) {
    client.write_all(b"\x0dping").unwrap();
    assert_eq!(hear(client), *b"ping");
}

/// Expects a closed connection: a reset, if the server had not read everything.
fn expect_end(client: &mut TcpStream) {
    match client.read(&mut [0]) {
        Ok(count) => assert_eq!(count, 0),
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
}

#[test]
fn a_client_is_served_byte_by_byte_and_many_requests_at_once() {
    let store = Store::new();
    let set = sent(1, &[Bytes(b"key"), Bytes(b"value")]);
    let mut slow = store.connect();
    slow.set_nodelay(true).unwrap();
    for byte in [greeting(), set.clone(), sent(8, &[Bytes(b"none")])].concat() {
        slow.write_all(&[byte]).unwrap();
    }
    assert_eq!(hear(&mut slow), 0_u64.to_ne_bytes());
    let mut quick = store.client();
    quick.write_all(&[set, sent(3, &[Bytes(b"key")]), sent(7, &[])].concat()).unwrap();
    assert_eq!(hear::<13>(&mut quick), *b"\x05\0\0\0\0\0\0\0value");
    assert_eq!(hear(&mut quick), 1_u64.to_ne_bytes());
    let clients_seen = store.serving.end();
    assert!(clients_seen.clients && !clients_seen.strangers);
    expect_end(&mut quick);
}

#[test]
fn an_old_client_is_served_by_its_own_numbers() {
    let store = Store::new();
    let mut old = store.connect();
    old.write_all(&sent(3, &[Bytes(b"init/"), Number(1)])).unwrap();
    assert_eq!(hear(&mut old), 1_i64.to_ne_bytes());
    old.write_all(&sent(0, &[Bytes(b"key"), Bytes(b"v")])).unwrap();
    old.write_all(&sent(2, &[Bytes(b"key")])).unwrap();
    assert_eq!(hear::<9>(&mut old), *b"\x01\0\0\0\0\0\0\0v");
    assert!(store.serving.end().clients);
}

#[test]
fn waiting_clients_are_woken_and_lost_clients_forgotten() {
    let store = Store::new();
    let wait = sent(6, &[Number(1), Bytes(b"key")]);
    let mut gone = store.client();
    gone.write_all(&wait).unwrap();
    let mut waiting = store.client();
    waiting.write_all(&wait).unwrap();
    let mut cancelled = store.client();
    cancelled.write_all(&[wait, sent(12, &[])].concat()).unwrap();
    assert_eq!(hear(&mut cancelled), [1]);
    drop(gone);
    let mut setter = store.client();
    setter.write_all(&sent(1, &[Bytes(b"key"), Bytes(b"")])).unwrap();
    assert_eq!(hear(&mut waiting), [0]);
    expect_answer(&mut setter);
}

#[test]
fn bad_clients_are_closed_and_told_of_once_and_others_are_served() {
    let store = Store::new();
    let mut good = store.client();
    for _ in 0..3 {
        for bytes in [b"GET / HTTP/1.1\r\n\r\n".to_vec(), b"\0\0\0\x05hello".to_vec()] {
            let mut stranger = store.connect();
            stranger.write_all(&bytes).unwrap();
            expect_end(&mut stranger);
        }
        for bytes in [sent(99, &[]), sent(1, &[Bytes(b"k"), Number(i64::MAX)]), sent(6, &[Number(-1)])] {
            let mut bad = store.client();
            bad.write_all(&bytes).unwrap();
            expect_end(&mut bad);
        }
    }
    drop(store.connect());
    expect_answer(&mut good);
    let clients_seen = store.serving.end();
    assert!(clients_seen.clients && clients_seen.strangers);
    let reported: Vec<String> = store.reported.try_iter().collect();
    assert_eq!(reported.len(), 4, "{reported:?}");
    assert!(
        reported[0].contains("disconnected a client: it uses another protocol")
            && reported[0].contains("set TORCHELASTIC_USE_AGENT_STORE=False"),
        "{reported:?}"
    );
}

#[test]
fn a_client_that_does_not_read_gets_no_more_answers_until_it_does() {
    let store = Store::new();
    let mut client = store.client();
    let value = vec![7; 1 << 20];
    client.write_all(&sent(1, &[Bytes(b"key"), Bytes(&value)])).unwrap();
    client.write_all(&sent(3, &[Bytes(b"key")]).repeat(40)).unwrap();
    expect_answer(&mut store.client());
    let mut answer = vec![0; (8 + value.len()) * 40];
    client.read_exact(&mut answer).unwrap();
    assert!(answer.chunks(8 + value.len()).all(|one| one[8..] == value));
}

#[test]
fn an_answer_that_would_take_the_memory_is_refused() {
    let store = Store::new();
    let mut client = store.client();
    client.write_all(&sent(1, &[Bytes(b"key"), Bytes(&vec![7; 8 << 20])])).unwrap();
    let mut keys = vec![Number(1000)];
    keys.extend([Bytes(b"key"); 1000]);
    client.write_all(&sent(10, &keys)).unwrap();
    expect_end(&mut client);
    expect_answer(&mut store.client());
    assert!(store.reported.recv().unwrap().contains("has more than"));
}

#[test]
fn requests_that_would_take_the_memory_together_are_refused() {
    let store = Store::new();
    let value = [Bytes(b"key"), Bytes(&vec![7; 8 << 20])];
    let half = sent(11, &[vec![Number(100)], value.repeat(7)].concat());
    let mut half_sent: Vec<TcpStream> = (0..4).map(|_| store.client()).collect();
    for client in &mut half_sent {
        client.write_all(&half).unwrap();
    }
    assert!(store.reported.try_recv().is_err());
    let mut last = store.client();
    // The server may close the connection before all bytes are sent.
    let _ = last.write_all(&half);
    expect_end(&mut last);
    let reported = store.reported.recv().unwrap();
    assert!(reported.contains("the store is full"), "{reported}");
    expect_answer(&mut store.client());
}

#[test]
fn the_port_belongs_to_the_store_until_its_end() {
    let store = Store::new();
    let mut waiting = store.client();
    waiting.write_all(&sent(6, &[Number(1), Bytes(b"never")])).unwrap();
    let again = || BoundPort::bind(&[Ipv4Addr::LOCALHOST.into()], store.port);
    assert_eq!(again().unwrap_err().kind(), ErrorKind::AddrInUse);
    store.serving.end();
    again().unwrap();
}
