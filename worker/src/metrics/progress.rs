//! Progress for people: a bar on a terminal, plain lines in a log. Only on stderr, only on rank 0.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use dtrain_common::env::DTRAIN_PROGRESS;
use dtrain_common::log_line::LogFormat;
use dtrain_common::units::ByteSize;
use serde_json::{Map, Value, json};

use super::{StepRecord, lines};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProgressStyle {
    /// The process's terminal: frames overwrite each other in place.
    Terminal,
    /// The launcher's terminal: a frame is text that ends with a carriage return.
    Launcher,
    /// As [`ProgressStyle::Lines`], each line as a JSON object.
    Json,
    /// A file or a pipe: one line every `every_steps` steps.
    Lines,
    /// No output, on other ranks.
    Silent,
}

impl ProgressStyle {
    pub(crate) fn detect(rank: usize) -> Self {
        match std::env::var(DTRAIN_PROGRESS) {
            _ if rank != 0 => Self::Silent,
            _ if LogFormat::of_process() == LogFormat::Json => Self::Json,
            Ok(value) if value == "terminal" => Self::Launcher,
            _ if io::stderr().is_terminal() => Self::Terminal,
            _ => Self::Lines,
        }
    }
}

/// The shortest time between frames.
const FRAME_INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 16;

#[derive(Debug)]
pub(crate) struct Progress {
    style: ProgressStyle,
    total_steps: u64,
    total_epochs: u64,
    /// Steps between lines.
    every_steps: u64,
    /// The start of training in this process; `first_step` is the last step before it.
    begun: Instant,
    first_step: u64,
    last_frame: Option<Instant>,
}

impl Progress {
    /// Creates the progress of a run of `total_steps` in `total_epochs` that continues after `done` steps.
    pub(crate) fn new(
        style: ProgressStyle,
        total_steps: u64,
        total_epochs: u64,
        every_steps: u64,
        done: u64,
    ) -> Self {
        Self {
            style,
            total_steps,
            total_epochs,
            every_steps,
            begun: Instant::now(),
            first_step: done,
            last_frame: None,
        }
    }

    pub(crate) fn note(&self, text: impl Display) {
        match self.style {
            ProgressStyle::Silent => {}
            ProgressStyle::Terminal => print(&format!("\x1b[2K{}\n", lines::coloured(&text.to_string()))),
            ProgressStyle::Launcher | ProgressStyle::Lines => print(&format!("{text}\n")),
            ProgressStyle::Json => lines::print_json(&text.to_string(), Map::new()),
        }
    }

    /// Ends the output, and clears the bar for later lines.
    pub(crate) fn finish(&self) {
        if self.style == ProgressStyle::Terminal {
            print("\x1b[2K");
        }
    }

    pub(crate) fn step(&mut self, record: &StepRecord, now: Instant) {
        let is_last = record.step == self.total_steps;
        match self.style {
            ProgressStyle::Silent => {}
            ProgressStyle::Lines | ProgressStyle::Json => {
                let is_first = record.step == self.first_step + 1;
                if is_first || is_last || record.step.is_multiple_of(self.every_steps) {
                    match self.style {
                        ProgressStyle::Json => {
                            lines::print_json(&self.line(record), self.fields(record, now))
                        }
                        _ => print(&format!("{}\n", self.line(record))),
                    }
                }
            }
            ProgressStyle::Terminal | ProgressStyle::Launcher => {
                if is_last || self.last_frame.is_none_or(|last| now - last >= FRAME_INTERVAL) {
                    self.last_frame = Some(now);
                    let frame = self.frame(record, now);
                    print(&match self.style {
                        ProgressStyle::Terminal => format!("\x1b[2K{}\r", truncate(&frame, columns())),
                        _ => format!("{frame}\r"),
                    });
                }
            }
        }
    }

    fn line(&self, record: &StepRecord) -> String {
        let skipped = record.skipped.map(|cause| format!("  (skipped: {})", cause.describe()));
        format!(
            "step {}/{}  epoch {}/{}  loss {:.4}  lr {:.3e}  grad {:.3}  {:.0} samples/s  {}{}",
            record.step,
            self.total_steps,
            record.epoch,
            self.total_epochs,
            record.loss,
            record.lr,
            record.grad_norm,
            record.samples_per_s,
            ByteSize(record.memory.report.peak),
            skipped.unwrap_or_default(),
        )
    }

    fn fields(&self, record: &StepRecord, now: Instant) -> Map<String, Value> {
        let fields = json!({
            "step": record.step,
            "total_steps": self.total_steps,
            "epoch": record.epoch,
            "total_epochs": self.total_epochs,
            "loss": record.loss,
            "lr": record.lr,
            "grad_norm": record.grad_norm,
            "samples_per_s": record.samples_per_s,
            "peak_memory_bytes": record.memory.report.peak,
            "eta_s": self.seconds_left(record.step, now),
        });
        fields.as_object().cloned().unwrap_or_default()
    }

