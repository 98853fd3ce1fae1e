//! What a run says while it goes on: metrics.jsonl for programs, a progress bar or plain lines for people.

mod log;
mod progress;
mod record;

pub use log::MetricsLog;
pub use progress::{Progress, Surface};
pub use record::{
    CheckpointRecord, EvalRecord, Figures, MicroBatches, OomRecord, StageRecord, StepRecord, WaitMs,
};
