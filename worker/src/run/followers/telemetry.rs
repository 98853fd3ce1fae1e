//! The lines of the metrics for other programs.

use std::cell::RefCell;
use std::rc::Rc;

use dtrain_telemetry::Telemetry;

use crate::metrics::Line;
use crate::run::error::Result;
use crate::run::follower::Follower;

/// The telemetry of a run, which outlives its followers: tests at the end have lines too.
#[derive(Debug, Clone, Default)]
pub(crate) struct TelemetryHandle(pub(crate) Rc<RefCell<Telemetry>>);

impl Follower for TelemetryHandle {
    fn record(&mut self, line: &Line<'_>) -> Result<()> {
        self.0.borrow_mut().record(line);
        Ok(())
    }
}
