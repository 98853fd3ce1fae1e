//! The kinds of a worker's failure.

use crate::local::Outcome;
use serde::{Deserialize, Serialize};

/// A kind of cause. Its word appears in `result.json` and must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    OutOfMemoryKilled,
    Hang,
    /// A signal from outside, of an unknown sender.
    Killed,
    CudaOutOfMemory,
    /// The driver is too old for the program's CUDA, or its parts do not match.
    CudaDriver,
    /// A kernel failed because of the program.
    CudaKernel,
    /// The program contains no code for this kind of GPU.
    GpuUnsupported,
    /// The GPU exists, or should exist, and cannot be used.
    GpuUnavailable,
    /// The driver cannot reach the GPU any more.
    GpuLost,
    /// The GPU's memory or a link of the GPU is broken.
    GpuHardware,
    /// A collective of dtrain's own trainer timed out.
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
    pub fn name(self) -> String {
        let word = serde_json::to_value(self).unwrap_or_default();
        word.as_str().unwrap_or_default().to_owned()
    }
}

/// The facts about a failed worker.
#[derive(Clone, Copy, Debug)]
pub struct Evidence<'a> {
    pub outcome: Outcome,
    pub sent: &'a [i32],
    pub stderr: &'a [String],
    pub error_file: Option<&'a str>,
    pub memory_kill: Option<MemoryKill>,
}

/// How the launcher knows that memory ran out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKill {
    /// The kernel's log names the process.
    Logged,
    /// The kernel killed a process of the launcher's control group.
    Group,
    /// The kernel killed a process of this machine, and no nearer counter can be read.
    Machine,
}

/// The cause of a worker's failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    pub kind: Kind,
    /// The meaning and the remedy: one line.
    pub text: String,
    /// Whether the message reports another worker as gone, so that this failure is probably a consequence.
    pub peer_lost: bool,
}

impl Cause {
    pub fn hang() -> Self {
        Self::new(Kind::Hang, "no progress; thread stacks: stacks.txt beside the log, or above")
    }

    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), peer_lost: false }
    }
}
