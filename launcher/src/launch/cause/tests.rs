//! Real last words and what they are taken for.

#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;

/// The cause of a worker that ended so after it had written this to standard error.
fn found(outcome: Outcome, stderr: &str) -> Option<Cause> {
    let stderr: Vec<_> = stderr.lines().map(str::to_owned).collect();
    cause(&evidence(outcome, &stderr))
}

fn evidence(outcome: Outcome, stderr: &[String]) -> Evidence<'_> {
    Evidence {
        outcome,
        sent: &[],
        stderr,
        error_file: None,
        memory_kill: None,
    }
}

/// A Python program that ended by this exception in its own file, behind torch's.
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
const WATCHDOG: &str = r#"[rank0]:[E1121 05:20:00.1 ProcessGroupNCCL.cpp:683] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600029 milliseconds before timing out.
[rank0]:[E1121 05:20:01.1 ProcessGroupNCCL.cpp:744] To avoid data inconsistency, we are taking the entire process down.
terminate called after throwing an instance of 'c10::DistBackendError'
  what():  [PG ID 0 PG GUID 0(default_pg) Rank 0] Process group watchdog thread terminated with exception: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)
Exception raised from checkTimeout at /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:686 (most recent call first):
frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in libc10.so)
"#;

#[test]
fn exceptions_that_python_programs_end_by() {
    for (exception, kind, says) in [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 1.00 GiB is free.",
            Kind::CudaOutOfMemory,
            "asked for 2.00 GiB more",
        ),
        (
            "torch.cuda.OutOfMemoryError: CUDA out of memory.",
            Kind::CudaOutOfMemory,
            "nvidia-smi",
        ),
        (
            "RuntimeError: CUDA error: out of memory",
            Kind::CudaOutOfMemory,
            "smaller micro-batches",
        ),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            Kind::CudaOutOfMemory,
            "memory ran out",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nCuda failure 2 'out of memory'",
            Kind::CudaOutOfMemory,
            "memory ran out",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:3690, unhandled system error (run with NCCL_DEBUG=INFO for details), NCCL version 2.28.9\nncclSystemError: System call (e.g. socket, malloc) or external library call failed or device error. \nLast error:\nError: failed to extend /dev/shm/nccl-x",
            Kind::Nccl,
            "NCCL_DEBUG=INFO",
        ),
        (
            "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:268, internal error - please report this issue to the NCCL developers\nncclInternalError: Internal check failed.",
            Kind::Nccl,
            "NCCL failed",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:7860",
            Kind::Gloo,
            "the other ranks' logs",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538] Read error [127.0.0.1]:927: Connection reset by peer",
            Kind::Gloo,
            "went away",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:446] writev [127.0.0.1]:927: Broken pipe",
            Kind::Gloo,
            "went away",
        ),
        (
            "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 3000ms for recv operation to complete",
            Kind::Gloo,
            "until the time was up",
        ),
        (
            "torch.distributed.DistNetworkError: failed to recv, got 0 bytes",
            Kind::Store,
            "rank 0",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node1, 29500).",
            Kind::Store,
            "MASTER_ADDR",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29700, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            Kind::PortInUse,
            "the port 29700 that",
        ),
        (
            "OSError: [Errno 98] Address already in use",
            Kind::PortInUse,
            "the port that",
        ),
        (
            "ModuleNotFoundError: No module named 'einops'",
            Kind::ModuleNotFound,
            "the module `einops`;",
        ),
        (
            "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory",
            Kind::MissingLibrary,
            "library libcudart.so.12 is",
        ),
        (
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
            Kind::BusError,
            "df -h /dev/shm",
        ),
        (
            "BrokenPipeError: [Errno 32] Broken pipe",
            Kind::BrokenPipe,
            "other end is closed",
        ),
        (
            "ValueError: bad sample 17",
            Kind::PythonException,
            "raised ValueError: bad sample 17 ",
        ),
        ("AssertionError", Kind::PythonException, "raised AssertionError "),
        (
            "KeyboardInterrupt",
            Kind::PythonException,
            "raised KeyboardInterrupt ",
        ),
    ] {
        let text = raised(exception);
        // Once torch has process groups it puts the rank before every line.
        let with_rank: String = text.lines().map(|line| format!("[rank3]: {line}\n")).collect();
        for text in [text, with_rank] {
            let cause = found(EXIT_1, &text).unwrap_or_else(|| panic!("{exception}"));
            assert_eq!(cause.kind, kind, "{exception}");
            assert!(cause.text.contains(says), "{}", cause.text);
            assert!(
                cause.text.ends_with("(at /home/a/train.py:13, in step)"),
                "{}",
                cause.text
            );
        }
    }
}

