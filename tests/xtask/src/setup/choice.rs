//! Chooses the libraries for a machine: those for the CPU, or also those for GPUs.

use std::fmt;
use std::path::Path;
use std::process::Command;

/// A set of libraries to fetch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// libtorch and the two libraries that it names even on a CPU.
    Cpu,
    /// These and cuBLAS, cuDNN, NCCL and the other libraries for GPUs.
    Cuda,
}

impl fmt::Display for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "CPU set",
            Self::Cuda => "CUDA set",
        })
    }
}

/// The flags that choose a set.
#[derive(Debug, Default, Clone, clap::Args)]
pub struct SetArgs {
    /// Fetch CUDA libraries, 2 GB more [default: if a driver is found]
    #[arg(long, conflicts_with = "cpu")]
    cuda: bool,
    /// Use the CPU only, even if an NVIDIA driver is found
    #[arg(long)]
    cpu: bool,
}

impl SetArgs {
    /// Returns whether the user has chosen.
    pub fn is_given(&self) -> bool {
        self.cuda || self.cpu
    }
}

/// The chosen set and the reason.
#[derive(Debug)]
pub(crate) struct Choice {
    pub(crate) set: Set,
    pub(crate) reason: String,
    /// The user gave `--cuda`: a libtorch without CUDA is an error.
    pub(crate) required: bool,
}

impl Choice {
    /// Chooses by a flag, else by whether a driver was found (`driver` says where).
    pub(crate) fn new(args: &SetArgs, driver: Option<&str>) -> Self {
        let (set, reason) = match (args.cuda, args.cpu, driver) {
            (true, ..) => (Set::Cuda, "--cuda was given".to_owned()),
            (_, true, _) => (Set::Cpu, "--cpu was given".to_owned()),
            (.., Some(path)) => (Set::Cuda, format!("an NVIDIA driver was found: {path}")),
            (.., None) => (Set::Cpu, "no NVIDIA driver was found".to_owned()),
        };
        Self { set, reason, required: args.cuda }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.set, self.reason)
    }
}

/// Looks for an NVIDIA driver: its kernel module, or its library among those that the loader knows.
pub(crate) fn find_driver() -> Option<String> {
    let module = Path::new("/proc/driver/nvidia/version");
    if module.exists() {
        return Some(module.display().to_string());
    }
    // Not every user's PATH contains /sbin.
    ["ldconfig", "/sbin/ldconfig"].iter().find_map(|ldconfig| {
        let output =
            Command::new(ldconfig).arg("-p").output().ok().filter(|output| output.status.success())?;
        driver_library(&String::from_utf8_lossy(&output.stdout))
    })
}

/// Returns libcuda.so.1's path in `ldconfig -p`: "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/libcuda.so.1".
fn driver_library(ldconfig: &str) -> Option<String> {
    let line = ldconfig.lines().find(|line| line.trim_start().starts_with("libcuda.so.1 "))?;
    Some(line.split(" => ").last()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_take_precedence_over_the_driver() {
        let chosen = |cuda, cpu, driver| Choice::new(&SetArgs { cuda, cpu }, driver).to_string();
        assert_eq!(chosen(false, false, None), "CPU set (no NVIDIA driver was found)");
        assert_eq!(chosen(false, false, Some("/driver")), "CUDA set (an NVIDIA driver was found: /driver)");
        assert_eq!(chosen(false, true, Some("/driver")), "CPU set (--cpu was given)");
        assert_eq!(chosen(true, false, None), "CUDA set (--cuda was given)");
    }
}
