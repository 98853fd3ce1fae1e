//! What a worker can fail of.
#![expect(missing_docs, reason = "the words of most kinds say what they are")]

/// A kind of cause. Its word is part of `result.json` and does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    OutOfMemoryKilled,
    Hang,
    /// A signal from outside, and nothing says who sent it.
    Killed,
    CudaOutOfMemory,
    /// The driver is too old for the program's CUDA, or does not fit itself.
    CudaDriver,
    /// A kernel failed by what the program did, as far as is known.
    CudaKernel,
    /// The program holds no code for this kind of GPU.
    GpuUnsupported,
    /// The GPU is there, or should be, and cannot be used.
    GpuUnavailable,
    /// The driver does not reach it any more.
    GpuLost,
    /// Its memory or a link of it is broken.
    GpuHardware,
    /// An operation of our own trainer's ranks waited for one of them until its time was up.
    CollectiveTimeout,
    Nccl,
    Gloo,
    /// torch's key-value store, which rank 0 serves.
    Store,
    PortInUse,
    MissingLibrary,
    ModuleNotFound,
    PythonException,
    IllegalInstruction,
    SegmentationFault,
    Abort,
    BusError,
    CpuTime,
    FileSize,
    BrokenPipe,
}

impl Kind {
    /// The stable word.
    pub fn word(self) -> &'static str {
        match self {
            Self::OutOfMemoryKilled => "out-of-memory-killed",
            Self::Hang => "hang",
            Self::Killed => "killed",
            Self::CudaOutOfMemory => "cuda-out-of-memory",
            Self::CudaDriver => "cuda-driver",
            Self::CudaKernel => "cuda-kernel",
            Self::GpuUnsupported => "gpu-unsupported",
            Self::GpuUnavailable => "gpu-unavailable",
            Self::GpuLost => "gpu-lost",
            Self::GpuHardware => "gpu-hardware",
            Self::CollectiveTimeout => "collective-timeout",
            Self::Nccl => "nccl",
            Self::Gloo => "gloo",
            Self::Store => "store",
            Self::PortInUse => "port-in-use",
            Self::MissingLibrary => "missing-library",
            Self::ModuleNotFound => "module-not-found",
            Self::PythonException => "python-exception",
            Self::IllegalInstruction => "illegal-instruction",
            Self::SegmentationFault => "segmentation-fault",
            Self::Abort => "abort",
            Self::BusError => "bus-error",
            Self::CpuTime => "killed-by-cpu-time",
            Self::FileSize => "file-size",
            Self::BrokenPipe => "broken-pipe",
        }
    }
}
