#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

#[test]
fn nodes_are_a_number_or_a_range() {
    for (text, most) in [("1", 1), ("1:1", 1), ("2", 2), ("1:4", 4)] {
        assert_eq!(text.parse::<Nodes>().unwrap().most, most);
    }
    for text in ["", "0", "x", "2:1", "0:1", "1:", ":1", "1:2:3", "+1", "-1", " 1"] {
        assert!(text.parse::<Nodes>().is_err(), "{text:?}");
    }
    assert_eq!("2:2".parse::<Nodes>().unwrap().to_string(), "2");
    assert_eq!("1:3".parse::<Nodes>().unwrap().to_string(), "1:3");
}

#[test]
fn endpoints_are_a_host_and_a_port() {
    for (text, host, port) in [
        ("localhost", "localhost", None),
        ("localhost:0", "localhost", None),
        ("localhost:29400", "localhost", Some(29400)),
        ("127.0.0.1:1", "127.0.0.1", Some(1)),
        ("[::1]:29400", "::1", Some(29400)),
        ("[::1]", "::1", None),
        ("::1", "::1", None),
    ] {
        let endpoint: Endpoint = text.parse().unwrap();
        assert_eq!(
            (endpoint.host.as_str(), endpoint.port.number()),
            (host, port),
            "{text}"
        );
    }
    for text in [
        "",
        ":1",
        "h:",
        "h:x",
        "h:65536",
        "h:-1",
        "a b:1",
        "http://h:1",
        "[::1:1",
        "a:b:1",
    ] {
        assert!(text.parse::<Endpoint>().is_err(), "{text:?}");
    }
}

#[test]
fn signals_have_names_with_and_without_sig() {
    let list: SignalList = "SIGTERM,int, Usr1,TERM".parse().unwrap();
    assert_eq!(list.numbers(), [signals::TERM, signals::INT, signals::USR1]);
    for text in ["", "TERM,", "KILL", "STOP", "SIG", "CHLD", "15", "nonsense"] {
        assert!(text.parse::<SignalList>().is_err(), "{text:?}");
    }
}

#[test]
fn intervals_are_above_zero() {
    for text in ["0.1", "5", "1e-3"] {
        assert!(text.parse::<Interval>().is_ok());
    }
    for text in ["0", "-1", "nan", "inf", "", "soon"] {
        assert!(text.parse::<Interval>().is_err(), "{text:?}");
    }
}

#[test]
fn settings_of_the_rendezvous_are_sorted_by_their_use() {
    let check = |text: &str| text.parse::<RdzvConf>().unwrap().check();
    assert_eq!(check("").unwrap(), Vec::<String>::new());
    assert_eq!(check("is_host=1,store_type=tcp").unwrap(), Vec::<String>::new());
    assert_eq!(
        check("timeout=900, join_timeout=60").unwrap(),
        ["timeout=900", "join_timeout=60"]
    );
    for text in ["is_host=0", "store_type=file", "protocol=https"] {
        assert_eq!(check(text).unwrap(), [text]);
    }
    for text in ["timeout=0", "timeout=soon"] {
        let key = text.split('=').next().unwrap();
        assert!(check(text).unwrap_err().to_string().contains(key), "{text}");
    }
    for text in ["timeout", "=1", "timeout=", "a=1,", "a=1,a=2"] {
        assert!(text.parse::<RdzvConf>().is_err(), "{text:?}");
    }
}

#[test]
fn backends_of_several_nodes_are_told_apart_from_typing_errors() {
    assert_eq!("c10d".parse(), Ok(Backend::C10d));
    assert_eq!("static".parse(), Ok(Backend::Static));
    assert!("etcd".parse::<Backend>().unwrap_err().contains(ONE_NODE));
    assert!("c10".parse::<Backend>().unwrap_err().contains("known are"));
}

proptest! {
    #[test]
    fn ports_and_hosts_read_back(host in "[a-z][a-z0-9.-]{0,12}", port in any::<u16>()) {
        let endpoint: Endpoint = format!("{host}:{port}").parse().unwrap();
        prop_assert_eq!(endpoint.host.as_str(), host);
        prop_assert_eq!(endpoint.port, Port(port));
    }

    #[test]
    fn no_text_panics(text in ".{0,20}") {
        let _ = text.parse::<Nodes>();
        let _ = text.parse::<Endpoint>();
        let _ = text.parse::<SignalList>();
        let _ = text.parse::<Interval>();
        if let Ok(conf) = text.parse::<RdzvConf>() {
            let _ = conf.check();
        }
    }

    #[test]
    fn node_ranges_read_back(least in 1u32..50, more in 0u32..50) {
        let nodes = Nodes { least, most: least + more };
        prop_assert_eq!(nodes.to_string().parse(), Ok(nodes));
    }
}
