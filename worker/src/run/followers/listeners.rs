//! Followers that only observe, and the request to stop.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::time::Instant;

use dtrain_common::result::RunResult;
use dtrain_common::units::ByteSize;

use crate::heartbeat::Heartbeat;
use crate::memory::{self, budget};
use crate::metrics::{Line, MetricsLog, Progress};
use crate::run::Training;
use crate::run::best::figures_of;
use crate::run::error::{Result, TrainError};
use crate::run::follower::{Flow, Follower, Followers};
use crate::step::{Status, StepError, Taken};
use crate::stop::StopFlag;

impl Follower for Heartbeat {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        if matches!(line, Line::Step(_)) {
            self.touch();
        }
        Ok(())
    }

    fn advance(&mut self) {
        self.touch();
    }
}

impl Follower for MetricsLog {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        self.append(line).map_err(TrainError::Metrics)
    }
}

impl Follower for Progress {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
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
    fn add_status(&mut self, status: &mut Status, _: usize) -> Result<(), StepError> {
        status.stop = f64::from(u8::from(self.is_requested()));
        Ok(())
    }

    fn after_step(&mut self, _: &mut Training<'_>, taken: &Taken, _: &mut Followers<'_>) -> Result<Flow> {
        Ok(if taken.status.stop > 0.0 { Flow::Stopped } else { Flow::Continue })
    }
}

/// The inverse of the share of reserved memory from which fragmentation is reported.
const FRAGMENTED: u64 = 5;

/// Figures for result.json: the last ones, and the peak memory.
pub(crate) struct Figures {
    last: BTreeMap<String, f64>,
    /// Peak bytes of this rank's tensors in a step.
    peak: u64,
}

impl Figures {
    /// Starts with the figures of the checkpoint from which the run continues.
    pub(crate) fn new(earlier: BTreeMap<String, f64>) -> Self {
        Self { last: earlier, peak: 0 }
    }
}

impl Follower for Figures {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
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

    /// Reports a large share of reserved device memory that tensors never used. On a CPU there is no cache.
    fn finish(&mut self, training: &mut Training<'_>, others: &mut Followers<'_>) -> Result<()> {
        let device = training.device();
        // Under dtrain's own settings there is nothing to change.
        if !budget::is_allocator_of_user() {
            return Ok(());
        }
        let Ok(usage) = memory::report(device) else { return Ok(()) };
        let used = self.peak.max(usage.allocated);
        let beyond = usage.reserved.saturating_sub(used);
        if device.is_cuda() && beyond * FRAGMENTED >= usage.reserved {
            others.note(format!(
                "memory is fragmented: {} of {} reserved ({}%) were never in use at once; add expandable_segments:True to \
                 PYTORCH_ALLOC_CONF, or do not set it: that is dtrain's default",
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
