//! Checks a recipe's GPUs before its workers start: age of the driver, free memory, different kinds.

use super::devices::InUse;
use crate::gpus::owner::{Owner, owner};
use crate::trainer;
use anyhow::{Context, bail};
use dtrain_agent::io::process::memory_kill::sees_the_kernels_pids;
use dtrain_common::env::DTRAIN_CUDA;
use dtrain_common::gpu::{DeviceIndex, Driver, GpuProcess, Inventory, Nvidia, Versions, oldest_driver};
use dtrain_common::units::ByteSize;

/// The major version of CUDA that libtorch's CUDA build needs.
pub(crate) const LIBTORCH_CUDA: u32 = 13;
/// With less free memory, training cannot begin: a CUDA context with libtorch's kernels needs as much.
const LEAST_FREE: u64 = 512 << 20;
/// If a smaller percentage is free, other processes than the driver and a desktop use the GPU.
const MOSTLY_FREE: u64 = 75;
/// The most processes of a GPU to name.
const NAMED: usize = 4;

/// Checks the GPUs of a recipe's workers; returns messages for the user, one sentence each.
pub(super) fn check(gpus: &InUse) -> anyhow::Result<Vec<String>> {
    let own = std::env::var(DTRAIN_CUDA).ok();
    let of_pip = trainer::cuda_of_pip();
    // A CPU build needs no driver.
    let needs_driver = own.is_some() || of_pip != Some(None);
    if let Some(versions) = gpus.versions.as_ref().filter(|_| needs_driver) {
        check_driver(versions, own.or(of_pip.flatten()).as_deref())?;
    }
    let mut notes = check_memory(gpus, processes)?;
    notes.extend(several_kinds(gpus));
    Ok(notes)
}

/// Checks that libtorch's CUDA runs on the driver. `own` is the value of DTRAIN_CUDA.
fn check_driver(versions: &Versions, own: Option<&str>) -> anyhow::Result<()> {
    let needed = match own.map(str::trim).filter(|text| !text.is_empty()) {
        None => LIBTORCH_CUDA,
        Some(text) => {
            let major = text.split('.').next().and_then(|major| major.parse().ok());
            major.with_context(|| {
                format!(
                    "{DTRAIN_CUDA} is {text:?}; expected the version of CUDA of your libtorch, such as 12.6"
                )
            })?
        }
    };
    if versions.supports(needed) {
        return Ok(());
    }
    let knows = match &versions.cuda {
        Some(cuda) => format!(", which supports CUDA up to {cuda}"),
        None => String::new(),
    };
    let newer = match oldest_driver(needed) {
        Some(branch) => format!("{branch} or a newer one"),
        None => "a newer one".to_owned(),
    };
    bail!(
        "the NVIDIA driver is {}{knows}, and libtorch is built for CUDA {needed}: install driver {newer}, use a libtorch that \
         is built for an older CUDA (LIBTORCH, and its version in {DTRAIN_CUDA}), or train on the CPU with --gpu-ids none",
        versions.driver
    )
}

/// A process on a GPU, and its owner if known.
pub(crate) type User = (GpuProcess, Option<Owner>);

/// Returns the processes on the GPU of this index.
pub(crate) fn processes(gpu: usize) -> Vec<User> {
    let status = Nvidia::open().and_then(|mut driver| driver.status());
    let gpus = status.map(|status| status.gpus).unwrap_or_default();
    // In a container, the driver's pids are of another namespace.
    let known = sees_the_kernels_pids();
    let of_gpu = gpus.into_iter().nth(gpu).into_iter().flat_map(|gpu| gpu.processes);
    of_gpu.map(|process| (process, known.then(|| owner(process.pid)).flatten())).collect()
}

/// Returns a message for each GPU whose memory `users` have largely taken; an error if almost none is free.
fn check_memory(gpus: &InUse, users: impl Fn(usize) -> Vec<User>) -> anyhow::Result<Vec<String>> {
    let (full, low): (Vec<_>, Vec<_>) =
        taken(&gpus.inventory, &gpus.devices, users).into_iter().partition(|taken| taken.is_full);
    if full.is_empty() {
        return Ok(low.into_iter().map(|taken| format!("{}; {REMEDY}", taken.text)).collect());
    }
    let full: Vec<String> = full.into_iter().map(|taken| taken.text).collect();
    bail!("{}; {REMEDY}", full.join("; "))
}

