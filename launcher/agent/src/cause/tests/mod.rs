//! Which evidence leads to which cause.

#![allow(clippy::unwrap_used)]

mod gpu_words;
mod last_words;

use super::*;
use proptest::prelude::*;

/// Returns the cause of a worker with this outcome and this standard error.
fn found(outcome: Outcome, stderr: &str) -> Option<Cause> {
    let stderr: Vec<_> = stderr.lines().map(str::to_owned).collect();
    cause(&evidence(outcome, &stderr))
}

/// Expects this cause of a worker with this outcome and this standard error.
#[track_caller]
fn expect_cause(outcome: Outcome, stderr: &str, kind: Kind, says: &str) -> Cause {
    let cause = found(outcome, stderr).unwrap_or_else(|| panic!("{outcome:?}: {stderr}"));
    assert_eq!(cause.kind, kind, "{outcome:?}: {stderr}");
    assert!(cause.text.contains(says), "{}", cause.text);
    cause
}

fn evidence(outcome: Outcome, stderr: &[String]) -> Evidence<'_> {
    Evidence { outcome, sent: &[], stderr, error_file: None, memory_kill: None }
}

/// Builds the traceback of a program that this exception ended: its own frames, then torch's.
fn raised(exception: &str) -> String {
    format!(
        r#"Traceback (most recent call last):
  File "/home/a/train.py", line 16, in <module>
    step()
  File "/home/a/train.py", line 13, in step
    dist.all_reduce(x)
  File "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3075, in all_reduce
    work.wait()
{exception}
"#
    )
}

const EXIT_1: Outcome = Outcome::Exited(1);
const ABORTED: Outcome = Outcome::Signaled(6);
#[test]
fn texts_without_a_cause_have_none() {
    for text in [
        "",
        "epoch 3 done\n",
        "[W1121 05:20:00.1 TCPStore.cpp:100] [c10d] The client socket has failed to connect to any network address of (a, 1).\n",
        "[rank0]:[W1121 05:20:00.1 socket.cpp:4] The server socket has failed to bind (errno: 98 - Address already in use).\n",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING is set\n",
    ] {
        assert_eq!(found(Outcome::Exited(3), text), None, "{text}");
        assert_eq!(found(Outcome::Lost, text), None, "{text}");
    }
}

#[test]
fn an_exception_that_was_dealt_with_is_not_the_cause() {
    let text = format!("{}going on with less\n{}", raised("CUDA out of memory"), raised("ValueError: x"));
    assert_eq!(found(EXIT_1, &text).unwrap().kind, Kind::PythonException);
    let behind = format!("{}Connection closed by peer [127.0.0.1]:5\n", raised("ValueError: x"));
    assert_eq!(found(EXIT_1, &behind).unwrap().kind, Kind::PythonException);
}

#[test]
fn chained_exceptions_may_name_the_cause() {
    let link = "During handling of the above exception, another exception occurred:";
    let text = format!(
        "{}\n{link}\n\n{}",
        raised("torch.OutOfMemoryError: CUDA out of memory."),
        raised("RuntimeError: cannot clean up")
    );
    assert_eq!(found(EXIT_1, &text).unwrap().kind, Kind::CudaOutOfMemory);
}

#[test]
fn known_signals_are_a_cause_by_themselves() {
    for (signal, kind, says) in [
        (4, Kind::IllegalInstruction, "SIGILL: "),
        (6, Kind::Abort, "SIGABRT: "),
        (7, Kind::BusError, "SIGBUS: "),
        (9, Kind::Killed, "SIGKILL, not sent by the launcher: perhaps by the kernel"),
        (11, Kind::SegmentationFault, "SIGSEGV: "),
        (13, Kind::BrokenPipe, "SIGPIPE: "),
        (15, Kind::Killed, "SIGTERM, not sent by the launcher"),
        (24, Kind::CpuTime, "ulimit -t"),
        (25, Kind::FileSize, "ulimit -f"),
    ] {
        expect_cause(Outcome::Signaled(signal), "some text", kind, says);
        let code = 128 + signal;
        expect_cause(Outcome::Exited(code), "", kind, &format!("(exit code {code}, as in a shell)"));
        let sent = Evidence { sent: &[signal], ..evidence(Outcome::Signaled(signal), &[]) };
        assert_eq!(cause_kind(&sent), None, "the launcher's own signal {signal}");
    }
    assert_eq!(found(Outcome::Signaled(8), ""), None);
    assert_eq!(found(Outcome::Exited(255), ""), None);
}

