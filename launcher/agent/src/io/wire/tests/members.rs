//! The causes for which a member has no connection.

use super::harness::{Leader, Member};
use super::*;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::thread;

fn cause(host: &str, port: u16) -> ConnectError {
    let began = Instant::now();
    let reason = Member::at(host, port, &Secret::none()).expect_failure();
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    reason
}

#[test]
fn the_cause_is_named_within_two_seconds() {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    assert_eq!(cause("127.0.0.1", free), ConnectError::Refused);
    assert_eq!(cause("localhost", free), ConnectError::Refused);
    let unknown = cause("no-such-host.invalid", free);
    assert!(matches!(unknown, ConnectError::Unresolvable(_)), "{unknown}");
    // A process that listens, but does not accept.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    assert_eq!(cause("127.0.0.1", silent.local_addr().unwrap().port()), ConnectError::Silent);
}

#[test]
fn other_programs_at_the_port_are_named() {
    for (bytes, reason) in [
        (&b"SSH-2.0-OpenSSH\r\n"[..], ConnectError::NotALeader),
        (b"dtrain\0\x01\x63", ConnectError::NotALeader),
        (b"dtr", ConnectError::Closed),
        (b"", ConnectError::Closed),
    ] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::spawn(move || {
            for socket in listener.incoming() {
                let _ = socket.unwrap().write_all(bytes);
            }
        });
        assert_eq!(cause("127.0.0.1", port), reason);
    }
}

#[test]
fn each_cause_is_named_once_and_the_member_connects_when_the_leader_comes() {
    let bound = BoundServer::bind(&[(Ipv4Addr::LOCALHOST, 0).into()]).unwrap();
    let address = bound.addresses().unwrap()[0];
    drop(bound);
    let member = Member::at("localhost", address.port(), &Secret::none());
    assert_eq!(member.expect_failure(), ConnectError::Refused);
    member.expect_nothing(Duration::from_millis(300));
    let leader = Leader::serve(BoundServer::bind(&[address]).unwrap(), &Secret::none(), Limits::default());
    let came = Instant::now();
    member.expect_connected();
    assert!(came.elapsed() < Duration::from_secs(1));
    drop(leader);
    assert!(matches!(member.next(), ClientEvent::Disconnected { .. }));
    assert_eq!(member.expect_failure(), ConnectError::Refused);
    let began = Instant::now();
    member.client.end();
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[test]
fn a_leader_that_closes_each_connection_is_not_asked_without_end() {
    let leader = Leader::new(&Secret::none());
    let _member = Member::new(&leader, &Secret::none());
    let began = Instant::now();
    let mut count = 0;
    while began.elapsed() < Duration::from_millis(700) {
        if let Ok(ServerEvent::Opened { id, .. }) = leader.events.recv_timeout(Duration::from_millis(10)) {
            count += 1;
            leader.server.close(id);
        }
    }
    // Pauses of 20, 40, 80, 160 and 320 milliseconds.
    assert!((2..=6).contains(&count), "{count}");
}

#[test]
fn the_member_connects_from_its_source_address() {
    let leader = Leader::new(&Secret::none());
    let from =
        |source: IpAddr| Member::from("127.0.0.1", leader.address.port(), &Secret::none(), Some(source));
    let member = from(Ipv4Addr::new(127, 0, 0, 5).into());
    let (local, _) = member.expect_connected();
    assert_eq!(local.ip(), Ipv4Addr::new(127, 0, 0, 5));
    assert_eq!(leader.expect_opened().1, local);
    // From the block reserved for documentation.
    let foreign = Ipv4Addr::new(192, 0, 2, 1).into();
    let reason = from(foreign).expect_failure();
    assert_eq!(reason, ConnectError::Source(foreign, std::io::ErrorKind::AddrNotAvailable));
    let reason = from(Ipv6Addr::LOCALHOST.into()).expect_failure();
    assert_eq!(reason, ConnectError::Family(Ipv6Addr::LOCALHOST.into()));
}
