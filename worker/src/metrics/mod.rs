//! Output during a run: metrics.jsonl for programs, a progress bar or plain lines for people.

mod log;
mod progress;
mod record;

/// Formats a figure for people; shares are in percent.
pub(crate) fn figure(name: &str, value: f64) -> String {
    match name {
        "mean_iou" => format!("{:.2}%", value * 100.0),
        _ if name.ends_with("accuracy") => format!("{:.2}%", value * 100.0),
        _ => format!("{value:.4}"),
    }
}

pub(crate) use log::MetricsLog;
pub(crate) use progress::{Progress, ProgressStyle};
pub(crate) use record::{
    CheckpointRecord, EvalRecord, Figures, Line, MicroBatches, OomRecord, SkipCause, StageRecord, StepRecord,
    TestRecord, WaitMs,
};