fn cause_kind(evidence: &Evidence<'_>) -> Option<Kind> {
    cause(evidence).map(|cause| cause.kind)
}

#[test]
fn a_kill_for_memory_needs_evidence_and_a_sigkill() {
    let with = |outcome, how, stderr: &str| {
        let stderr: Vec<_> = stderr.lines().map(str::to_owned).collect();
        cause(&Evidence { memory_kill: Some(how), ..evidence(outcome, &stderr) }).unwrap()
    };
    let loader = raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ");
    for (outcome, how, stderr, says) in [
        (
            Outcome::Signaled(9),
            MemoryKill::Logged,
            "",
            "the kernel killed the worker because memory ran out (source: the kernel's log)",
        ),
        (Outcome::Signaled(9), MemoryKill::Group, "", "its control group counted such a kill"),
        (Outcome::Signaled(9), MemoryKill::Machine, "", "probably the kernel killed the worker"),
        (Outcome::Exited(137), MemoryKill::Group, "", "the kernel killed a child process of the worker"),
        (EXIT_1, MemoryKill::Group, &loader, "the kernel killed a child process of the worker"),
        (
            EXIT_1,
            MemoryKill::Group,
            "run.sh: line 3: 7 Killed   ./a",
            "the kernel killed a child process of the worker",
        ),
    ] {
        let cause = with(outcome, how, stderr);
        assert_eq!(cause.kind, Kind::OutOfMemoryKilled, "{stderr}");
        assert!(cause.text.contains(says), "{}", cause.text);
    }
    let other = with(Outcome::Signaled(11), MemoryKill::Group, "");
    assert_eq!(other.kind, Kind::SegmentationFault, "somebody else was killed");
    assert_eq!(with(EXIT_1, MemoryKill::Group, &raised("E: x")).kind, Kind::PythonException);
}

#[test]
fn a_killed_loader_process_is_named_without_evidence_too() {
    let link = "The above exception was the direct cause of the following exception:";
    let text = format!(
        "{}\n{link}\n\n{}",
        raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. "),
        raised("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly")
    );
    let cause = found(EXIT_1, &text).unwrap();
    assert_eq!(cause.kind, Kind::Killed);
    assert!(cause.text.starts_with("a process of the DataLoader was killed by SIGKILL"), "{}", cause.text);
}

#[test]
fn a_stack_of_pythons_faulthandler_names_the_place_instead_of_the_way_to_get_it() {
    let stack = "Current thread 0x7f (most recent call first):\n  File \"/a/t.py\", line 3 in f\n";
    for (signal, without) in [(11, "PYTHONFAULTHANDLER=1"), (6, "see its last lines")] {
        let with = found(Outcome::Signaled(signal), stack).unwrap().text;
        assert!(with.ends_with(" (at /a/t.py:3, in f)") && !with.contains(without), "{with}");
        assert!(found(Outcome::Signaled(signal), "").unwrap().text.contains(without));
    }
    // The program has printed it at an earlier moment.
    for signal in [9, 15] {
        let text = found(Outcome::Signaled(signal), stack).unwrap().text;
        assert!(!text.contains("t.py"), "{text}");
    }
}

