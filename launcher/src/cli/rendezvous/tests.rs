#![allow(clippy::unwrap_used)]

use super::super::contract::tests::{notes, refused};
use super::super::parse::launch_words;
use super::*;
use proptest::prelude::*;

fn read(line: &[&str]) -> Result<RendezvousArgs, clap::Error> {
    launch_words(line).map(|args| args.contract.rendezvous)
}

#[track_caller]
fn several(line: &[&str]) -> Rendezvous {
    assert_eq!(notes(line), [""; 0], "{line:?}");
    read(line).unwrap().rendezvous().unwrap().unwrap()
}

#[test]
fn of_two_rendezvous_addresses_torchruns_choice_counts() {
    let endpoint = "--rdzv-endpoint=localhost:1";
    for (line, weaker, stronger, port) in [
        (&["--standalone", endpoint][..], "--rdzv-endpoint", "--standalone", None),
        (&["--master-addr=a", endpoint], "--master-addr", "--rdzv-endpoint", Some(1)),
        (&["--master-port=2", endpoint], "--master-port", "--rdzv-endpoint", Some(1)),
        (&["--local-addr=a", endpoint], "--local-addr", "--rdzv-endpoint", Some(1)),
        (&["--local-addr=b", "--master-addr=localhost"], "--local-addr", "--master-addr", None),
    ] {
        assert_eq!(notes(line), [format!("{weaker} is ignored: {stronger} overrides it")], "{line:?}");
        let args = read(line).unwrap();
        assert_eq!(args.port().map(|(_, port)| port), port, "{line:?}");
        let host = args.host().map(|(_, host)| host);
        assert_eq!(host, (!args.standalone).then_some("localhost"), "{line:?}");
    }
}

#[test]
fn one_node_needs_no_rendezvous() {
    refused(&["--standalone", "--nnodes=1:2"], &["--standalone", "--nnodes 1:2", "contradict each other"]);
    refused(&["--node-rank", "1"], &["--node-rank 1", "--nnodes"]);
    refused(&["--rdzv-secret", "f"], &["--rdzv-secret has no effect on one node"]);
    refused(&["--nnodes", "-1"], &["--nnodes", "MIN:MAX"]);
    refused(&["--node-rank", "-1"], &["--node-rank"]);
    for line in [
        &["--nnodes=1"][..],
        &["--nnodes=1:1", "--node-rank=0"],
        &["--standalone", "--nnodes=1"],
        &["--rdzv-backend=static"],
        &["--rdzv-conf="],
        &[],
    ] {
        assert_eq!(notes(line), Vec::<String>::new(), "{line:?}");
        assert_eq!(read(line).unwrap().rendezvous().unwrap(), None, "{line:?}");
    }
}

#[test]
fn settings_without_use_on_one_node_are_named() {
    for (line, flag) in [
        (&["--rdzv-backend", "c10d"][..], "--rdzv-backend c10d"),
        (&["--rdzv-conf", "timeout=9,is_host=1"], "--rdzv-conf timeout=9 is ignored"),
        (
            &["--rdzv-conf", "is_host=0,store_type=file,own=x"],
            "--rdzv-conf is_host=0, store_type=file, own=x is ignored",
        ),
    ] {
        let notes = notes(line);
        assert!(notes.len() == 1 && notes[0].starts_with(flag), "{notes:?}");
    }
}

#[test]
fn torchruns_static_form_is_led_by_node_0() {
    let line = ["--nnodes=2", "--node-rank=1", "--master-addr=10.0.0.1", "--master-port=1234"];
    let rendezvous = several(&line);
    assert_eq!((rendezvous.endpoint.host.as_str(), rendezvous.endpoint.port), ("10.0.0.1", 1234));
    assert_eq!((rendezvous.leads, rendezvous.node_rank), (Some(false), Some(1)));
    let leader = several(&["--nnodes=2", "--node-rank=0"]);
    assert_eq!(
        (leader.endpoint.host.as_str(), leader.endpoint.port, leader.leads),
        ("127.0.0.1", STATIC_PORT, Some(true))
    );
}

#[test]
fn torchruns_c10d_form_is_led_by_the_node_at_the_endpoint() {
    let line = ["--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=head", "--rdzv-id=7"];
    let rendezvous = several(&line);
    assert_eq!(
        (rendezvous.endpoint.host.as_str(), rendezvous.endpoint.port, rendezvous.leads),
        ("head", C10D_PORT, None)
    );
    assert_eq!((rendezvous.nodes.clone(), rendezvous.run_id.as_deref()), (1..=4, Some("7")));
    assert_eq!(several(&[&line[..], &["--rdzv-conf=is_host=1"]].concat()).leads, Some(true));
    assert_eq!(several(&[&line[..], &["--node-rank=0"]].concat()).leads, None, "c10d ignores node ranks");
}

