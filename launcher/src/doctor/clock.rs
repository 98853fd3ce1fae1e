//! The clock, and the number of this start of the kernel.

use super::row::Row;
use rustix::time::{ClockId, clock_gettime};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// Programs that set the clock, as the kernel shortens their names.
const SERVICES: [&str; 7] =
    ["chronyd", "ntpd", "openntpd", "ptp4l", "phc2sys", "systemd-timesyn", "ntpd-rs-daemon"];
/// A clock that runs faster or slower than its hardware by this part is corrected by a service.
const CORRECTED_PPM: f64 = 0.05;

pub(super) fn check() -> Vec<Row> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = processes.filter_map(|entry| fs::read_to_string(entry.path().join("comm")).ok());
    let service = names.map(|name| name.trim().to_owned()).find(|name| SERVICES.contains(&name.as_str()));
    let synchronized = Path::new("/run/systemd/timesync/synchronized").exists();
    let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    vec![judge(service.as_deref(), synchronized, correction()), judge_boot(boot_id.trim())]
}

/// Returns the part, in millionths, by which the kernel's clock ran differently from its hardware since boot.
/// Only a time service changes it, also one outside of this container.
fn correction() -> f64 {
    let time = |clock| {
        let time = clock_gettime(clock);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32).as_secs_f64()
    };
    let (corrected, raw) = (time(ClockId::Monotonic), time(ClockId::MonotonicRaw));
    (corrected - raw).abs() / raw.max(1.0) * 1e6
}

fn judge(service: Option<&str>, synchronized: bool, ppm: f64) -> Row {
    match service {
        Some(service) => Row::ok("clock", format!("set by {service}")),
        None if synchronized => Row::ok("clock", "synchronized"),
        None if ppm > CORRECTED_PPM => {
            Row::ok("clock", "corrected by a time service outside of this container")
        }
        None => Row::warn(
            "clock",
            "no time service is visible",
            "harmless on one machine; for comparable times of several nodes, install chrony or enable systemd-timesyncd",
        ),
    }
}

fn judge_boot(boot_id: &str) -> Row {
    match boot_id {
        "" => Row::warn(
            "boot id",
            "/proc/sys/kernel/random/boot_id cannot be read",
            "mount /proc; without it, a lease left by a restarted machine is waited for",
        ),
        id => Row::ok("boot id", id),
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::Level;
    use super::*;

    #[test]
    fn any_evidence_of_a_time_service_counts() {
        assert_eq!(judge(Some("chronyd"), false, 0.0), Row::ok("clock", "set by chronyd"));
        assert_eq!(judge(None, true, 0.0).level, Level::Ok);
        assert_eq!(judge(None, false, 12.5).level, Level::Ok);
        assert_eq!(judge(None, false, 0.0).level, Level::Warn);
        assert!(correction().is_finite());
        assert_eq!(judge_boot("").level, Level::Warn);
        assert_eq!(judge_boot("abc"), Row::ok("boot id", "abc"));
    }
}
