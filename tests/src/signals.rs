//! Signals to the processes of a run under way.

use std::process::Command;
use std::time::{Duration, Instant};

/// Waits for what has to come within two minutes.
///
/// # Panics
/// Where it does not.
pub fn wait_for(what: &str, mut met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !met() {
        assert!(
            begun.elapsed() < Duration::from_secs(120),
            "waited in vain for {what}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// `kill SIGNAL PID`
///
/// # Panics
/// Where there is no such process.
pub fn kill(signal: &str, pid: u32) {
    assert!(
        Command::new("kill")
            .args([signal, &pid.to_string()])
            .status()
            .expect("kill runs")
            .success()
    );
}

/// The process of a rank below the guardian of a launcher, by its environment.
///
/// # Panics
/// Where it does not run.
pub fn rank_pid(guardian: u32, rank: usize) -> u32 {
    let wanted = format!("RANK={rank}");
    let stat = |pid: u32| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok();
    let parent = |pid| -> Option<u32> {
        stat(pid)?
            .rsplit(')')
            .next()?
            .split_whitespace()
            .nth(1)?
            .parse()
            .ok()
    };
    let workers = std::fs::read_dir("/proc")
        .expect("/proc")
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let environ = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let ours = environ
                .split(|&byte| byte == 0)
                .any(|variable| variable == wanted.as_bytes());
            (ours && parent(parent(pid)?)? == guardian).then_some(pid)
        });
    workers.last().expect("the rank runs")
}
