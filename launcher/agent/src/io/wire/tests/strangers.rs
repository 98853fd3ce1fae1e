//! Connections that must not disturb the members, and are named.

use super::super::handshake::{Handshake, Refusal, VERSION};
use super::harness::{Leader, Member, SECRET, client, expect_end, finish, secret};
use super::*;
use crate::io::store::BoundPort;
use rustix::process::{Resource, getrlimit};
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::thread;

fn greeting(secret: &Secret) -> Vec<u8> {
    Handshake::begin(secret).unwrap().1
}

#[test]
fn a_difference_of_secrets_is_named_on_both_sides() {
    let (key, other, none) = (secret(SECRET), secret("another secret of tests"), Secret::none());
    for (of_leader, of_member, refusal) in [
        (&key, &other, Refusal::WrongSecret),
        (&key, &none, Refusal::SecretMissing),
        (&none, &key, Refusal::SecretUnexpected),
    ] {
        let leader = Leader::new(of_leader);
        let member = Member::new(&leader, of_member);
        leader.expect_stranger(StrangerReason::Refused(refusal));
        let reason = member.expect_failure();
        assert_eq!(reason, ConnectError::Rejected(refusal));
        assert!(reason.is_permanent());
        member.expect_nothing(Duration::from_millis(100));
        member.client.reconnect();
        assert_eq!(member.expect_failure(), reason);
        leader.expect_nothing();
    }
}

#[test]
fn a_difference_of_versions_is_named_on_both_sides() {
    let leader = Leader::new(&Secret::none());
    let mut stranger = TcpStream::connect(leader.address).unwrap();
    let mut newer = greeting(&Secret::none());
    newer[6..8].copy_from_slice(&513_u16.to_be_bytes());
    stranger.write_all(&newer[..8]).unwrap();
    let answer = expect_end(&mut stranger);
    leader.expect_stranger(StrangerReason::Refused(Refusal::Version(513)));
    let refusal = Handshake::is_answered(&answer).unwrap_err();
    assert_eq!(ConnectError::from(refusal), ConnectError::Rejected(Refusal::Version(VERSION)));
    let mut from_newer = answer;
    from_newer[6..8].copy_from_slice(&513_u16.to_be_bytes());
    let refusal = ConnectError::from(Handshake::is_answered(&from_newer).unwrap_err());
    assert_eq!(refusal, ConnectError::Rejected(Refusal::Version(513)));
    assert!(refusal.is_permanent());
}

#[test]
fn a_replayed_handshake_opens_no_connection() {
    let key = secret(SECRET);
    let leader = Leader::new(&key);
    let (handshake, mut recorded) = Handshake::begin(&key).unwrap();
    let mut socket = TcpStream::connect(leader.address).unwrap();
    socket.write_all(&recorded).unwrap();
    let mut raw = finish(handshake, &mut socket);
    let frames = raw.frame(b"\"join\"");
    socket.write_all(&frames).unwrap();
    leader.expect_opened();
    assert_eq!(leader.expect_message().1, "join");
    recorded.extend(frames);
    for _ in 0..3 {
        let mut replay = TcpStream::connect(leader.address).unwrap();
        replay.write_all(&recorded).unwrap();
        expect_end(&mut replay);
    }
    leader.expect_stranger(StrangerReason::MalformedFrame);
    leader.expect_nothing();
    raw.send(&mut socket, b"\"still open\"");
    assert_eq!(leader.expect_message().1, "still open");
}

#[test]
fn a_connection_opens_with_its_first_frame_only() {
    let leader = Leader::new(&secret(SECRET));
    let (mut raw, mut socket) = client(leader.address, &secret(SECRET));
    leader.expect_nothing();
    raw.send(&mut socket, b"\"first\"");
    leader.expect_opened();
    leader.expect_message();
}

#[test]
fn other_programs_are_closed_and_named_once() {
    let leader = Leader::new(&secret(SECRET));
    for _ in 0..3 {
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b"dtrain\0\x01\x07", b"x"] {
            let mut stranger = TcpStream::connect(leader.address).unwrap();
            stranger.write_all(bytes).unwrap();
            assert!(expect_end(&mut stranger).is_empty());
        }
    }
    leader.expect_stranger(StrangerReason::OtherProtocol);
    drop(TcpStream::connect(leader.address).unwrap());
    leader.expect_stranger(StrangerReason::Silent);
    let mut stranger = TcpStream::connect(leader.address).unwrap();
    stranger.write_all(&greeting(&secret(SECRET))[..20]).unwrap();
    stranger.shutdown(Shutdown::Write).unwrap();
    leader.expect_stranger(StrangerReason::Unfinished);
    leader.expect_nothing();
}

