//! What a worker can fail of.

use crate::local::Outcome;
use serde::{Deserialize, Serialize};

/// A kind of cause. Its word is part of `result.json` and does not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    OutOfMemoryKilled,
    Hang,
    /// A signal from outside, and nothing says who sent it.
    Killed,
    CudaOutOfMemory,
    /// The driver is too old for the program's CUDA, or does not fit itself.
    CudaDriver,
    /// A kernel failed by what the program did.
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
    #[serde(rename = "killed-by-cpu-time")]
    CpuTime,
    FileSize,
    BrokenPipe,
}

impl Kind {
    pub fn word(self) -> String {
        let word = serde_json::to_value(self).unwrap_or_default();
        word.as_str().unwrap_or_default().to_owned()
    }
}

/// What is known about a failed worker.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub outcome: Outcome,
    pub sent: &'a [i32],
    pub stderr: &'a [String],
    pub error_file: Option<&'a str>,
    pub memory_kill: Option<MemoryKill>,
}

/// How it is known that memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKill {
    /// The kernel's log names the process.
    Logged,
    /// The kernel killed a process of the launcher's control group.
    Group,
    /// The kernel killed a process of this machine, and nothing nearer can be read.
    Machine,
}

/// Why a worker failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub kind: Kind,
    /// What it means and what to do: one line.
    pub text: String,
    /// Whether it says that another worker is gone, so that the failure is probably a consequence.
    pub peer_lost: bool,
}

impl Cause {
    pub fn hang() -> Self {
        Self::new(
            Kind::Hang,
            "it made no progress any more; where its threads were stands in stacks.txt beside its log, or above",
        )
    }

    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), peer_lost: false }
    }
}
