#![allow(clippy::unwrap_used)]

use super::super::LaunchArgs;
use super::super::words::parse;
use super::*;
use std::ffi::OsString;

fn contract(line: &[&str]) -> Result<ContractArgs, clap::Error> {
    let words = ["dtrain", "launch"].iter().chain(line);
    let args: Result<LaunchArgs, _> = parse(words.map(OsString::from).collect(), |_| None);
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
    let endpoint = "--rdzv-endpoint=localhost:1";
    for (line, first, second) in [
        (&["-m", "--no-python"][..], "-m", "--no-python"),
        (&["--standalone", endpoint], "--standalone", "--rdzv-endpoint"),
        (&["--standalone", "--nnodes=1:2"], "--standalone", "--nnodes 1:2"),
        (
            &["--master-addr=localhost", endpoint],
            "--rdzv-endpoint",
            "--master-addr",
        ),
        (&["--master-port=1", endpoint], "--rdzv-endpoint", "--master-port"),
        (
            &["--local-addr=localhost", endpoint],
            "--rdzv-endpoint",
            "--local-addr",
        ),
        (
            &["--local-addr=a", "--master-addr=a"],
            "--local-addr",
            "--master-addr",
        ),
    ] {
        refused(line, &[first, second, "contradict each other"]);
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
fn what_is_torchruns_own_is_refused_with_a_reason() {
    for (line, flag) in [
        (&["--start-method", "spawn"][..], "--start-method"),
        (&["--event_log_handler", "null"], "--event-log-handler"),
        (&["--logs-specs", "x"], "--logs-specs"),
        (&["--run-path"], "--run-path"),
    ] {
        refused(line, &[flag, "is not supported: "]);
    }
}

#[test]
fn flags_without_use_are_answered_with_a_sentence() {
    for (line, flag) in [
        (["--monitor-interval", "0.5"], "--monitor-interval has no use"),
        (["--rdzv-backend", "c10d"], "--rdzv-backend c10d"),
        (
            ["--rdzv-conf", "timeout=9,is_host=1"],
            "--rdzv-conf timeout has no use",
        ),
    ] {
        let notes = notes(&line);
        assert!(notes.len() == 1 && notes[0].starts_with(flag), "{notes:?}");
    }
}

#[test]
fn where_rank_0_listens_is_said_by_any_of_three_flags() {
    let asked = |line: &[&str]| {
        let args = contract(line).unwrap();
        (
            args.host().map(|(flag, host)| (flag, host.to_owned())),
            args.port(),
        )
    };
    let host = |flag, host: &str| Some((flag, host.to_owned()));
    assert_eq!(asked(&[]), (None, None));
    assert_eq!(
        asked(&["--master_addr", "[::1]", "--master_port", "29500"]),
        (host("--master-addr", "::1"), Some(("--master-port", 29500)))
    );
    assert_eq!(
        asked(&["--local-addr", "localhost"]).0,
        host("--local-addr", "localhost")
    );
    assert_eq!(
        asked(&["--rdzv-endpoint", "localhost:29400"]),
        (
            host("--rdzv-endpoint", "localhost"),
            Some(("--rdzv-endpoint", 29400))
        )
    );
    assert_eq!(
        asked(&["--rdzv-endpoint", "localhost:0", "--master-port", "0"]).1,
        None
    );
    refused(&["--master-port", "70000"], &["--master-port", "65535"]);
    refused(
        &["--master-addr", "localhost:1"],
        &["--master-addr", "--master-port"],
    );
}

#[test]
fn all_six_signals_are_handled_unless_some_are_named() {
    assert_eq!(contract(&[]).unwrap().signals().len(), 6);
    let named = contract(&["--signals-to-handle", "SIGUSR1,TERM"])
        .unwrap()
        .signals();
    assert_eq!(named, [signals::USR1, signals::TERM]);
    refused(
        &["--signals-to-handle", "TERM,KILL"],
        &["--signals-to-handle", "\"KILL\""],
    );
}
