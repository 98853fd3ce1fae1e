//! Followers that only listen, and the request to stop.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

use dtrain_common::result::RunResult;
use dtrain_common::units::ByteSize;

use super::best::figures_of;
use super::{Flow, Follower, Followers};
use crate::heartbeat::Heartbeat;
use crate::memory;
use crate::metrics::{Line, MetricsLog, Progress};
use crate::run::{StopFlag, Training};
use crate::step::{Status, Taken};
use crate::train_error::{Result, TrainError};

impl Follower for Heartbeat {
    fn hear(&mut self, line: &Line<'_>) -> Result<()> {
        if matches!(line, Line::Step(_)) {
            self.beat();
        }
        Ok(())
    }

    fn advance(&mut self) {
        self.beat();
    }
}

impl Follower for MetricsLog {
    fn hear(&mut self, line: &Line<'_>) -> Result<()> {
        self.append(line).map_err(TrainError::Metrics)
    }
}

impl Follower for Progress {
    fn hear(&mut self, line: &Line<'_>) -> Result<()> {
        if let Line::Step(record) = line {
            self.step(record, Instant::now());
        }
        Ok(())
    }

    fn note(&mut self, text: &dyn Display) {
        Self::note(self, text);
    }

    fn finish(&mut self, _: &mut Training<'_>, _: &mut Followers<'_>) -> Result<()> {
        Self::finish(self);
        Ok(())
    }
}

impl Follower for StopFlag {
    fn say(&mut self, status: &mut Status, _: usize) -> Result<()> {
        status.stop = f64::from(u8::from(self.is_asked()));
        Ok(())
    }

    fn after_step(&mut self, _: &mut Training<'_>, taken: &Taken, _: &mut Followers<'_>) -> Result<Flow> {
        Ok(if taken.status.stop > 0.0 { Flow::Stopped } else { Flow::On })
    }
}

/// Of what is reserved, so much as one part in this many may be in pieces before it is worth a word.
const FRAGMENTED: u64 = 5;

/// The figures for result.json: the last ones, and the most memory.
pub(crate) struct Figures {
    last: BTreeMap<String, f64>,
    /// The most that this rank's tensors took in a step, in bytes.
    peak: u64,
}

impl Figures {
    /// Of a run that goes on from a checkpoint whose evaluation had these.
    pub(crate) fn new(earlier: BTreeMap<String, f64>) -> Self {
        Self { last: earlier, peak: 0 }
    }
}

impl Follower for Figures {
    fn hear(&mut self, line: &Line<'_>) -> Result<()> {
        match line {
            Line::Step(record) => {
                self.peak = self.peak.max(record.memory.report.peak);
                if record.loss.is_finite() {
                    self.last.insert("train_loss".into(), record.loss);
                }
            }
            Line::Eval(record) => self.last.extend(figures_of(record)),
            _ => {}
        }
        Ok(())
    }

    /// Tells what the device holds beyond what tensors took at most, where that is worth a word. The host's allocator keeps no blocks.
    fn finish(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<()> {
        let device = training.device();
        let Ok(usage) = memory::report(device) else { return Ok(()) };
        let used = self.peak.max(usage.allocated);
        let beyond = usage.reserved.saturating_sub(used);
        if device.is_cuda() && beyond * FRAGMENTED >= usage.reserved {
            others.note(format!(
                "{} of {} reserved were never in use at once, which is {}%: memory in pieces. expandable_segments:True in \
                 PYTORCH_CUDA_ALLOC_CONF, which is on unless that is set, keeps it together",
                ByteSize(beyond),
                ByteSize(usage.reserved),
                100 * beyond / usage.reserved.max(1)
            ));
        }
        Ok(())
    }

    fn conclude(&self, result: &mut RunResult) {
        result.final_metrics = self.last.clone();
        result.peak_memory_bytes = vec![self.peak];
    }
}
