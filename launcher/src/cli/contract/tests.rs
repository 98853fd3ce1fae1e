#![allow(clippy::unwrap_used)]

use super::super::LaunchArgs;
use super::super::parse::launch;
use super::*;
use proptest::prelude::*;
use std::ffi::OsString;

fn contract(line: &[&str]) -> Result<ContractArgs, clap::Error> {
    let words = ["dtrain", "launch"].iter().chain(line);
    let args: Result<LaunchArgs, _> = launch(words.map(OsString::from).collect(), false);
    args.map(|args| args.contract)
}

#[track_caller]
fn refused(line: &[&str], says: &[&str]) {
    let error = match contract(line) {
        Ok(args) => args.check().unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    for word in says {
        assert!(error.contains(word), "{line:?}: {error}");
    }
}

#[track_caller]
fn notes(line: &[&str]) -> Vec<String> {
    contract(line).unwrap().check().unwrap()
}

#[test]
fn flags_that_contradict_each_other_are_named() {
    for (line, first, second) in [
        (&["-m", "--no-python"][..], "-m", "--no-python"),
        (&["--standalone", "--nnodes=1:2"], "--standalone", "--nnodes 1:2"),
    ] {
        refused(line, &[first, second, "contradict each other"]);
    }
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
        let args = contract(line).unwrap();
        assert_eq!(args.port().map(|(_, port)| port), port, "{line:?}");
        let host = args.host().map(|(_, host)| host);
        assert_eq!(host, (!args.standalone).then_some("localhost"), "{line:?}");
    }
}

#[test]
fn several_nodes_are_refused_and_one_is_accepted() {
    refused(&["--nnodes", "2"], &["--nnodes 2", ONE_NODE]);
    refused(&["--nnodes", "1:4"], &["--nnodes 1:4", ONE_NODE]);
    refused(&["--node-rank", "1"], &["--node-rank 1", ONE_NODE]);
    refused(&["--rdzv-backend", "etcd"], &["--rdzv-backend", ONE_NODE]);
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
    }
}

#[test]
fn flags_without_use_are_answered_with_a_sentence() {
    for (line, flag) in [
        (&["--monitor-interval", "0.5"][..], "--monitor-interval is ignored"),
        (&["--rdzv-backend", "c10d"], "--rdzv-backend c10d"),
        (&["--rdzv-conf", "timeout=9,is_host=1"], "--rdzv-conf timeout=9 is ignored"),
        (
            &["--rdzv-conf", "is_host=0,store_type=file,own=x"],
            "--rdzv-conf is_host=0, store_type=file, own=x is ignored",
        ),
        (&["--start-method", "fork"], "--start-method is ignored"),
        (&["--event_log_handler", "console"], "--event-log-handler is ignored"),
        (&["--logs-specs", "x"], "--logs-specs is ignored"),
        (&["--run-path"], "--run-path is ignored"),
    ] {
        let notes = notes(line);
        assert!(notes.len() == 1 && notes[0].starts_with(flag), "{notes:?}");
    }
    assert_eq!(notes(&["--event-log-handler", "null"]), [""; 0], "torchrun's own default");
    refused(&["--start-method", "thread"], &["--start-method", "forkserver"]);
}

#[test]
fn a_flag_may_be_cut_short_as_long_as_it_is_clear() {
    let words = |line: &[&str]| {
        let words = ["dtrain", "launch"].iter().chain(line);
        launch(words.map(OsString::from).collect(), false)
    };
    let args = words(&[
        "--nproc_per",
        "2",
        "--master_p",
        "1",
        "--rdzv-e=localhost:2",
        "--standal",
        "t.py",
        "--nproc_per",
        "9",
    ]);
    let args = args.unwrap();
    assert_eq!(args.nproc, super::super::Nproc::Count(2));
    assert!(args.contract.standalone && args.contract.master_port.is_some());
    assert_eq!(args.target().unwrap().unwrap().args, ["--nproc_per", "9"]);
    refused(&["--master", "x"], &["--master"]);
}

#[test]
fn three_flags_set_the_address_of_rank_0() {
    let asked = |line: &[&str]| {
        let args = contract(line).unwrap();
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
fn all_six_signals_are_handled_unless_some_are_named() {
    assert_eq!(contract(&[]).unwrap().signals().len(), 6);
    let named = contract(&["--signals-to-handle", "SIGUSR1,TERM"]).unwrap().signals();
    assert_eq!(named, [signals::USR1, signals::TERM]);
    assert_eq!(contract(&["--signals-to-handle", "SIGUSR1,TERM"]).unwrap().signal_names(), "SIGUSR1,SIGTERM");
    refused(&["--signals-to-handle", "TERM,KILL"], &["--signals-to-handle", "\"KILL\""]);
}

#[test]
fn a_number_of_nodes_may_be_a_range() {
    for text in ["1", "1:1", "2", "1:4"] {
        assert_eq!(nodes(text).unwrap(), text);
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
fn signals_have_names_with_and_without_sig() {
    for (text, number) in [("SIGTERM", signals::TERM), ("int", signals::INT), (" Usr1", signals::USR1)] {
        assert_eq!(signal(text), Ok(number));
    }
    for text in ["", "KILL", "STOP", "SIG", "CHLD", "15", "nonsense"] {
        assert!(signal(text).is_err(), "{text:?}");
    }
    refused(&["--signals-to-handle", "TERM,"], &["--signals-to-handle"]);
}

#[test]
fn intervals_are_above_zero() {
    for text in ["0.1", "5", "1e-3"] {
        assert!(interval(text).is_ok());
    }
    for text in ["0", "-1", "nan", "inf", "", "soon"] {
        assert!(interval(text).is_err(), "{text:?}");
    }
}

#[test]
fn settings_of_the_rendezvous_are_sorted_by_their_use() {
    let check = |text: &str| without_use(&rdzv_conf(text).unwrap());
    assert_eq!(check("").unwrap(), Vec::<String>::new());
    assert_eq!(check("is_host=1,store_type=tcp").unwrap(), Vec::<String>::new());
    assert_eq!(check("timeout=900, join_timeout=60").unwrap(), ["timeout=900", "join_timeout=60"]);
    for text in ["is_host=0", "store_type=file", "protocol=https"] {
        assert_eq!(check(text).unwrap(), [text]);
    }
    for text in ["timeout=0", "timeout=soon"] {
        let key = text.split('=').next().unwrap();
        assert!(check(text).unwrap_err().to_string().contains(key), "{text}");
    }
    for text in ["timeout", "=1", "timeout=", "a=1,", "a=1,a=2"] {
        assert!(rdzv_conf(text).is_err(), "{text:?}");
    }
}

#[test]
fn backends_of_several_nodes_are_told_apart_from_typing_errors() {
    assert_eq!(backend("c10d").as_deref(), Ok("c10d"));
    assert!(backend("etcd").unwrap_err().contains(ONE_NODE));
    assert!(backend("c10").unwrap_err().contains("unknown backend"));
}

proptest! {
    #[test]
    fn no_text_panics(text in ".{0,20}") {
        let _ = (nodes(&text), endpoint(&text), signal(&text), interval(&text), backend(&text));
        let _ = rdzv_conf(&text).map(|conf| without_use(&conf));
    }
}
