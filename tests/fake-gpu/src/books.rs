//! The memory in use of each GPU, shared by the processes of one machine: a file for each process, below one lock.
//!
//! A unit is a GPU or a MIG instance. The memory of a process that has died returns at the next look.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{LazyLock, Mutex, PoisonError};

use rustix::fs::{FlockOperation, flock};

use crate::machine::MACHINE;
use crate::messages;
use crate::units::UNITS;

/// The folder of this machine's files.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let id = if MACHINE.id.is_empty() { "default" } else { &MACHINE.id };
    let folder = PathBuf::from(format!("/dev/shm/fake-gpu-{}-{id}", rustix::process::getuid().as_raw()));
    fs::create_dir_all(&folder).unwrap_or_else(|error| fail(&folder, &error));
    folder
});

/// Returns the folder of this machine's shared files.
pub(crate) fn folder() -> &'static Path {
    &FOLDER
}

/// What this process uses of each unit.
static OWN: Mutex<Own> = Mutex::new(Own { pid: 0, used: Vec::new() });

struct Own {
    /// The process that wrote this: after a fork, the child uses nothing.
    pid: u32,
    used: Vec<u64>,
}

/// Takes memory of a unit. Returns false if it has too little.
pub(crate) fn take(unit: usize, bytes: u64) -> bool {
    change(|own| {
        let free = UNITS[unit].memory.saturating_sub(others(unit) + own[unit]);
        if free >= bytes {
            own[unit] += bytes;
        }
        free >= bytes
    })
}

/// Gives memory back.
pub(crate) fn give(unit: usize, bytes: u64) {
    change(|own| own[unit] = own[unit].saturating_sub(bytes));
}

/// Returns the free memory of a unit.
pub(crate) fn free(unit: usize) -> u64 {
    change(|own| UNITS[unit].memory.saturating_sub(others(unit) + own[unit]))
}

/// Returns what this process uses of all units.
pub(crate) fn own() -> u64 {
    let own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    if own.pid == std::process::id() { own.used.iter().sum() } else { 0 }
}

/// Returns the processes on a unit and their memory, those outside of the machine's programs too.
pub(crate) fn processes(unit: usize) -> Vec<(u32, u64)> {
    let mut all: Vec<_> = UNITS[unit].others.iter().map(|other| (other.pid, other.memory.0)).collect();
    locked(|| {
        all.extend(living().into_iter().filter_map(|(pid, used)| Some((pid, *used.get(unit)?))));
    });
    all.retain(|(_, bytes)| *bytes > 0);
    all
}

/// Marks a unit as fallen off the bus, for every process.
pub(crate) fn lose(unit: usize) {
    let path = FOLDER.join(format!("lost-{unit}"));
    fs::write(&path, "").unwrap_or_else(|error| fail(&path, &error));
}

/// Returns whether a unit fell off the bus.
pub(crate) fn is_lost(unit: usize) -> bool {
    FOLDER.join(format!("lost-{unit}")).exists()
}

fn change<T>(act: impl FnOnce(&mut [u64]) -> T) -> T {
    let mut own = OWN.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = std::process::id();
    if own.pid != pid {
        *own = Own { pid, used: vec![0; UNITS.len()] };
    }
    locked(|| {
        let before = own.used.clone();
        let result = act(&mut own.used);
        if own.used != before {
            let words: Vec<_> = own.used.iter().map(u64::to_string).collect();
            let path = FOLDER.join(pid.to_string());
            let text = format!("{} {}", start_of(pid).unwrap_or_default(), words.join(" "));
            fs::write(&path, text).unwrap_or_else(|error| fail(&path, &error));
        }
        result
    })
}

/// Returns what other processes use of a unit. Call it below the lock.
fn others(unit: usize) -> u64 {
    let pid = std::process::id();
    let outside: u64 = UNITS[unit].others.iter().map(|other| other.memory.0).sum();
    let living = living().into_iter().filter(|(other, _)| *other != pid);
    outside + living.filter_map(|(_, used)| used.get(unit).copied()).sum::<u64>()
}

/// Returns the living processes and their memory of each unit, and removes the files of others.
fn living() -> Vec<(u32, Vec<u64>)> {
    let mut all = Vec::new();
    for entry in fs::read_dir(&*FOLDER).into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        let mut words = text.split(' ');
        let start = words.next().and_then(|word| word.parse().ok());
        if start.is_some() && start == start_of(pid) {
            all.push((pid, words.filter_map(|word| word.parse().ok()).collect()));
        } else {
            let _ = fs::remove_file(entry.path());
        }
    }
    all
}

/// Returns when a living process started; the kernel uses ids again. A zombie uses no memory.
pub(crate) fn start_of(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut words = rest.split(' ');
    let state = words.next()?;
    if matches!(state, "Z" | "X") { None } else { words.nth(18)?.parse().ok() }
}

fn locked<T>(act: impl FnOnce() -> T) -> T {
    let path = FOLDER.join("lock");
    let file = File::create(&path).unwrap_or_else(|error| fail(&path, &error));
    flock(&file, FlockOperation::LockExclusive).unwrap_or_else(|error| fail(&path, &error.into()));
    act()
}

fn fail(path: &Path, error: &io::Error) -> ! {
    messages::end(&format!("cannot share the GPUs' memory by {}: {error}", path.display()))
}
