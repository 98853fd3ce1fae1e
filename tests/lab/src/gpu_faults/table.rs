//! The kinds of faults, and how a launch must end.

/// A fault of a machine of fake GPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// The place of the fault: a function, or `launch` or `nccl`.
    pub(super) site: &'static str,
    /// The first and the last call that fails. A check runs only the first, of some kinds; a thorough check, of all.
    pub(super) calls: (u64, u64),
    /// What happens there.
    pub(super) code: &'static str,
    /// The number of GPUs, and the rank with the fault.
    pub(super) ranks: (usize, usize),
    /// The steps of the training, each with a checkpoint.
    pub(super) steps: u64,
    /// Further flags of the launch.
    pub(super) flags: &'static [&'static str],
    pub(super) end: End,
}

/// How a launch must end.
#[derive(Debug, Clone, Copy)]
pub(super) enum End {
    /// libtorch or dtrain manages without.
    Succeeds,
    /// With this code and these words in the failure's message.
    Fails(u8, &'static str),
}

const ILLEGAL: &str = "an illegal memory access";
const UNSPECIFIED: &str = "unspecified launch failure";
const GRAPH: &[&str] = &["--set", "model.compile=graph"];
/// A step is captured after three that run without a graph.
const GRAPH_STEPS: u64 = 6;

const fn on_one(
    name: &'static str,
    site: &'static str,
    calls: (u64, u64),
    code: &'static str,
    end: End,
) -> Kind {
    Kind { name, site, calls, code, ranks: (1, 0), steps: 3, flags: &[], end }
}

const fn on_two(
    name: &'static str,
    site: &'static str,
    calls: (u64, u64),
    code: &'static str,
    rank: usize,
    end: End,
) -> Kind {
    Kind { name, site, calls, code, ranks: (2, rank), steps: 3, flags: &[], end }
}

const fn failed(words: &'static str) -> End {
    End::Fails(4, words)
}

pub(super) const KINDS: &[Kind] = &[
    on_one("illegal address", "launch", (900, 1300), "illegal-address", failed(ILLEGAL)),
    on_one("ECC", "launch", (900, 1300), "ecc", failed("uncorrectable ECC error")),
    on_one("NVLink", "launch", (900, 1300), "nvlink", failed("uncorrectable NVLink error")),
    on_one("assertion", "launch", (900, 1300), "assert", failed("device-side assert triggered")),
    on_one("launch failure", "launch", (900, 1300), "launch-failure", failed(UNSPECIFIED)),
    on_one("lost", "launch", (900, 1300), "lost", failed("CUDA error: unknown error")),
    on_one("misaligned address", "launch", (900, 1300), "716", failed("misaligned address")),
    on_one("illegal instruction", "launch", (900, 1300), "715", failed("an illegal instruction")),
    on_one("hardware stack", "launch", (900, 1300), "714", failed("hardware stack error")),
    on_one("display time-out", "launch", (900, 1300), "702", failed("the launch timed out")),
    on_one("copy", "cudaMemcpyAsync", (30, 500), "illegal-address", failed(ILLEGAL)),
    on_one("fill", "cudaMemsetAsync", (3, 3), "illegal-address", failed(ILLEGAL)),
    on_one("recording an event", "cudaEventRecord", (9, 140), "999", failed("unknown error")),
    on_one("waiting for an event", "cudaEventSynchronize", (2, 60), "719", failed(UNSPECIFIED)),
    on_one("memory, once", "cuMemCreate", (8, 13), "2", End::Succeeds),
    on_one("pinned memory, once", "cudaHostAlloc", (2, 4), "out-of-memory", End::Succeeds),
    on_one("a handle of cuBLAS, once", "cublasCreate_v2", (1, 2), "3", End::Succeeds),
    on_one("a handle of cuDNN", "cudnnCreate", (1, 2), "1001", failed("CUDNN_STATUS_NOT_INITIALIZED")),
    on_one("cuBLAS", "cublasGemmEx", (3, 6), "13", failed("CUBLAS_STATUS_EXECUTION_FAILED")),
    on_one("cuDNN", "cudnnBackendExecute", (200, 350), "4000", failed("CUDNN_STATUS_EXECUTION_FAILED")),
    on_one("initialization", "cudaGetDeviceCount", (1, 1), "3", failed("CUDA driver initialization failed")),
    on_one("NVSwitch", "cudaGetDeviceCount", (1, 1), "802", failed("cannot use its GPU")),
    on_one("busy", "cudaGetDeviceProperties", (1, 1), "46", failed("busy or unavailable")),
    on_one("free memory", "cudaMemGetInfo", (1, 3), "999", failed("CUDA error: unknown error")),
    on_two("NCCL reports", "nccl", (5, 18), "6", 1, failed("NCCL: ")),
    on_two("NCCL does not connect", "ncclCommInitRankConfig", (1, 1), "2", 1, End::Fails(5, "NCCL: ")),
    on_two("a group of collectives", "ncclGroupEnd", (2, 4), "3", 1, failed("NCCL: internal error")),
    on_two("the end of NCCL", "ncclCommFinalize", (1, 1), "3", 1, failed("NCCL: internal error")),
    on_one("waiting for a stream", "cudaStreamSynchronize", (60, 120), "719", failed(UNSPECIFIED)),
    on_one("waiting for the device", "cudaDeviceSynchronize", (3, 80), "719", failed(UNSPECIFIED)),
    on_one("creating an event", "cudaEventCreate", (3, 60), "999", failed("unknown error")),
    on_two("asking for an event", "cudaEventQuery", (20, 100), "ecc", 1, failed("uncorrectable ECC error")),
    on_two("a broadcast", "ncclBroadcast", (1, 3), "2", 0, failed("NCCL: unhandled system error")),
    on_two("a collective is refused", "ncclAllReduce", (3, 18), "2", 1, failed("NCCL: ")),
    on_two("lost of two", "launch", (1000, 1300), "lost", 0, failed("CUDA error: unknown error")),
    on_two("illegal address of two", "launch", (900, 1300), "illegal-address", 1, failed(ILLEGAL)),
    on_two("waiting on the GPU", "cudaStreamWaitEvent", (6, 36), "illegal-address", 0, failed(ILLEGAL)),
    Kind {
        flags: &["--collective-timeout", "5"],
        ..on_two("NCCL hangs", "nccl", (5, 18), "hang", 1, failed("time-out after 5s"))
    },
    Kind {
        flags: &["--hang-timeout", "3"],
        ..on_one("a kernel never ends", "launch", (900, 1300), "hang", failed("no heartbeat"))
    },
    Kind {
        steps: GRAPH_STEPS,
        flags: GRAPH,
        ..on_one("a capture", "cudaStreamBeginCapture", (1, 1), "900", End::Succeeds)
    },
    Kind {
        steps: GRAPH_STEPS,
        flags: GRAPH,
        ..on_one("a graph", "cudaGraphInstantiateWithFlags", (1, 1), "out-of-memory", End::Succeeds)
    },
];
