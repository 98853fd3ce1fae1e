//! Bytes that come in any pieces, or are changed on their way.

use super::super::handshake::{Handshake, answer};
use super::super::session::Session;
use super::harness::{Leader, Raw, SECRET, client, expect_end, secret};
use super::*;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::io::Write;
use std::net::TcpStream;

/// Returns a client and a server that have completed their handshake.
fn pair() -> (Raw, Session) {
    let key = secret(SECRET);
    let (handshake, greeting) = Handshake::begin(&key).unwrap();
    let mut server = answer(&greeting, &key).unwrap().unwrap();
    let client = handshake.finish(&server.outbox.take()).unwrap();
    (Raw(client), server)
}

/// Passes bytes in pieces. Returns the messages, and the error if there is one.
fn pass(server: &mut Session, bytes: &[u8], cuts: &[usize]) -> (Vec<Vec<u8>>, Option<CloseReason>) {
    let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut % (bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    let mut messages = Vec::new();
    for piece in cuts.windows(2) {
        server.receive(&bytes[piece[0]..piece[1]]);
        loop {
            match server.next() {
                Ok(Some(message)) => messages.push(message),
                Ok(None) => break,
                Err(reason) => return (messages, Some(reason)),
            }
        }
    }
    (messages, None)
}

fn messages() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let length = prop_oneof![0_usize..50, 0_usize..3000];
    proptest::collection::vec(length.prop_map(|length| vec![b'x'; length]), 0..8)
}

proptest! {
    #[test]
    fn frames_in_any_pieces_arrive_whole(sent in messages(), cuts: Vec<usize>) {
        let (mut client, mut server) = pair();
        let mut bytes = client.0.outbox.take();
        sent.iter().for_each(|message| bytes.extend(client.frame(message)));
        let (mut received, fault) = pass(&mut server, &bytes, &cuts);
        prop_assert_eq!(received.remove(0), b"");
        prop_assert_eq!(received, sent);
        prop_assert!(fault.is_none() && !server.is_partial());
    }

    #[test]
    fn a_changed_frame_and_later_ones_do_not_arrive(
        sent in messages(), cuts: Vec<usize>, place: usize, bit in 0_u32..8
    ) {
        let (mut client, mut server) = pair();
        let mut bytes = client.0.outbox.take();
        let mut ends = vec![bytes.len()];
        for message in &sent {
            bytes.extend(client.frame(message));
            ends.push(bytes.len());
        }
        let place = place % bytes.len();
        bytes[place] ^= 1_u8 << bit;
        let (received, fault) = pass(&mut server, &bytes, &cuts);
        // A changed length may make the frame longer than what has come.
        prop_assert!(fault == Some(CloseReason::Malformed) || server.is_partial());
        prop_assert_eq!(received.len(), ends.iter().filter(|end| **end <= place).count());
    }

    #[test]
    fn random_bytes_are_never_a_message(bytes: Vec<u8>, cuts: Vec<usize>) {
        let (_, mut server) = pair();
        prop_assert!(pass(&mut server, &bytes, &cuts).0.is_empty());
    }

    #[test]
    fn a_changed_greeting_or_answer_is_refused(place in 0_usize..57, bit in 0_u32..8) {
        let key = secret(SECRET);
        let (handshake, mut greeting) = Handshake::begin(&key).unwrap();
        let mut reply = answer(&greeting, &key).unwrap().unwrap().outbox.take();
        reply[place] ^= 1_u8 << bit;
        let is_answered = Handshake::is_answered(&reply);
        prop_assert!(is_answered.is_err() || handshake.finish(&reply).is_err());
        greeting[place] ^= 1_u8 << bit;
        prop_assert!(answer(&greeting, &key).is_err());
    }

    #[test]
    fn random_greetings_and_answers_are_never_accepted(
        prefix in 0_usize..57, bytes in proptest::collection::vec(any::<u8>(), 0..100)
    ) {
        let key = secret(SECRET);
        let (handshake, greeting) = Handshake::begin(&key).unwrap();
        let changed = [&greeting[..prefix], &bytes].concat();
        prop_assume!(!changed.starts_with(&greeting));
        prop_assert!(!matches!(answer(&changed, &key), Ok(Some(_))));
        let reply = answer(&greeting, &key).unwrap().unwrap().outbox.take();
        let changed = [&reply[..prefix], &bytes].concat();
        prop_assume!(!changed.starts_with(&reply));
        if let Ok(true) = Handshake::is_answered(&changed) {
            prop_assert!(handshake.finish(&changed).is_err());
        }
    }
}

#[test]
fn a_changed_frame_closes_the_connection_of_a_member() {
    let leader = Leader::new(&secret(SECRET));
    let (mut raw, mut socket) = client(leader.address, &secret(SECRET));
    raw.send(&mut socket, b"\"good\"");
    let (id, ..) = leader.expect_opened();
    leader.expect_message();
    let mut frame = raw.frame(b"\"changed\"");
    frame[9] ^= 4;
    socket.write_all(&frame).unwrap();
    expect_end(&mut socket);
    assert_eq!(leader.next(), ServerEvent::Closed { id, reason: CloseReason::Malformed });
}

#[test]
fn a_message_of_another_type_closes_the_connection() {
    let leader = Leader::new(&Secret::none());
    for text in ["7", "{", "\"two\" \"texts\""] {
        let (mut raw, mut socket) = client(leader.address, &Secret::none());
        raw.send(&mut socket, text.as_bytes());
        let (id, ..) = leader.expect_opened();
        expect_end(&mut socket);
        assert_eq!(leader.next(), ServerEvent::Closed { id, reason: CloseReason::Malformed });
    }
}

/// `DTRAIN_FUZZ_WIRE` is the number of cases, `DTRAIN_FUZZ_SEED` a number for other cases.
#[test]
fn random_bytes_at_every_stage_open_nothing() {
    let number = |name, or| std::env::var(name).map_or(or, |number| number.parse::<u64>().unwrap());
    let (count, seed) = (number("DTRAIN_FUZZ_WIRE", 300), number("DTRAIN_FUZZ_SEED", 0));
    let seed = [seed.to_be_bytes(); 4].concat();
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let key = secret(SECRET);
    let leader = Leader::new(&key);
    let (mut member, mut open) = client(leader.address, &key);
    member.send(&mut open, b"\"first\"");
    leader.expect_opened();
    leader.expect_message();
    for case in 0..count {
        let mut garbage = vec![0; random.random_range(1..200)];
        random.fill_bytes(&mut garbage);
        let mut socket = match random.random_range(0..3) {
            // In place of the greeting, or after a part of it.
            0 | 1 => {
                let mut socket = TcpStream::connect(leader.address).unwrap();
                let (_, greeting) = Handshake::begin(&key).unwrap();
                let _ = socket.write_all(&greeting[..random.random_range(0..greeting.len())]);
                socket
            }
            // In place of the first frame.
            _ => client(leader.address, &key).1,
        };
        let _ = socket.write_all(&garbage);
        drop(socket);
        member.send(&mut open, format!("\"{case}\"").as_bytes());
        loop {
            match leader.next() {
                ServerEvent::Stranger { .. } | ServerEvent::MoreStrangers => {}
                ServerEvent::Received { id: 1, message } if message == case.to_string() => break,
                other => panic!("{other:?}"),
            }
        }
    }
}