    fn frame(&self, record: &StepRecord, now: Instant) -> String {
        let share = record.step as f64 / self.total_steps.max(1) as f64;
        let filled = ((share * BAR_WIDTH as f64) as usize).min(BAR_WIDTH);
        let bar = "#".repeat(filled) + &"-".repeat(BAR_WIDTH - filled);
        // The most important part comes first, because a narrow terminal cuts the end off.
        format!("[{bar}] {:3.0}%  ETA {}  {}", share * 100.0, self.eta(record.step, now), self.line(record))
    }

    /// Estimates the remaining time from the mean duration of the steps of this process.
    fn seconds_left(&self, step: u64, now: Instant) -> u64 {
        let made = step.saturating_sub(self.first_step).max(1);
        let left = self.total_steps.saturating_sub(step);
        ((now - self.begun).as_secs_f64() / made as f64 * left as f64).round() as u64
    }

    fn eta(&self, step: u64, now: Instant) -> String {
        let seconds = self.seconds_left(step, now);
        match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
            (0, minutes, seconds) => format!("{minutes}:{seconds:02}"),
            (hours, minutes, seconds) => format!("{hours}:{minutes:02}:{seconds:02}"),
        }
    }
}

fn columns() -> usize {
    let size = rustix::termios::tcgetwinsize(io::stderr());
    size.map_or(0, |size| usize::from(size.ws_col))
}

/// Cuts a frame to the width of the terminal, to avoid wrapping. 0 columns mean an unknown width.
fn truncate(frame: &str, columns: usize) -> String {
    let width = if columns == 0 { 80 } else { columns };
    frame.chars().take(width.saturating_sub(1)).collect()
}

/// Writes to stderr and ignores errors: a closed reader must not end a training.
fn print(text: &str) {
    let mut out = io::stderr().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{MemoryReport, StepMemory};
    use crate::metrics::{SkipCause, StepHashes, WaitMs};

    fn record(step: u64) -> StepRecord {
        StepRecord {
            step,
            epoch: 2,
            stage: None,
            samples: 256,
            loss: 3.21098,
            lr: 1e-3,
            grad_norm: 1.5,
            loss_scale: 1.0,
            samples_per_s: 312.4,
            step_ms: 10.0,
            elapsed_s: 0.01,
            wait_ms: WaitMs::default(),
            memory: StepMemory {
                report: MemoryReport { peak: 3 << 29, ..MemoryReport::default() },
                ..StepMemory::default()
            },
            hashes: StepHashes::default(),
            skipped: (step == 7).then(|| SkipCause::of(f64::NAN, 0.0)),
        }
    }

    #[test]
    fn frames_contain_the_line() {
        let progress = Progress::new(ProgressStyle::Lines, 100, 4, 10, 0);
        let line = "step 25/100  epoch 2/4  loss 3.2110  lr 1.000e-3  grad 1.500  312 samples/s  1.50 GiB";
        assert_eq!(progress.line(&record(25)), line);
        let now = progress.begun + Duration::from_secs(50);
        let frame = format!("[####------------]  25%  ETA 2:30  {line}");
        assert_eq!(progress.frame(&record(25), now), frame);
        assert!(progress.line(&record(7)).ends_with("(skipped: no sample or pixel counted)"));
    }

    #[test]
    fn an_object_has_the_numbers_of_the_line() {
        let progress = Progress::new(ProgressStyle::Json, 100, 4, 10, 0);
        let fields = progress.fields(&record(25), progress.begun + Duration::from_secs(50));
        assert_eq!(
            (&fields["step"], &fields["total_steps"], &fields["eta_s"]),
            (&25.into(), &100.into(), &150.into())
        );
        assert_eq!(fields["peak_memory_bytes"], 3_u64 << 29);
        // JSON has no NaN.
        let skipped = StepRecord { loss: f64::NAN, ..record(7) };
        assert_eq!(progress.fields(&skipped, progress.begun)["loss"], Value::Null);
    }

    #[test]
    fn skipped_steps_have_a_cause() {
        assert_eq!(SkipCause::of(f64::NAN, 0.0), SkipCause::Nothing);
        assert_eq!(SkipCause::of(f64::INFINITY, 8.0), SkipCause::Loss);
        assert_eq!(SkipCause::of(1.0, 8.0), SkipCause::Gradient);
    }

    #[test]
    fn frames_do_not_wrap() {
        assert_eq!(truncate("abcdef", 4), "abc");
        assert_eq!(truncate("abcdef", 7), "abcdef");
        assert_eq!(truncate(&"x".repeat(200), 0).len(), 79);
    }

    #[test]
    fn the_eta_counts_only_steps_of_this_process() {
        let progress = Progress::new(ProgressStyle::Lines, 20_000, 4, 10, 100);
        assert_eq!(progress.eta(110, progress.begun + Duration::from_secs(10)), "5:31:30");
    }
}
