//! Real last messages of workers, and the causes found in them.

use super::*;

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
            "allocation of 2.00 GiB failed",
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Kind::CudaOutOfMemory, "nvidia-smi"),
        ("RuntimeError: CUDA error: out of memory", Kind::CudaOutOfMemory, "smaller micro-batches"),
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
            "a Gloo operation timed out",
        ),
        ("RuntimeError: Operation timed out!", Kind::Gloo, "a Gloo operation timed out"),
        (
            "RuntimeError: Operation timed out! (modbus device 3)",
            Kind::PythonException,
            "RuntimeError: Operation timed out! (modbus",
        ),
        ("torch.distributed.DistNetworkError: failed to recv, got 0 bytes", Kind::Store, "rank 0"),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (node1, 29500).",
            Kind::Store,
            "MASTER_ADDR",
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29700, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            Kind::PortInUse,
            "uses the port 29700;",
        ),
        ("OSError: [Errno 98] Address already in use", Kind::PortInUse, "uses the port;"),
        ("ModuleNotFoundError: No module named 'einops'", Kind::ModuleNotFound, "the module `einops`;"),
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
        ("BrokenPipeError: [Errno 32] Broken pipe", Kind::BrokenPipe, "the reader of its pipe"),
        ("ValueError: bad sample 17", Kind::PythonException, "raised ValueError: bad sample 17 "),
        ("AssertionError", Kind::PythonException, "raised AssertionError "),
        ("KeyboardInterrupt", Kind::PythonException, "raised KeyboardInterrupt "),
    ] {
        let text = raised(exception);
        // If process groups exist, torch puts the rank before every line.
        let with_rank: String = text.lines().map(|line| format!("[rank3]: {line}\n")).collect();
        for text in [text, with_rank] {
            let cause = expect_cause(EXIT_1, &text, kind, says);
            assert!(cause.text.ends_with("(at /home/a/train.py:13, in step)"), "{}", cause.text);
        }
    }
}

#[test]
fn last_words_without_a_traceback() {
    for (outcome, text, kind, says) in [
        (ABORTED, WATCHDOG, Kind::Nccl, "an NCCL collective timed out"),
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
        (ABORTED, "free(): invalid pointer\n", Kind::Abort, "SIGABRT: the program ended itself"),
        (
            Outcome::Exited(127),
            "./a.out: error while loading shared libraries: libtorch.so: cannot open shared object file: No such file or directory\n",
            Kind::MissingLibrary,
            "library libtorch.so is",
        ),
        (EXIT_1, "/usr/bin/python3: No module named trainer\n", Kind::ModuleNotFound, "`trainer`"),
        (EXIT_1, "Error: Connection closed by peer [127.0.0.1]:55\n", Kind::Gloo, "went away"),
        (EXIT_1, "listen: Address already in use (os error 98)\n", Kind::PortInUse, "ss -ltnp"),
        (EXIT_1, "worker: No space left on device: '/torch_71_4080'\n", Kind::BusError, "df -h /dev/shm"),
        (EXIT_1, "sh: 1: echo: I/O error: Broken pipe\n", Kind::BrokenPipe, "the reader of its pipe"),
        (
            EXIT_1,
            "node1:71:90 [0] NCCL WARN socketProgress: Connection closed by remote peer node2<4000>\n",
            Kind::Nccl,
            "went away",
        ),
    ] {
        expect_cause(outcome, text, kind, says);
    }
}
