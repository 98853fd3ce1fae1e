//! The kinds of a worker's failure.

use crate::local::Outcome;
use crate::signals;
use serde::{Deserialize, Serialize};

/// A kind of cause. Its word appears in `result.json` and must not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    OutOfMemoryKilled,
    Hang,
    /// A signal from outside.
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
    /// Another rank of dtrain's own trainer ended or left.
    PeerLost,
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

    /// Returns the cause of a worker that died of a signal which the launcher passed on to it. `sender` is the process that
    /// signalled the launcher, such as `PID 7 (bash)`.
    pub fn passed_on(signal: i32, sender: Option<&str>) -> Self {
        let name = signals::name(signal);
        let from = sender.map_or_else(String::new, |sender| format!(" from {sender}"));
        let text = format!(
            "{name}, which the launcher passed on{from}: the program has no handler for it, or had none yet; handle {name} in \
             the program, or do not send it to the launcher"
        );
        Self::new(Kind::Killed, text)
    }

    /// Names the ranks that ended with exit code 0 before this worker lost a peer: no rank has failed before it.
    pub fn left_by(mut self, rank: usize, ended: &[usize]) -> Self {
        let names: Vec<_> = ended.iter().map(usize::to_string).collect();
        let ranks = if ended.len() > 1 { "ranks" } else { "rank" };
        let place = self.text.rfind(" (at ").map_or("", |at| &self.text[at..]);
        self.text = format!(
            "{ranks} {} ended with exit code 0 while rank {rank} was still communicating; all ranks must run the same \
             operations: give them equal numbers of steps, or a barrier at the end{place}",
            names.join(", ")
        );
        self
    }

    /// Words the loss of a peer that was asked to stop too, and stopped first.
    pub fn after_a_stop(mut self) -> Self {
        self.text = "another rank had stopped first, and the connection to it was lost".to_owned();
        self
    }

    pub(super) fn new(kind: Kind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), peer_lost: false }
    }
}
