//! Connections between two nodes, tried with small and large messages.
//!
//! A node listens at two ports: one of those that dtrain gives to workers, and one that the system gives to
//! any program, as to Gloo and NCCL. A client sends a length and as many bytes; the node answers with its
//! number, its time and the same bytes.

use crate::launch::port::MasterPort;
use dtrain_common::random;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Larger than any packet, so that full packets travel both ways.
pub(super) const LARGE: usize = 128 << 10;
/// Small messages; the fastest counts.
const ROUNDS: usize = 5;
/// The time for a connection, and for each message.
const PATIENCE: Duration = Duration::from_millis(1500);
/// Nodes that one tries at a time, with two connections each.
const AT_ONCE: usize = 128;
/// Connections that a node serves at a time, and the time for each message of one.
const MOST: usize = 1024;
const IDLE: Duration = Duration::from_secs(4);

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    pub(super) address: IpAddr,
    /// A port for workers, and one of the system's.
    pub(super) ports: [u16; 2],
    /// A random number of this node's doctor.
    pub(super) number: u64,
}

/// Why a node cannot be used from another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Fault {
    Unreachable,
    Refused,
    /// No answer to the connection.
    Silent,
    /// Another node, or another program, answers.
    Stranger,
    /// Small messages are answered, large ones are not.
    LargeLost,
    Broken,
}

/// The result of trying one node.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Outcome {
    Works {
        round_trip_us: u64,
        /// By how much the other clock is ahead.
        ahead_us: i64,
    },
    Fails {
        fault: Fault,
        port: u16,
        /// Whether the node's other port works.
        other_works: bool,
    },
}

/// Listens on all addresses until the process ends.
pub(super) fn listen() -> anyhow::Result<Place> {
    let number = random::number();
    let served = Arc::new(AtomicUsize::new(0));
    let open = |port: u16| -> io::Result<u16> {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))?;
        let port = listener.local_addr()?.port();
        let served = served.clone();
        thread::Builder::new().spawn(move || accept(&listener, number, &served))?;
        Ok(port)
    };
    let ports = [open(MasterPort::choose()?.number)?, open(0)?];
    Ok(Place { address: Ipv4Addr::LOCALHOST.into(), ports, number })
}

fn accept(listener: &TcpListener, number: u64, served: &Arc<AtomicUsize>) {
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(Duration::from_millis(10));
            continue;
        };
        if served.fetch_add(1, Ordering::Relaxed) < MOST {
            let served = served.clone();
            let serve = move || {
                // The other node reports a broken connection.
                let _ = answer(stream, number);
                served.fetch_sub(1, Ordering::Relaxed);
            };
            if thread::Builder::new().spawn(serve).is_ok() {
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

/// Tries all places, many at a time.
pub(super) fn try_all(places: &[Place]) -> Vec<Outcome> {
    let broken =
        |place: &Place| Outcome::Fails { fault: Fault::Broken, port: place.ports[0], other_works: false };
    let try_some = |places: &[Place]| {
        thread::scope(|scope| {
            let tries: Vec<_> = places.iter().map(|place| scope.spawn(|| try_place(place))).collect();
            let tries = tries.into_iter().zip(places);
            tries.map(|(it, place)| it.join().unwrap_or_else(|_| broken(place))).collect::<Vec<_>>()
        })
    };
    places.chunks(AT_ONCE).flat_map(try_some).collect()
}

fn try_place(place: &Place) -> Outcome {
    let results = thread::scope(|scope| {
        let open = |port| SocketAddr::new(place.address, port);
        let tries = place.ports.map(|port| scope.spawn(move || try_port(open(port), place.number)));
        tries.map(|tried| tried.join().unwrap_or(Err(Fault::Broken)))
    });
    match results {
        [Ok((round_trip_us, ahead_us)), Ok(_)] => Outcome::Works { round_trip_us, ahead_us },
        [Err(fault), other] => Outcome::Fails { fault, port: place.ports[0], other_works: other.is_ok() },
        [Ok(_), Err(fault)] => Outcome::Fails { fault, port: place.ports[1], other_works: true },
    }
}

/// Returns the shortest round trip and by how much the other clock is ahead, in microseconds.
fn try_port(address: SocketAddr, number: u64) -> Result<(u64, i64), Fault> {
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
    let mut best: Option<(u64, i64)> = None;
    for _ in 0..ROUNDS {
        let round = exchange(&mut stream, 1, number).map_err(|fault| fault.unwrap_or(Fault::Silent))?;
        best = Some(best.map_or(round, |best| best.min(round)));
    }
    exchange(&mut stream, LARGE, number).map_err(|fault| fault.unwrap_or(Fault::LargeLost))?;
    best.ok_or(Fault::Broken)
}

/// Sends a message of this length, and checks the answer. `Err(None)`: no answer in time.
fn exchange(stream: &mut TcpStream, length: usize, number: u64) -> Result<(u64, i64), Option<Fault>> {
    let (begun, sent) = (Instant::now(), wall_us());
    let mut answer = vec![0; 16 + length];
    let message = [&(length as u32).to_be_bytes()[..], &vec![7; length]].concat();
    let exchanged = stream.write_all(&message).and_then(|()| stream.read_exact(&mut answer));
    exchanged.map_err(|error| match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => None,
        _ => Some(Fault::Broken),
    })?;
    let round_trip = begun.elapsed().as_micros() as u64;
    let eight = |at: usize| <[u8; 8]>::try_from(&answer[at..at + 8]).unwrap_or_default();
    if u64::from_be_bytes(eight(0)) != number {
        return Err(Some(Fault::Stranger));
    }
    Ok((round_trip, i64::from_be_bytes(eight(8)).saturating_sub(sent + round_trip as i64 / 2)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_node_answers_at_both_ports() {
        let place = listen().unwrap();
        let [Outcome::Works { round_trip_us, ahead_us }] = try_all(std::slice::from_ref(&place))[..] else {
            panic!("{:?}", try_all(&[place]));
        };
        assert!(ahead_us.unsigned_abs() <= round_trip_us.max(1000), "{ahead_us} us in {round_trip_us} us");
    }

    #[test]
    fn each_fault_has_its_name() {
        let place = listen().unwrap();
        let fault = |place: &Place| match try_place(place) {
            Outcome::Fails { fault, port, other_works } => (fault, port, other_works),
            works => panic!("{works:?}"),
        };
        let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let half = Place { ports: [place.ports[0], free], ..place.clone() };
        assert_eq!(fault(&half), (Fault::Refused, free, true));
        let other = Place { number: !place.number, ..place.clone() };
        assert_eq!(fault(&other), (Fault::Stranger, place.ports[0], false));
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
