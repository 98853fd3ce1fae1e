//! Faults of a network between the leader and a member.

use super::harness::{Leader, Member, SECRET, secret};
use super::*;
use dtrain_test_kit::network::Network;

const PORT: u16 = 7777;

#[test]
fn faults_of_the_network_are_named_and_survived() {
    let Ok(network) = Network::new(2) else {
        return;
    };
    let key = secret(SECRET);
    let serve = || {
        let bound = BoundServer::bind(&[format!("[::]:{PORT}").parse().unwrap()]).unwrap();
        Leader::serve(bound, &key, Limits::default())
    };
    let leader = network[0].in_thread(serve);
    let join = |host: &str| network[1].in_thread(|| Member::at(host, PORT, &key));

    let began = Instant::now();
    let lost = join("192.0.2.1");
    assert_eq!(lost.expect_failure(), ConnectError::Unreachable);
    network[0].block_ports(PORT..=PORT);
    let member = join("10.77.0.1");
    assert_eq!(member.expect_failure(), ConnectError::TimedOut);
    assert!(began.elapsed() < Duration::from_millis(2500), "{:?}", began.elapsed());
    network[0].unblock();
    let (local, peer) = member.expect_connected();
    assert_eq!((local.ip(), peer.ip()), (network[1].address, network[0].address));
    assert_eq!(leader.expect_opened(), (1, local, peer));

    let reset = Instant::now();
    network[1].reset_connections();
    let reason = CloseReason::Lost(std::io::ErrorKind::ConnectionReset);
    assert_eq!(leader.next(), ServerEvent::Closed { id: 1, reason });
    assert!(matches!(
        member.next(),
        ClientEvent::Disconnected { reason: CloseReason::Lost(_) | CloseReason::Ended }
    ));
    member.expect_connected();
    leader.expect_opened();
    assert!(reset.elapsed() < Duration::from_secs(1), "{:?}", reset.elapsed());

    network.cut(&[1]);
    member.client.send(&"late".to_owned()).unwrap();
    leader.expect_nothing();
    network.heal();
    assert_eq!(leader.expect_message(), (2, "late".to_owned()));
    network[1].lose_large_packets(1000);
    member.client.send(&"x".repeat(10_000)).unwrap();
    leader.expect_nothing();
    network[1].unblock();
    assert_eq!(leader.expect_message().1.len(), 10_000);
}