#[test]
fn several_nodes_need_a_place_to_meet_and_ranks_below_their_number() {
    refused(&["--nnodes=2"], &["--nnodes 2", "--rdzv-endpoint"]);
    refused(&["--nnodes=2", "--node-rank=2"], &["--node-rank 2", "0 to 1"]);
    refused(&["--nnodes=2", "--master-addr=a", "--master-port=0"], &["--master-port 0"]);
    refused(&["--nnodes=5000", "--node-rank=0"], &["4096"]);
    refused(&["--rdzv-backend", "etcd"], &["--rdzv-backend", "c10d"]);
}

#[test]
fn torchruns_settings_set_the_time_outs() {
    let line = |conf| several(&["--nnodes=2", "--node-rank=0", "--rdzv-conf", conf]);
    let usual = line("store_type=tcp");
    assert_eq!((usual.join_timeout.as_secs(), usual.last_call.as_secs()), (600, 30));
    assert_eq!(usual.times, Times::default());
    let own = line("join_timeout=60,last_call_timeout=2,keep_alive_interval=1,keep_alive_max_attempt=5");
    assert_eq!((own.join_timeout.as_secs(), own.last_call.as_secs()), (60, 2));
    assert_eq!((own.times.beat.as_secs(), own.times.length.as_secs()), (1, 5));
    assert_eq!(line("timeout=9").join_timeout.as_secs(), 9);
    assert!(line("admit=checkpoint").admits_at_checkpoint && !line("admit=restart").admits_at_checkpoint);
    refused(&["--nnodes=2", "--node-rank=0", "--rdzv-conf", "admit=now"], &["admit=now", "checkpoint"]);
    refused(&["--nnodes=2", "--node-rank=0", "--rdzv-conf", "join_timeout=0"], &["join_timeout=0"]);
    let unknown = notes(&["--nnodes=2", "--node-rank=0", "--rdzv-conf", "own=1"]);
    assert!(unknown[0].starts_with("--rdzv-conf own=1 is ignored"), "{unknown:?}");
}

#[test]
fn three_flags_set_the_address_of_rank_0() {
    let asked = |line: &[&str]| {
        let args = read(line).unwrap();
        (args.host().map(|(flag, host)| (flag, host.to_owned())), args.port())
    };
    let host = |flag, host: &str| Some((flag, host.to_owned()));
    assert_eq!(asked(&[]), (None, None));
    assert_eq!(
        asked(&["--master_addr", "[::1]", "--master_port", "29500"]),
        (host("--master-addr", "::1"), Some(("--master-port", 29500)))
    );
    assert_eq!(asked(&["--local-addr", "localhost"]).0, host("--local-addr", "localhost"));
    assert_eq!(
        asked(&["--rdzv-endpoint", "localhost:29400"]),
        (host("--rdzv-endpoint", "localhost"), Some(("--rdzv-endpoint", 29400)))
    );
    assert_eq!(asked(&["--rdzv-endpoint", "localhost:0", "--master-port", "0"]).1, None);
    refused(&["--master-port", "70000"], &["--master-port", "65535"]);
    refused(&["--master-addr", "localhost:1"], &["--master-addr", "--master-port"]);
}

#[test]
fn a_number_of_nodes_may_be_a_range() {
    for (text, range) in [("1", 1..=1), ("1:1", 1..=1), ("2", 2..=2), ("1:4", 1..=4)] {
        assert_eq!(nodes(text).unwrap(), range);
    }
    for text in ["", "0", "x", "2:1", "0:1", "1:", ":1", "1:2:3", "+1", "-1", " 1"] {
        assert!(nodes(text).is_err(), "{text:?}");
    }
}

#[test]
fn endpoints_are_a_host_and_a_port() {
    for (text, host, port) in [
        ("localhost", "localhost", 0),
        ("localhost:0", "localhost", 0),
        ("localhost:29400", "localhost", 29400),
        ("127.0.0.1:1", "127.0.0.1", 1),
        ("[::1]:29400", "::1", 29400),
        ("[::1]", "::1", 0),
        ("::1", "::1", 0),
    ] {
        let host = host.to_owned();
        assert_eq!(endpoint(text), Ok((host, port)), "{text}");
    }
    for text in ["", ":1", "h:", "h:x", "h:65536", "h:-1", "a b:1", "http://h:1", "[::1:1", "a:b:1"] {
        assert!(endpoint(text).is_err(), "{text:?}");
    }
}

#[test]
fn backends_of_other_servers_are_told_apart_from_typing_errors() {
    assert_eq!(backend("c10d").as_deref(), Ok("c10d"));
    assert!(backend("etcd").unwrap_err().contains("no etcd server"));
    assert!(backend("c10").unwrap_err().contains("unknown backend"));
    for text in ["timeout", "=1", "timeout=", "a=1,", "a=1,a=2"] {
        assert!(rdzv_conf(text).is_err(), "{text:?}");
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,20}") {
        let _ = (nodes(&text), endpoint(&text), backend(&text));
        let _ = rdzv_conf(&text).map(|conf| (conf.without_use_on_one(), conf.without_use_on_several()));
    }
}