/// A GPU with little free memory.
#[derive(Debug)]
pub(crate) struct Taken {
    /// The figures, and the processes that hold the memory.
    pub(crate) text: String,
    /// Whether too little is free to begin a training.
    pub(crate) is_full: bool,
}

/// Returns the devices whose memory `users` have largely taken.
pub(crate) fn taken(
    inventory: &Inventory,
    devices: &[DeviceIndex],
    users: impl Fn(usize) -> Vec<User>,
) -> Vec<Taken> {
    let taken = |index: &DeviceIndex| {
        let device = inventory.device(*index);
        let (free, total) = (device.free_bytes, device.total_bytes);
        let is_full = free < LEAST_FREE;
        if !is_full && free >= total / 100 * MOSTLY_FREE {
            return None;
        }
        let (title, name) = (inventory.title(*index), &device.name);
        let begin = format!("{title} ({name}) has {} of {} free", ByteSize(free), ByteSize(total));
        let least = match is_full {
            true => {
                format!(", and a training needs at least {} before its first tensor", ByteSize(LEAST_FREE))
            }
            false => String::new(),
        };
        // The driver does not report which processes use an instance.
        let who = match index.is_instance() {
            true => "`dtrain gpu info` lists the processes on that GPU".to_owned(),
            false => in_words(users(index.gpu())),
        };
        Some(Taken { text: format!("{begin}{least}: {who}"), is_full })
    };
    devices.iter().filter_map(taken).collect()
}

pub(crate) const REMEDY: &str = "`dtrain gpu monitor` shows when memory becomes free, `dtrain gpu kill` ends your \
    processes, and --gpu-ids names other GPUs";

/// Formats `pid 4711 of ann (python train.py) holds 12.00 GiB, pid 99 ...`.
fn in_words(mut users: Vec<User>) -> String {
    if users.is_empty() {
        return "the driver lists no process for the rest, as in a container or just after an exit"
            .to_owned();
    }
    users.sort_by_key(|(process, _)| std::cmp::Reverse(process.used_bytes));
    let more = users.len().saturating_sub(NAMED);
    let mut words: Vec<String> = users.iter().take(NAMED).map(user).collect();
    if more > 0 {
        words.push(format!("{more} more"));
    }
    words.join(", ")
}

fn user((process, owner): &User) -> String {
    let who = match owner {
        Some(owner) => format!(" of {} ({})", owner.user, owner.command),
        None => " (not visible from here)".to_owned(),
    };
    let memory = process.used_bytes.map_or("an unknown part".to_owned(), |bytes| ByteSize(bytes).to_string());
    format!("pid {}{who} holds {memory}", process.pid)
}

/// Returns the message for GPUs of different kinds.
fn several_kinds(gpus: &InUse) -> Option<String> {
    let inventory = &gpus.inventory;
    let mut kinds: Vec<(&str, u64)> = Vec::new();
    for index in &gpus.devices {
        // GPUs of one kind may differ in the memory that the driver keeps.
        let name = inventory.device(*index).name.as_str();
        if !kinds.iter().any(|(known, _)| *known == name) {
            kinds.push((name, inventory.device(*index).total_bytes));
        }
    }
    let (name, bytes) = kinds.iter().copied().min_by_key(|(_, bytes)| *bytes)?;
    if kinds.len() == 1 {
        return None;
    }
    let listed = kinds.iter();
    let listed: Vec<_> = listed.map(|(name, bytes)| format!("{name} with {}", ByteSize(*bytes))).collect();
    Some(format!(
        "the GPUs are of {} kinds, {}: the smallest memory ({name}, {}) limits the micro-batch, the slowest GPU sets \
         the pace, and precision.amp = \"auto\" is bf16 only if all GPUs of the machine support it; to use one kind, \
         name its GPUs in --gpu-ids",
        kinds.len(),
        listed.join(" and "),
        ByteSize(bytes)
    ))
}

#[cfg(test)]
mod tests;