#[test]
fn slow_peers_are_closed_at_their_deadline_and_members_are_served() {
    let key = secret(SECRET);
    let short = Duration::from_millis(600);
    let leader = Leader::limited(&key, Limits { handshake: short, frame: short, ..Limits::default() });
    let member = Member::new(&leader, &key);
    leader.expect_opened();
    let (mut raw, mut slow) = client(leader.address, &key);
    raw.send(&mut slow, b"\"before\"");
    let (id, ..) = leader.expect_opened();
    leader.expect_message();
    let rest = raw.frame(b"\"a long message\"");
    let (_handshaken, open) = client(leader.address, &key);
    let silent = TcpStream::connect(leader.address).unwrap();
    let began = Instant::now();
    let drip = |mut socket: TcpStream, bytes: Vec<u8>| {
        thread::spawn(move || {
            for byte in bytes {
                thread::sleep(Duration::from_millis(100));
                if socket.write_all(&[byte]).is_err() {
                    break;
                }
            }
        })
    };
    let mut greeter = TcpStream::connect(leader.address).unwrap();
    let drips = [drip(slow.try_clone().unwrap(), rest), drip(greeter.try_clone().unwrap(), greeting(&key))];
    let (mut open, mut silent) = (open, silent);
    let waiting = [&mut open, &mut silent, &mut greeter, &mut slow];
    let mut events = Vec::new();
    while began.elapsed() < Duration::from_millis(1500) {
        let sent = Instant::now();
        member.client.send(&"beat".to_owned()).unwrap();
        while let event = leader.next()
            && event != (ServerEvent::Received { id: 1, message: "beat".to_owned() })
        {
            events.push((began.elapsed(), event));
        }
        assert!(sent.elapsed() < Duration::from_millis(500), "{:?}", sent.elapsed());
        thread::sleep(Duration::from_millis(10));
    }
    waiting.into_iter().for_each(|socket| drop(expect_end(socket)));
    drips.into_iter().for_each(|drip| drip.join().unwrap());
    assert_eq!(events.len(), 3, "{events:?}");
    assert!(events.iter().all(|(when, _)| *when > short * 4 / 5 && *when < short * 2), "{events:?}");
    let had = |wanted: ServerEvent<String>| events.iter().any(|(_, event)| *event == wanted);
    let stranger = |reason| ServerEvent::Stranger { peer: leader.address.ip(), reason };
    assert!(had(stranger(StrangerReason::Silent)) && had(stranger(StrangerReason::Slow)), "{events:?}");
    assert!(had(ServerEvent::Closed { id, reason: CloseReason::Slow }), "{events:?}");
}

#[test]
fn two_thousand_idle_strangers_disturb_nothing() {
    let key = secret(SECRET);
    let leader = Leader::new(&key);
    let member = Member::new(&leader, &key);
    member.expect_connected();
    leader.expect_opened();
    // Both ends of the connections belong to this process.
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let count = (files / 4).min(2000) as usize;
    let mut idle = Vec::new();
    for number in 0..count {
        idle.push(TcpStream::connect(leader.address).unwrap());
        if number % 100 == 0 {
            let sent = Instant::now();
            member.client.send(&"beat".to_owned()).unwrap();
            while !matches!(leader.next(), ServerEvent::Received { .. }) {}
            assert!(sent.elapsed() < Duration::from_millis(500), "{:?}", sent.elapsed());
        }
    }
    let late = Member::new(&leader, &key);
    late.expect_connected();
    let closed = idle.iter_mut().take(count.saturating_sub(300));
    // The oldest ones get the reason.
    for socket in closed {
        let refusal = Handshake::is_answered(&expect_end(socket)).unwrap_err();
        assert_eq!(ConnectError::from(refusal), ConnectError::Rejected(Refusal::TooMany));
    }
    let last = idle.last_mut().unwrap();
    last.set_nonblocking(true).unwrap();
    assert!(last.read(&mut [0]).is_err());
}

#[test]
fn members_above_the_limit_are_refused() {
    let leader = Leader::limited(&Secret::none(), Limits { members: 1, ..Limits::default() });
    let member = Member::new(&leader, &Secret::none());
    member.expect_connected();
    leader.expect_opened();
    let second = Member::new(&leader, &Secret::none());
    let reason = second.expect_failure();
    assert_eq!(reason, ConnectError::Rejected(Refusal::TooMany));
    assert!(!reason.is_permanent());
    leader.expect_stranger(StrangerReason::Refused(Refusal::TooMany));
    member.client.end();
    leader.next();
    second.expect_connected();
}

#[test]
fn clients_of_the_store_are_passed_to_it() {
    let key = secret(SECRET);
    let leader = Leader::new(&key);
    let store = BoundPort::bind(&[], 0).unwrap().serve(|text| panic!("{text}")).unwrap();
    // A greeting, and a ping with four bytes.
    let requests = [&[0][..], &0x3C85_F7CE_u32.to_ne_bytes(), b"\x0dping"].concat();
    let connect = |first: usize| {
        let mut client = TcpStream::connect(leader.address).unwrap();
        client.set_nodelay(true).unwrap();
        for part in [&requests[..first], &requests[first..]] {
            client.write_all(part).unwrap();
            thread::sleep(Duration::from_millis(20));
        }
        client
    };
    expect_end(&mut connect(requests.len()));
    leader.expect_stranger(StrangerReason::OtherProtocol);
    leader.server.set_store(Some(store.handle()));
    for first in [requests.len(), 1, 3, 7] {
        let mut answer = [0; 4];
        connect(first).read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"ping");
    }
    leader.server.set_store(None);
    assert!(expect_end(&mut connect(requests.len())).is_empty());
    leader.expect_nothing();
    assert!(!store.end().only_strangers());
}
