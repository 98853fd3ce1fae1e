//! The order of a worker's lines where its two streams go to one file, pipe or terminal.

use crate::harness::Scene;
use crate::pty::Pty;
use std::fs::File;
use std::io::{self, Read, Seek};

#[derive(Clone, Copy, Debug)]
enum Sink {
    File,
    Pipe,
    Terminal,
}

/// Runs `dtrain launch --nproc N FLAGS -- sh -c SCRIPT` with both streams to one sink. Returns all that was shown, and the
/// exit code.
fn into_one(scene: &Scene, sink: Sink, nproc: usize, flags: &[&str], script: &str) -> (Vec<u8>, Option<i32>) {
    let nproc = nproc.to_string();
    let words = [&["--nproc", &nproc][..], flags, &["--", "sh", "-c", script]].concat();
    let mut command = scene.command(&words);
    let mut shown = Vec::new();
    let code = match sink {
        Sink::File => {
            let mut file =
                File::options().read(true).write(true).create_new(true).open(scene.path(".all")).unwrap();
            command.stdout(file.try_clone().unwrap()).stderr(file.try_clone().unwrap());
            let code = command.status().unwrap().code();
            file.rewind().unwrap();
            file.read_to_end(&mut shown).unwrap();
            code
        }
        Sink::Pipe => {
            let (mut read, write) = io::pipe().unwrap();
            command.stdout(write.try_clone().unwrap()).stderr(write);
            let mut child = command.spawn().unwrap();
            drop(command);
            read.read_to_end(&mut shown).unwrap();
            child.wait().unwrap().code()
        }
        Sink::Terminal => {
            let pty = Pty::new(200);
            pty.attach(&mut command);
            return pty.run(command);
        }
    };
    (shown, code)
}

#[test]
fn lines_of_two_streams_in_one_place_are_shown_in_the_order_of_their_writing() {
    let lines = 400;
    let script = format!(
        r#"i=0; while [ $i -lt {lines} ]; do echo "$RANK:$i"; echo "$RANK:$((i + 1))" >&2; i=$((i + 2)); done"#
    );
    for sink in [Sink::File, Sink::Pipe, Sink::Terminal] {
        for nproc in [1, 2] {
            let (shown, code) = into_one(&Scene::new(), sink, nproc, &[], &script);
            let shown = String::from_utf8(shown).unwrap();
            assert_eq!(code, Some(0), "{shown}");
            for rank in 0..nproc {
                let prefix = if nproc == 1 { "0:".to_owned() } else { format!("[rank {rank}] {rank}:") };
                let numbers =
                    shown.lines().filter_map(|line| line.strip_prefix(&prefix)?.parse::<usize>().ok());
                assert!(numbers.eq(0..lines), "rank {rank} of {nproc} in a {sink:?}:\n{shown}");
            }
        }
    }
}

#[test]
fn bytes_of_two_streams_in_one_place_pass_unchanged() {
    let script = r"printf 'a\377\0\n\r\tb'; printf '\r\n\033[1m\200' >&2; printf 'c\n\n'; printf 'last' >&2";
    for (sink, end) in
        [(Sink::File, "c\n\nlast"), (Sink::Pipe, "c\n\nlast"), (Sink::Terminal, "c\r\n\r\nlast")]
    {
        let (shown, code) = into_one(&Scene::new(), sink, 1, &[], script);
        let line = if matches!(sink, Sink::Terminal) { "\r\n" } else { "\n" };
        let expected = [
            b"dtrain: 1 worker of sh".as_slice(),
            line.as_bytes(),
            b"a\xff\0",
            line.as_bytes(),
            b"\r\tb\r",
            line.as_bytes(),
            b"\x1b[1m\x80",
            end.as_bytes(),
        ];
        assert_eq!((shown, code), (expected.concat(), Some(0)), "{sink:?}");
    }
}

#[test]
fn the_cause_of_a_failure_is_known_where_both_streams_are_one() {
    let traceback =
        r#"Traceback (most recent call last):\n  File "a.py", line 1, in <module>\nValueError: bad\n"#;
    let script = format!("echo out; printf '{traceback}' >&2; echo bye; exit 3");
    for sink in [Sink::File, Sink::Pipe, Sink::Terminal] {
        for nproc in [1, 2] {
            let (shown, code) = into_one(&Scene::new(), sink, nproc, &[], &script);
            let shown = String::from_utf8(shown).unwrap();
            assert_eq!(code, Some(3), "{shown}");
            for text in [
                "cause: the program raised ValueError: bad (at a.py:1)",
                "last lines of standard output and standard error:",
                "      ValueError: bad",
                "      bye",
            ] {
                assert!(shown.contains(text), "{text:?} in a {sink:?}:\n{shown}");
            }
        }
    }
}

#[test]
fn logged_streams_in_one_file_have_whole_lines_and_no_message_before_earlier_output() {
    let script = r#"
        printf 'half '; printf 'ERROR\n' >&2; printf 'a line\n'
        i=0; while [ $i -lt 300 ]; do echo "$i"; i=$((i + 1)); done
        echo Traceback >&2"#;
    for (nproc, prefix) in [(1, ""), (2, "[rank 1] ")] {
        let scene = Scene::new();
        let (shown, _) = into_one(&scene, Sink::Pipe, nproc, &["--run-dir", "run"], script);
        let shown = String::from_utf8(shown).unwrap();
        let lines: Vec<_> = shown.lines().filter_map(|line| line.strip_prefix(prefix)).collect();
        let at = |text: &str| lines.iter().position(|line| *line == text);
        assert!(at("ERROR").is_some() && at("half a line").is_some(), "{shown}");
        assert!(at("299").is_some() && at("299") < at("Traceback"), "{shown}");
        let log = format!("run/logs/attempt_0/rank_{}/stderr.log", nproc - 1);
        assert_eq!(scene.read(&log), "ERROR\nTraceback\n");
    }
}

#[test]
fn streams_whose_logs_are_switched_off_keep_their_order_beside_a_run_directory() {
    let script = "for i in $(seq 100); do echo $i; echo $i >&2; done";
    let (shown, _) = into_one(&Scene::new(), Sink::Pipe, 1, &["--run-dir", "run", "-r", "0"], script);
    let shown = String::from_utf8(shown).unwrap();
    let numbers = shown.lines().filter_map(|line| line.parse::<u32>().ok());
    assert!(numbers.eq((1..=100).flat_map(|i| [i, i])), "{shown}");
}
