//! Machines for the tests: values that a driver does not report, tables to the letter, looks that differ, a terminal.
//!
//! `fake_gpus::commands` in tests/tests/e2e runs the commands on fake GPUs, by NVML, with real processes.

use dtrain_common::gpu::{Driver, GpuError, GpuProcess, GpuStatus, Status};
use std::collections::VecDeque;

/// A driver that returns the given states in order, and repeats the last.
pub(super) struct FakeDriver(pub(super) VecDeque<Status>);

impl FakeDriver {
    pub(super) fn new(status: Status) -> Self {
        Self([status].into())
    }
}

impl Driver for FakeDriver {
    fn status(&mut self) -> Result<Status, GpuError> {
        let first = self.0.pop_front().unwrap_or_default();
        if self.0.is_empty() {
            self.0.push_back(first.clone());
        }
        Ok(first)
    }
}

/// Returns a process with 1 GiB.
pub(super) fn process(pid: u32) -> GpuProcess {
    GpuProcess { pid, used_bytes: Some(1 << 30) }
}

/// Returns two GPUs: one with these processes, and one with few known values.
pub(super) fn machine(processes: Vec<GpuProcess>) -> Status {
    let gpu = |index: u32, name: &str| GpuStatus {
        index,
        name: name.into(),
        uuid: Some(format!("GPU-aa{index}-0001")),
        total_bytes: 16 << 30,
        free_bytes: 12 << 30,
        busy_percent: Some(87),
        temperature_c: Some(61),
        power_mw: Some(250_400),
        processes: Vec::new(),
    };
    Status {
        driver: "580.65".into(),
        cuda: Some("13.0".into()),
        gpus: vec![
            GpuStatus { processes, ..gpu(0, "NVIDIA H200") },
            GpuStatus { busy_percent: None, temperature_c: None, power_mw: None, ..gpu(1, "Tesla T4") },
        ],
    }
}
