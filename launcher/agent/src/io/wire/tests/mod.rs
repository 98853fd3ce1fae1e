#![allow(clippy::unwrap_used)]

mod frames;
mod harness;
mod load;
mod members;
mod network;
mod soak;
mod strangers;

use super::*;
use harness::{Leader, Member, SECRET, client, secret};
use std::time::{Duration, Instant};

#[test]
fn messages_arrive_in_order_both_ways() {
    for key in [secret(SECRET), Secret::none()] {
        let leader = Leader::new(&key);
        let member = Member::new(&leader, &key);
        let (local, peer) = member.expect_connected();
        assert_eq!((1, local, peer), leader.expect_opened());
        for number in 0..500 {
            member.client.send(&format!("up {number}")).unwrap();
            leader.server.send(1, &format!("down {number}")).unwrap();
        }
        for number in 0..500 {
            assert_eq!(leader.expect_message(), (1, format!("up {number}")));
            assert_eq!(member.expect_message(), format!("down {number}"));
        }
    }
}

#[test]
fn the_longest_message_arrives_and_a_longer_one_is_an_error() {
    let leader = Leader::new(&Secret::none());
    let member = Member::new(&leader, &Secret::none());
    member.expect_connected();
    leader.expect_opened();
    // With its quotes, the frame has 64 KiB.
    let longest = "x".repeat((64 << 10) - 2 - 16 - 2);
    for _ in 0..20 {
        member.client.send(&longest).unwrap();
        leader.server.send(1, &longest).unwrap();
    }
    for _ in 0..20 {
        assert_eq!(leader.expect_message().1, longest);
        assert_eq!(member.expect_message(), longest);
    }
    let error = member.client.send(&format!("{longest}x")).unwrap_err();
    assert!(matches!(error, SendError::TooLong { bytes: 65_519 }), "{error}");
    assert!(leader.server.send(1, &"\"".repeat(40_000)).is_err());
}

#[test]
fn a_lost_connection_is_reported_at_once_and_opened_again() {
    let leader = Leader::new(&Secret::none());
    let member = Member::new(&leader, &Secret::none());
    leader.expect_opened();
    member.client.reconnect();
    assert_eq!(leader.next(), ServerEvent::Closed { id: 1, reason: CloseReason::Ended });
    assert_eq!(leader.expect_opened().0, 2);
    member.expect_connected();
    assert_eq!(member.next(), ClientEvent::Disconnected { reason: CloseReason::Requested });
    member.expect_connected();
    leader.server.close(2);
    assert_eq!(member.next(), ClientEvent::Disconnected { reason: CloseReason::Ended });
    assert_eq!(leader.next(), ServerEvent::Closed { id: 2, reason: CloseReason::Requested });
    member.expect_connected();
    leader.expect_opened();
    let began = Instant::now();
    drop(member);
    assert!(matches!(leader.next(), ServerEvent::Closed { id: 3, .. }));
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[test]
fn queued_messages_are_sent_at_the_end_of_both_sides() {
    let text = "x".repeat(50_000);
    let leader = Leader::new(&Secret::none());
    let member = Member::new(&leader, &Secret::none());
    leader.expect_opened();
    let second = Member::new(&leader, &Secret::none());
    let (id, ..) = leader.expect_opened();
    second.expect_connected();
    for _ in 0..20 {
        member.client.send(&text).unwrap();
    }
    member.client.end();
    for _ in 0..20 {
        assert_eq!(leader.expect_message().1, text);
    }
    assert!(matches!(leader.next(), ServerEvent::Closed { reason: CloseReason::Ended, .. }));
    for _ in 0..20 {
        // The leader does not read the member's messages at its end.
        second.client.send(&text).unwrap();
        leader.server.send(id, &text).unwrap();
    }
    leader.server.end();
    for _ in 0..20 {
        assert_eq!(second.expect_message(), text);
    }
    assert!(matches!(second.next(), ClientEvent::Disconnected { .. }));
}

#[test]
fn the_end_does_not_wait_for_a_peer_that_does_not_read() {
    let leader = Leader::new(&Secret::none());
    let (mut noise, mut socket) = client(leader.address, &Secret::none());
    noise.send(&mut socket, b"");
    leader.expect_opened();
    for _ in 0..60 {
        leader.server.send(1, &"x".repeat(60_000)).unwrap();
    }
    let began = Instant::now();
    leader.server.end();
    assert!(began.elapsed() < Duration::from_millis(1500), "{:?}", began.elapsed());
}

#[test]
fn a_member_that_does_not_read_is_closed_and_others_are_served() {
    let leader = Leader::new(&Secret::none());
    let member = Member::new(&leader, &Secret::none());
    member.expect_connected();
    leader.expect_opened();
    let (mut noise, mut socket) = client(leader.address, &Secret::none());
    noise.send(&mut socket, b"");
    let (deaf, ..) = leader.expect_opened();
    let text = "x".repeat(60_000);
    // The system's buffers take some megabytes.
    for _ in 0..400 {
        leader.server.send(deaf, &text).unwrap();
    }
    leader.server.send(1, &"still here".to_owned()).unwrap();
    assert_eq!(leader.next(), ServerEvent::Closed { id: deaf, reason: CloseReason::QueueFull });
    assert_eq!(member.expect_message(), "still here");
}

#[test]
fn a_port_is_free_after_the_end_and_serves_both_families() {
    let bound = BoundServer::bind(&["[::]:0".parse().unwrap()]).unwrap();
    let port = bound.addresses().unwrap()[0].port();
    let leader = Leader::serve(bound, &Secret::none(), Limits::default());
    for host in ["127.0.0.1", "::1", "localhost"] {
        let member = Member::at(host, port, &Secret::none());
        let (local, peer) = member.expect_connected();
        let (_, from, to) = leader.expect_opened();
        assert_eq!((local, peer), (from, to), "{host}");
        member.client.end();
        assert!(matches!(leader.next(), ServerEvent::Closed { .. }));
    }
    leader.server.end();
    let addresses =
        ["0.0.0.0", "::"].map(|address| std::net::SocketAddr::new(address.parse().unwrap(), port));
    BoundServer::bind(&addresses).unwrap();
}