#[test]
fn last_words_without_a_traceback() {
    for (outcome, text, kind, says) in [
        (ABORTED, WATCHDOG, Kind::Nccl, "did not end in time"),
        (
            ABORTED,
            "terminate called after throwing an instance of 'c10::OutOfMemoryError'\n  what():  CUDA out of memory. Tried to allocate 20.00 MiB. GPU 1 has\n",
            Kind::CudaOutOfMemory,
            "20.00 MiB",
        ),
        (
            ABORTED,
            "terminate called after throwing an instance of 'gloo::IoException'\n  what():  [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.1]:1\n",
            Kind::Gloo,
            "went away",
        ),
        (
            ABORTED,
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such layer\n",
            Kind::Abort,
            "SIGABRT: the program ended itself with the message: no such layer",
        ),
        (
            ABORTED,
            "free(): invalid pointer\n",
            Kind::Abort,
            "SIGABRT: the program ended itself",
        ),
        (
            Outcome::Exited(127),
            "./a.out: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory\n",
            Kind::MissingLibrary,
            "library libtorch.so is",
        ),
        (
            EXIT_1,
            "/usr/bin/python3: No module named trainer\n",
            Kind::ModuleNotFound,
            "`trainer`",
        ),
        (
            EXIT_1,
            "Error: Connection closed by peer [127.0.0.1]:55\n",
            Kind::Gloo,
            "went away",
        ),
        (
            EXIT_1,
            "listen: Address already in use (os error 98)\n",
            Kind::PortInUse,
            "ss -ltnp",
        ),
        (
            EXIT_1,
            "worker: No space left on device: '/torch_71_4080'\n",
            Kind::BusError,
            "df -h /dev/shm",
        ),
        (
            EXIT_1,
            "sh: 1: echo: I/O error: Broken pipe\n",
            Kind::BrokenPipe,
            "other end is closed",
        ),
        (
            EXIT_1,
            "node1:71:90 [0] NCCL WARN socketProgress: Connection closed by remote peer node2<4000>\n",
            Kind::Nccl,
            "went away",
        ),
    ] {
        let cause = found(outcome, text).unwrap_or_else(|| panic!("{text}"));
        assert_eq!(cause.kind, kind, "{text}");
        assert!(cause.text.contains(says), "{}", cause.text);
    }
}

#[test]
fn what_says_nothing_of_a_cause_is_none() {
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
    let text = format!(
        "{}going on with less\n{}",
        raised("CUDA out of memory"),
        raised("ValueError: x")
    );
    assert_eq!(found(EXIT_1, &text).unwrap().kind, Kind::PythonException);
    let behind = format!(
        "{}Connection closed by peer [127.0.0.1]:5\n",
        raised("ValueError: x")
    );
    assert_eq!(found(EXIT_1, &behind).unwrap().kind, Kind::PythonException);
}

#[test]
fn what_an_exception_followed_from_may_name_the_cause() {
    let link = "During handling of the above exception, another exception occurred:";
    let text = format!(
        "{}\n{link}\n\n{}",
        raised("torch.OutOfMemoryError: CUDA out of memory."),
        raised("RuntimeError: cannot clean up")
    );
    assert_eq!(found(EXIT_1, &text).unwrap().kind, Kind::CudaOutOfMemory);
}

