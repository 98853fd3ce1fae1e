//! The state of the driver and of the GPUs at this moment.

use serde::{Deserialize, Serialize};

use super::GpuError;

/// A source of the status of a machine's GPUs: the driver, or a mock in tests.
pub trait Driver {
    fn status(&mut self) -> Result<Status, GpuError>;
}

/// A machine's driver and GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Status {
    pub driver: String,
    /// The newest CUDA that the driver supports.
    pub cuda: Option<String>,
    pub gpus: Vec<GpuStatus>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuStatus {
    pub index: u32,
    pub name: String,
    pub uuid: Option<String>,
    pub total_bytes: u64,
    pub free_bytes: u64,
    /// Percent of the driver's last sample period in which a kernel ran; `None` if not reported.
    pub busy_percent: Option<u32>,
    pub temperature_c: Option<u32>,
    pub power_mw: Option<u32>,
    pub processes: Vec<GpuProcess>,
}

/// A process that uses a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuProcess {
    /// In a container: the pid of the host, as the driver counts.
    pub pid: u32,
    /// Its memory on this GPU in bytes; `None` if not reported.
    pub used_bytes: Option<u64>,
}

/// Settings of a GPU that decide whether and how fast programs can use it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Settings {
    /// The compute capability, such as (9, 0).
    pub capability: Option<(i32, i32)>,
    /// The number of multiprocessors.
    pub multiprocessors: Option<u32>,
    /// Whether the driver stays loaded while no program uses the GPU.
    pub is_persistent: Option<bool>,
    /// Whether the compute mode forbids every CUDA program.
    pub is_prohibited: Option<bool>,
}

impl GpuStatus {
    /// Returns the memory in use by all processes, in bytes.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.free_bytes)
    }
}

/// The oldest driver for a major version of CUDA (CUDA Toolkit Release Notes, minor version compatibility).
const OLDEST_DRIVERS: [(u32, u32); 2] = [(13, 580), (12, 525)];

/// Versions of the driver and of its CUDA.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// The driver's version, such as `580.65.06`.
    pub driver: String,
    /// The newest CUDA that it supports, such as `13.0`, or the CUDA of a forward-compatibility package.
    pub cuda: Option<String>,
}

impl Versions {
    /// Returns whether libraries of this major version of CUDA run on the driver; true if unknown.
    pub fn supports(&self, cuda: u32) -> bool {
        match self.cuda.as_deref().and_then(major) {
            Some(newest) => newest >= cuda,
            None => match (major(&self.driver), oldest_driver(cuda)) {
                (Some(branch), Some(oldest)) => branch >= oldest,
                _ => true,
            },
        }
    }
}

/// Returns the first driver branch for this major version of CUDA, such as 580; `None` if unknown.
pub fn oldest_driver(cuda: u32) -> Option<u32> {
    OLDEST_DRIVERS.iter().find(|(major, _)| *major == cuda).map(|(_, oldest)| *oldest)
}

fn major(version: &str) -> Option<u32> {
    version.trim().split('.').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn versions(driver: &str, cuda: Option<&str>) -> Versions {
        Versions { driver: driver.into(), cuda: cuda.map(Into::into) }
    }

    #[test]
    fn the_cuda_that_the_driver_names_decides() {
        for (driver, cuda, serves_12, serves_13) in [
            ("580.65.06", "13.0", true, true),
            ("590.44", "13.1", true, true),
            ("575.57.08", "12.9", true, false),
            ("525.60", "12.0", true, false),
            ("470.256", "11.4", false, false),
            // With a forward-compatibility package.
            ("535.183", "13.0", true, true),
        ] {
            let versions = versions(driver, Some(cuda));
            assert_eq!((versions.supports(12), versions.supports(13)), (serves_12, serves_13), "{driver}");
        }
    }

    #[test]
    fn without_a_cuda_version_the_driver_branch_decides() {
        for (driver, serves_12, serves_13) in [
            ("580.65.06", true, true),
            ("579.99", true, false),
            ("525.60.13", true, false),
            ("520.61", false, false),
            ("a driver", true, true),
            ("", true, true),
        ] {
            for cuda in [None, Some("of no number")] {
                let versions = versions(driver, cuda);
                assert_eq!(
                    (versions.supports(12), versions.supports(13)),
                    (serves_12, serves_13),
                    "{driver}"
                );
            }
        }
        assert!(versions("580.65", None).supports(14), "no branch is known for it");
    }
}
