//! Connections between two nodes, tried with small and large messages.
//!
//! A node listens at two ports: one of those that dtrain gives to workers, and one that the system gives to
//! any program, as to Gloo and NCCL. A client sends a length and as many bytes; the node answers with its
//! number, its time and the same bytes.

use crate::cluster::trial::{FailedTry, Fault, Place};
use crate::io::thread::start;
use dtrain_common::random;
use rustix::net::Shutdown;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Larger than any packet, so that full packets travel both ways.
const LARGE: usize = 128 << 10;
/// Small messages; the fastest counts.
const ROUNDS: usize = 5;
/// The time for a connection, and for each message. The first packet of a connection may be lost once: the
/// kernel sends it again after a second.
const PATIENCE: Duration = Duration::from_millis(1300);
/// Nodes that one tries at a time, with two connections each.
const AT_ONCE: usize = 128;
/// Connections that a node serves at a time, and the time for each message of one.
const MOST: usize = 1024;
const IDLE: Duration = Duration::from_secs(4);

/// The result of trying one node.
pub type Outcome = Result<Works, FailedTry>;

/// A node that can be used from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Works {
    pub round_trip_us: u64,
    /// By how much the other clock is ahead.
    pub ahead_us: i64,
}

/// The ports of a node that the others try, until it is dropped.
#[derive(Debug)]
pub struct Listeners {
    worker_port: Option<u16>,
    automatic_port: u16,
    number: u64,
    sockets: Vec<Arc<TcpListener>>,
}

impl Listeners {
    /// Listens on all addresses at an automatic port, and at this port.
    pub fn open(worker_port: Option<u16>) -> io::Result<Self> {
        let number = random::number();
        let mut listeners = Self { worker_port, automatic_port: 0, number, sockets: Vec::new() };
        let served = Arc::new(AtomicUsize::new(0));
        for port in worker_port.into_iter().chain([0]) {
            let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
            listeners.automatic_port = listener.local_addr()?.port();
            let listener = Arc::new(listener);
            listeners.sockets.push(listener.clone());
            let served = served.clone();
            start("trial", move || accept(&listener, number, &served))?;
        }
        Ok(listeners)
    }

    /// Returns where the others reach them.
    pub fn place(&self, address: IpAddr, interface: Option<String>) -> Place {
        let Self { worker_port, automatic_port, number, .. } = *self;
        Place { address, interface, worker_port, automatic_port, number }
    }
}

impl Drop for Listeners {
    /// Ends their threads.
    fn drop(&mut self) {
        for socket in &self.sockets {
            // Its thread gets an error.
            let _ = rustix::net::shutdown(socket, Shutdown::Both);
        }
    }
}

fn accept(listener: &TcpListener, number: u64, served: &Arc<AtomicUsize>) {
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            // They were dropped.
            Err(error) if error.kind() == ErrorKind::InvalidInput => return,
            Err(_) => {
                thread::sleep(Duration::from_millis(10));
                continue;
            }
        };
        if served.fetch_add(1, Ordering::Relaxed) < MOST {
            let served = served.clone();
            let serve = move || {
                // The other node reports a broken connection.
                let _ = answer(stream, number);
                served.fetch_sub(1, Ordering::Relaxed);
            };
            if start("trial", serve).is_ok() {
                continue;
            }
        }
        served.fetch_sub(1, Ordering::Relaxed);
    }
}

fn answer(mut stream: TcpStream, number: u64) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    for _ in 0..=ROUNDS {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LARGE {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes)?;
        let head = [number.to_be_bytes(), wall_us().to_be_bytes()].concat();
        stream.write_all(&[head, bytes].concat())?;
    }
    Ok(())
}

fn wall_us() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as i64)
}

/// Tries the places, many at a time, for about 1.3 s if they do not answer.
pub fn try_all<'a>(places: impl IntoIterator<Item = &'a Place>) -> Vec<Outcome> {
    let places: Vec<&Place> = places.into_iter().collect();
    let broken =
        |place: &Place| FailedTry { fault: Fault::Broken, port: place.automatic_port, other_works: false };
    let try_some = |places: &[&Place]| {
        thread::scope(|scope| {
            let tries: Vec<_> = places.iter().map(|place| scope.spawn(|| try_place(place))).collect();
            let tries = tries.into_iter().zip(places);
            tries.map(|(it, place)| it.join().unwrap_or_else(|_| Err(broken(place)))).collect::<Vec<_>>()
        })
    };
    places.chunks(AT_ONCE).flat_map(try_some).collect()
}