#[test]
fn signals_that_speak_for_themselves() {
    for (signal, kind, says) in [
        (4, Kind::IllegalInstruction, "SIGILL: "),
        (6, Kind::Abort, "SIGABRT: "),
        (7, Kind::BusError, "SIGBUS: "),
        (
            9,
            Kind::Killed,
            "SIGKILL, not sent by the launcher: perhaps by the kernel",
        ),
        (11, Kind::SegmentationFault, "SIGSEGV: "),
        (13, Kind::BrokenPipe, "SIGPIPE: "),
        (15, Kind::Killed, "SIGTERM, not sent by the launcher"),
        (24, Kind::CpuTime, "ulimit -t"),
        (25, Kind::FileSize, "ulimit -f"),
    ] {
        let cause = found(Outcome::Signaled(signal), "some text").unwrap();
        assert_eq!(cause.kind, kind, "{signal}");
        assert!(cause.text.contains(says), "{}", cause.text);
        let shell = found(Outcome::Exited(128 + signal), "").unwrap();
        assert_eq!(shell.kind, kind, "{signal}");
        assert!(
            shell
                .text
                .contains(&format!("if exit code {} means", 128 + signal)),
            "{}",
            shell.text
        );
        let sent = Evidence {
            sent: &[signal],
            ..evidence(Outcome::Signaled(signal), &[])
        };
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
        cause(&Evidence {
            memory_kill: Some(how),
            ..evidence(outcome, &stderr)
        })
        .unwrap()
    };
    let loader = raised("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ");
    for (outcome, how, stderr, says) in [
        (
            Outcome::Signaled(9),
            MemoryKill::Logged,
            "",
            "the kernel killed it because memory ran out, as the kernel's log",
        ),
        (
            Outcome::Signaled(9),
            MemoryKill::Group,
            "",
            "the count of such kills in its control group rose",
        ),
        (
            Outcome::Signaled(9),
            MemoryKill::Machine,
            "",
            "most probably the kernel killed it",
        ),
        (
            Outcome::Exited(137),
            MemoryKill::Group,
            "",
            "the kernel killed a process that it ran",
        ),
        (
            EXIT_1,
            MemoryKill::Group,
            &loader,
            "the kernel killed a process that it ran",
        ),
        (
            EXIT_1,
            MemoryKill::Group,
            "run.sh: line 3: 7 Killed   ./a",
            "the kernel killed a process that it ran",
        ),
    ] {
        let cause = with(outcome, how, stderr);
        assert_eq!(cause.kind, Kind::OutOfMemoryKilled, "{stderr}");
        assert!(cause.text.contains(says), "{}", cause.text);
    }
    let other = with(Outcome::Signaled(11), MemoryKill::Group, "");
    assert_eq!(other.kind, Kind::SegmentationFault, "somebody else was killed");
    assert_eq!(
        with(EXIT_1, MemoryKill::Group, &raised("E: x")).kind,
        Kind::PythonException
    );
}

#[test]
fn the_error_file_counts_and_its_call_stack_names_the_place() {
    let stack = raised("ValueError: bad")
        .replace('\n', "\\n")
        .replace('"', "\\\"");
    let file = format!(
        r#"{{"message":{{"message":"ValueError: bad","extraInfo":{{"py_callstack":"{stack}","timestamp":"1"}}}}}}"#
    );
    let of = |file: &str| {
        cause(&Evidence {
            error_file: Some(file),
            ..evidence(EXIT_1, &[])
        })
    };
    let text = of(&file).unwrap().text;
    assert_eq!(
        text,
        "the program raised ValueError: bad (at /home/a/train.py:13, in step)"
    );
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
        let told = Evidence {
            sent: &[15],
            ..evidence(EXIT_1, &stderr)
        };
        assert_eq!(cause(&told), None, "{exception}");
    }
    let stderr: Vec<_> = raised("ValueError: x").lines().map(str::to_owned).collect();
    let told = Evidence {
        sent: &[15],
        ..evidence(Outcome::Signaled(15), &stderr)
    };
    assert_eq!(
        cause_kind(&told),
        Some(Kind::PythonException),
        "it had said so before"
    );
}

#[test]
fn only_a_lost_connection_is_somebody_elses_fault() {
    let lost = |text: &str| found(EXIT_1, text).unwrap().peer_lost;
    assert!(lost("Connection closed by peer [127.0.0.1]:5"));
    assert!(lost(
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    ));
    assert!(lost(
        "torch.distributed.DistNetworkError: failed to recv, got 0 bytes"
    ));
    assert!(!lost(
        "gloo: Timed out waiting 3000ms for recv operation to complete"
    ));
    assert!(!lost("ncclInternalError: Internal check failed."));
    assert!(!lost("Address already in use"));
}

#[test]
fn every_text_is_one_line_of_bearable_length() {
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