#[test]
fn a_peer_that_ended_well_is_named_with_the_place() {
    let text =
        raised("RuntimeError: [gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:5");
    let cause = found(EXIT_1, &text).unwrap().left_by(1, &[0]);
    assert!(cause.text.starts_with("rank 0 ended with exit code 0 while rank 1 was still communicating"));
    assert!(cause.text.ends_with(" (at /home/a/train.py:13, in step)") && cause.peer_lost, "{}", cause.text);
}

#[test]
fn the_error_file_counts_and_its_call_stack_names_the_place() {
    let stack = raised("ValueError: bad").replace('\n', "\\n").replace('"', "\\\"");
    let file = format!(
        r#"{{"message":{{"message":"ValueError: bad","extraInfo":{{"py_callstack":"{stack}","timestamp":"1"}}}}}}"#
    );
    let of = |file: &str| cause(&Evidence { error_file: Some(file), ..evidence(EXIT_1, &[]) });
    let text = of(&file).unwrap().text;
    assert_eq!(text, "the program raised ValueError: bad (at /home/a/train.py:13, in step)");
    let ours = r#"{"message":{"message":"rank 1: Connection closed by peer [::1]:9","extraInfo":{}}}"#;
    assert!(of(ours).unwrap().peer_lost);
    assert_eq!(of(r#"{"message":"the data folder is empty"}"#), None);
}

#[test]
fn how_a_program_takes_the_launchers_signal_is_no_cause() {
    for exception in [
        "KeyboardInterrupt",
        "RuntimeError: DataLoader worker (pid 7) is killed by signal: Terminated. ",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
    ] {
        let stderr: Vec<_> = raised(exception).lines().map(str::to_owned).collect();
        let told = Evidence { sent: &[15], ..evidence(EXIT_1, &stderr) };
        assert_eq!(cause(&told), None, "{exception}");
    }
    let stderr: Vec<_> = raised("ValueError: x").lines().map(str::to_owned).collect();
    let told = Evidence { sent: &[15], ..evidence(Outcome::Signaled(15), &stderr) };
    assert_eq!(cause_kind(&told), Some(Kind::PythonException), "it was raised before the signal");
}

#[test]
fn only_a_lost_connection_blames_a_peer() {
    let lost = |text: &str| found(EXIT_1, text).unwrap().peer_lost;
    assert!(lost("Connection closed by peer [127.0.0.1]:5"));
    assert!(lost(
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    ));
    assert!(lost("torch.distributed.DistNetworkError: failed to recv, got 0 bytes"));
    assert!(!lost("gloo: Timed out waiting 3000ms for recv operation to complete"));
    assert!(!lost("ncclInternalError: Internal check failed."));
    assert!(!lost("Address already in use"));
}

#[test]
fn causes_are_one_line_of_limited_length() {
    let long = raised(&format!("ValueError: {}", "x\u{e4}".repeat(5000)));
    let text = found(EXIT_1, &long).unwrap().text;
    assert!(text.chars().count() < 500 && !text.contains('\n'), "{text}");
}

proptest! {
    #[test]
    fn no_input_panics(
        stderr in proptest::collection::vec(
            "(terminate called|  what\\(\\):|  File \"a\", line 1|Killed|port: |shared libraries: |Tried to allocate |iB|No module named |ncclXError|[0-9]{0,9}|\\PC){0,6}",
            0..12,
        ),
        file in proptest::option::of("(\\{\"message\":|\\}|\"a\"|\\PC){0,6}"),
        code in any::<i32>(),
        signaled in any::<bool>(),
        sent in proptest::collection::vec(0..64i32, 0..3),
        killed in any::<bool>(),
    ) {
        let told = Evidence {
            sent: &sent,
            error_file: file.as_deref(),
            memory_kill: killed.then_some(MemoryKill::Group),
            ..evidence(if signaled { Outcome::Signaled(code) } else { Outcome::Exited(code) }, &stderr)
        };
        if let Some(cause) = cause(&told) {
            prop_assert!(!cause.text.contains('\n'));
        }
        shortened(&stderr);
    }
}