fn try_place(place: &Place) -> Outcome {
    let results: Vec<(u16, Result<Works, Fault>)> = thread::scope(|scope| {
        let open = |port| SocketAddr::new(place.address, port);
        let begin = |port| (port, scope.spawn(move || try_port(open(port), place.number)));
        let tries: Vec<_> = place.ports().map(begin).collect();
        let tries = tries.into_iter();
        tries.map(|(port, tried)| (port, tried.join().unwrap_or(Err(Fault::Broken)))).collect()
    });
    let works = results.iter().find_map(|(_, result)| result.ok());
    let failed = results.iter().find_map(|(port, result)| Some((*port, result.err()?)));
    match (works, failed) {
        (Some(works), None) => Ok(works),
        (_, failed) => {
            let (port, fault) = failed.unwrap_or((place.automatic_port, Fault::Broken));
            Err(FailedTry { fault, port, other_works: works.is_some() })
        }
    }
}

/// Returns the shortest round trip.
fn try_port(address: SocketAddr, number: u64) -> Result<Works, Fault> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).map_err(|error| match error.kind() {
        ErrorKind::ConnectionRefused => Fault::Refused,
        ErrorKind::TimedOut => Fault::Silent,
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => Fault::Unreachable,
        _ => Fault::Broken,
    })?;
    let set = |stream: &TcpStream| -> io::Result<()> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))
    };
    set(&stream).map_err(|_| Fault::Broken)?;
    let mut best: Option<Works> = None;
    for _ in 0..ROUNDS {
        let round = exchange(&mut stream, 1, number).map_err(|fault| fault.unwrap_or(Fault::Silent))?;
        best = Some(best.filter(|best| best.round_trip_us <= round.round_trip_us).unwrap_or(round));
    }
    exchange(&mut stream, LARGE, number).map_err(|fault| fault.unwrap_or(Fault::LargeLost))?;
    best.ok_or(Fault::Broken)
}

/// As `write_all`; a part that is sent does not extend the time.
fn write_until(stream: &mut TcpStream, mut bytes: &[u8], until: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        stream.set_write_timeout(Some(left.max(Duration::from_millis(1))))?;
        bytes = &bytes[stream.write(bytes)?..];
    }
    Ok(())
}

/// Sends a message of this length, and checks the answer. `Err(None)`: no answer in time.
fn exchange(stream: &mut TcpStream, length: usize, number: u64) -> Result<Works, Option<Fault>> {
    let (begun, sent) = (Instant::now(), wall_us());
    let mut answer = vec![0; 16 + length];
    let message = [&(length as u32).to_be_bytes()[..], &vec![7; length]].concat();
    let until = begun + PATIENCE;
    let exchanged = write_until(stream, &message, until).and_then(|()| stream.read_exact(&mut answer));
    exchanged.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => None,
        _ => Some(Fault::Broken),
    })?;
    let round_trip_us = begun.elapsed().as_micros() as u64;
    let eight = |at: usize| <[u8; 8]>::try_from(&answer[at..at + 8]).unwrap_or_default();
    if u64::from_be_bytes(eight(0)) != number {
        return Err(Some(Fault::Stranger));
    }
    let ahead_us = i64::from_be_bytes(eight(8)).saturating_sub(sent + round_trip_us as i64 / 2);
    Ok(Works { round_trip_us, ahead_us })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn listen() -> (Listeners, Place) {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let listeners = Listeners::open(Some(port)).unwrap();
        let place = listeners.place(Ipv4Addr::LOCALHOST.into(), None);
        (listeners, place)
    }

    #[test]
    fn a_node_answers_at_both_ports_until_it_is_dropped() {
        let (listeners, place) = listen();
        let [Ok(Works { round_trip_us, ahead_us })] = try_all([&place])[..] else {
            panic!("{:?}", try_all([&place]));
        };
        assert!(ahead_us.unsigned_abs() <= round_trip_us.max(1000), "{ahead_us} us in {round_trip_us} us");
        drop(listeners);
        let refused =
            FailedTry { fault: Fault::Refused, port: place.worker_port.unwrap(), other_works: false };
        assert_eq!(try_place(&place), Err(refused));
    }

    #[test]
    fn each_fault_has_its_name() {
        let (_listeners, place) = listen();
        let fault = |place: &Place| try_place(place).unwrap_err();
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let half = Place { automatic_port: free, ..place.clone() };
        assert_eq!(fault(&half), FailedTry { fault: Fault::Refused, port: free, other_works: true });
        let other = Place { number: !place.number, ..place.clone() };
        let port = place.worker_port.unwrap();
        assert_eq!(fault(&other), FailedTry { fault: Fault::Stranger, port, other_works: false });
        assert_eq!(fault(&Place::closed(place.address)).fault, Fault::Refused);
        // A program that takes small messages and no large one.
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = deaf.local_addr().unwrap().port();
        thread::spawn(move || {
            let (mut stream, _) = deaf.accept().unwrap();
            for _ in 0..ROUNDS {
                stream.read_exact(&mut [0; 5]).unwrap();
                stream.write_all(&[[0; 16].as_slice(), &[7]].concat()).unwrap();
            }
            thread::sleep(Duration::from_secs(10));
        });
        assert_eq!(try_port(SocketAddr::new(place.address, port), 0), Err(Fault::LargeLost));
    }
}
