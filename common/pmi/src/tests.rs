//! Both text protocols against a starter in this process.
#![allow(clippy::unwrap_used)]

use super::socket::{Socket, Task, value};
use super::{Pmi, PmiError};
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

/// The values that the tasks have put.
type Space = Arc<Mutex<HashMap<String, String>>>;

/// Serves one task as a starter that knows only `version`.
fn serve(stream: UnixStream, rank: usize, version: u32, space: &Space, all: &Barrier) {
    let (mut reader, mut writer) = (BufReader::new(stream.try_clone().unwrap()), stream);
    let mut line = String::new();
    let mut asked = 0;
    while asked != version {
        line.clear();
        reader.read_line(&mut line).unwrap();
        asked = value(&line, "pmi_version", ' ').unwrap().parse().unwrap();
        let code = if asked == version { 0 } else { -1 };
        writeln!(writer, "cmd=response_to_init pmi_version={version} pmi_subversion=1 rc={code}").unwrap();
    }
    let separator = if version == 1 { ' ' } else { ';' };
    loop {
        line.clear();
        if version == 1 {
            reader.read_line(&mut line).unwrap();
        } else {
            let mut head = [0; 6];
            reader.read_exact(&mut head).unwrap();
            let length: usize = std::str::from_utf8(&head).unwrap().trim().parse().unwrap();
            let mut bytes = vec![0; length];
            reader.read_exact(&mut bytes).unwrap();
            line = String::from_utf8(bytes).unwrap();
        }
        let of = |key| value(line.trim_end(), key, separator).unwrap().to_owned();
        let answer = match of("cmd").as_str() {
            "get_my_kvsname" => "cmd=my_kvsname kvsname=kvs_7".to_owned(),
            "fullinit" => format!("cmd=fullinit-response;rc=0;pmi-version=2;rank={rank};size=3;appnum=0;"),
            command @ ("put" | "kvs-put") => {
                space.lock().unwrap().insert(of("key"), of("value"));
                if command == "put" {
                    "cmd=put_result rc=0 msg=success".to_owned()
                } else {
                    "cmd=kvs-put-response;rc=0;".to_owned()
                }
            }
            command @ ("barrier_in" | "kvs-fence") => {
                all.wait();
                if command == "barrier_in" {
                    "cmd=barrier_out".to_owned()
                } else {
                    "cmd=kvs-fence-response;rc=0;".to_owned()
                }
            }
            "get" => {
                assert_eq!(of("kvsname"), "kvs_7");
                format!("cmd=get_result rc=0 msg=success value={}", space.lock().unwrap()[&of("key")])
            }
            "kvs-get" => {
                format!("cmd=kvs-get-response;rc=0;found=TRUE;value={};", space.lock().unwrap()[&of("key")])
            }
            "finalize" => {
                let answer =
                    if version == 1 { "cmd=finalize_ack\n" } else { "    27cmd=finalize-response;rc=0;\n" };
                writer.write_all(answer.as_bytes()).unwrap();
                return;
            }
            other => panic!("{other}"),
        };
        match version {
            1 => writeln!(writer, "{answer}").unwrap(),
            _ => write!(writer, "{:6}{answer}", answer.len()).unwrap(),
        }
    }
}

#[test]
fn three_tasks_gather_texts_by_both_versions() {
    for version in [1, 2] {
        let (space, all) = (Space::default(), Arc::new(Barrier::new(3)));
        let tasks: Vec<_> = (0..3)
            .map(|rank| {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let (space, all) = (Arc::clone(&space), Arc::clone(&all));
                let server = thread::spawn(move || serve(theirs, rank, version, &space, &all));
                let task = thread::spawn(move || {
                    let socket = Socket::new(ours).unwrap();
                    let mut pmi = Pmi::of_socket(socket, Task { rank, size: 3 }).unwrap();
                    assert_eq!((pmi.rank(), pmi.size()), (rank, 3));
                    let first = pmi.gather(&format!("host {rank}; a=b\n")).unwrap();
                    let second = pmi.gather("").unwrap();
                    pmi.finish().unwrap();
                    (first, second)
                });
                (server, task)
            })
            .collect();
        for (server, task) in tasks {
            let (first, second) = task.join().unwrap();
            assert_eq!(first, ["host 0; a=b\n", "host 1; a=b\n", "host 2; a=b\n"], "version {version}");
            assert_eq!(second, ["", "", ""]);
            server.join().unwrap();
        }
    }
}

/// Connects to a starter that sends these bytes and closes.
fn connect_to(bytes: &[u8]) -> Result<Pmi, PmiError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(bytes).unwrap();
    theirs.shutdown(std::net::Shutdown::Write).unwrap();
    Pmi::of_socket(Socket::new(ours).unwrap(), Task { rank: 0, size: 1 })
}

#[test]
fn wrong_answers_are_errors_with_a_remedy() {
    for (answer, part) in [
        ("", "it closed the connection"),
        ("hello\n", "answered \"hello\" instead of response_to_init"),
        ("cmd=response_to_init rc=-1\ncmd=response_to_init rc=-1\n", "with version 1.1 or 2.0"),
        ("cmd=response_to_init rc=-1\ncmd=response_to_init rc=0\n999999", "longer than 64 KiB"),
        ("cmd=response_to_init rc=-1\ncmd=response_to_init rc=0\n    -1", "instead of a length"),
    ] {
        let message = connect_to(answer.as_bytes()).unwrap_err().to_string();
        assert!(message.contains(part), "{answer:?}: {message}");
    }
    let long = "x".repeat(70_000);
    assert!(connect_to(long.as_bytes()).unwrap_err().to_string().contains("longer than 64 KiB"));
}

#[test]
fn variables_of_another_process_are_no_starter() {
    let with = |fd: &'static str| move |name: &str| (name == "PMI_FD").then(|| fd.to_owned());
    assert!(Pmi::connect(&|_| None).unwrap().is_none());
    let off = |name: &str| Some(if name == "DTRAIN_PMI" { "off" } else { "x" }.to_owned());
    assert!(Pmi::connect(&off).unwrap().is_none());
    let unknown = |name: &str| (name == "DTRAIN_PMI").then(|| "3".to_owned());
    assert!(matches!(Pmi::connect(&unknown), Err(PmiError::Variable { name: "DTRAIN_PMI", .. })));
    assert!(Pmi::connect(&with("987654")).unwrap().is_none(), "a closed number");
    for wrong in ["", "x", "0", "-1"] {
        assert!(
            matches!(Pmi::connect(&with(wrong)), Err(PmiError::Variable { name: "PMI_FD", .. })),
            "{wrong}"
        );
    }
}

#[test]
fn a_text_that_is_too_long_is_an_error() {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    theirs.write_all(b"cmd=response_to_init rc=0\ncmd=my_kvsname kvsname=kvs_7\n").unwrap();
    let mut pmi = Pmi::of_socket(Socket::new(ours).unwrap(), Task { rank: 0, size: 1 }).unwrap();
    let error = pmi.gather(&"x".repeat(501)).unwrap_err();
    assert!(matches!(error, PmiError::TooLong { bytes: 501 }), "{error}");
}

proptest! {
    #[test]
    fn any_answer_ends_well(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let begun = [b"cmd=response_to_init rc=-1\ncmd=response_to_init rc=0\n", &bytes[..]].concat();
        let _ = connect_to(&begun);
        prop_assert!(connect_to(&bytes).is_err());
    }
}
