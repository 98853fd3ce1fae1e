//! The number of workers and their devices: the user's choice against the machine.

use super::devices::{Devices, InUse, Machine};
use crate::cli::GpuIds;
use crate::cli::Nproc;
use anyhow::bail;
use dtrain_common::text::counted;

#[derive(Clone, Copy, Debug)]
pub(super) struct SizeRequest<'a> {
    pub(super) is_training: bool,
    pub(super) nproc: Nproc,
    /// Whether the user has written `nproc`.
    pub(super) is_asked: bool,
    pub(super) gpu_ids: Option<&'a GpuIds>,
}

impl SizeRequest<'_> {
    /// Returns the number of workers of `auto` without a GPU. torchrun also starts a worker per core, but a trainer uses all
    /// cores itself.
    fn auto_on_the_cpu(&self, host: HostInfo) -> usize {
        if self.is_asked && !self.is_training { host.cores } else { 1 }
    }
}

/// Facts about the machine that need no driver.
#[derive(Clone, Copy, Debug)]
pub(super) struct HostInfo {
    pub(super) cores: usize,
    /// GPUs listed by the kernel, if all of them are certainly visible.
    pub(super) listed_gpus: Option<usize>,
}

/// The workers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) nproc: usize,
    pub(super) devices: Devices,
    /// The headline after the number of workers: ` on the CPU`; empty if the program chooses the device.
    pub(super) place: String,
    /// A message if the result may surprise the user.
    pub(super) note: Option<String>,
    /// The GPUs of the workers, if the driver was asked and reports any.
    pub(super) gpus: Option<InUse>,
}

/// Returns number and devices of the workers. `probe` asks the driver; it is called only if needed.
pub(super) fn size(
    request: SizeRequest<'_>,
    host: HostInfo,
    probe: impl FnOnce() -> Machine,
) -> anyhow::Result<Size> {
    match request.gpu_ids {
        None => on_the_visible(request, host, probe),
        Some(none) if none.ids.is_empty() => on_the_cpu(request, host),
        Some(ids) => on_the_chosen(request.nproc, ids, host, probe),
    }
}

/// Uses the devices of the environment.
fn on_the_visible(
    request: SizeRequest<'_>,
    host: HostInfo,
    probe: impl FnOnce() -> Machine,
) -> anyhow::Result<Size> {
    // Programs on the CPU, alone, or with a GPU for each worker need no message, so skip the slow driver.
    let without_driver = match request.nproc {
        _ if request.is_training => None,
        Nproc::Cpu => Some(host.cores),
        Nproc::Count(count) if count == 1 || host.listed_gpus >= Some(count) => Some(count),
        _ => None,
    };
    if let Some(count) = without_driver {
        return Ok(Size::inherited(count, String::new(), None));
    }
    let machine = probe();
    let (gpus, described) = (machine.count(), machine.described());
    if request.is_training && machine.names_only_unknown_devices() {
        bail!(
            "{described}; list the GPUs with `dtrain gpu info`, unset the variable, or give --gpu-ids none for workers on the CPU"
        );
    }
    let count = match request.nproc {
        Nproc::Count(count) => count,
        Nproc::Cpu => host.cores,
        Nproc::Auto if gpus == 0 => request.auto_on_the_cpu(host),
        Nproc::Auto => gpus,
        Nproc::Gpu if gpus == 0 => bail!("--nproc gpu: {described}; use --nproc N for N workers on the CPU"),
        Nproc::Gpu => gpus,
    };
    let note = match request.is_training {
        _ if request.nproc == Nproc::Auto && gpus == 0 => {
            let each = if count > 1 { ", one per core that this process may use" } else { "" };
            Some(format!("{described}; starting {} on the CPU{each}", counted(count, "worker")))
        }
        true if gpus == 0 => machine.failure().map(|why| format!("{why}; training on the CPU")),
        _ if count <= gpus || gpus == 0 => None,
        true => Some(fewer(request.nproc, count, &machine)?),
        false => Some(format!(
            "there are more workers ({count}) than visible GPUs ({described}); LOCAL_RANK goes up to {}",
            count - 1
        )),
    };
    // A program may use devices of other makers than NVIDIA.
    let place = match gpus {
        0 if request.is_training || request.nproc == Nproc::Auto => " on the CPU".to_owned(),
        0 => String::new(),
        _ => format!(", {described} visible"),
    };
    let nproc = if request.is_training && gpus > 0 { count.min(gpus) } else { count };
    Ok(Size { gpus: machine.in_use(nproc), ..Size::inherited(nproc, place, note) })
}

/// Returns the note for a recipe with more workers than visible GPUs: one on each GPU instead, because a
/// recipe does not set the number of workers. With `cpu` it is an error: the user wants CPU cores, not GPUs.
fn fewer(nproc: Nproc, workers: usize, machine: &Machine) -> anyhow::Result<String> {
    let (gpus, described) = (machine.count(), machine.described());
    let instances = machine.shows_an_instance();
    if nproc == Nproc::Cpu {
        let more = if instances { ", name as many MIG instances in --gpu-ids," } else { "" };
        bail!(
            "--nproc cpu: {workers} workers, but only {described} visible; use --nproc {gpus}{more} or --gpu-ids none \
             for workers on the CPU"
        )
    }
    let more = match instances {
        true => "name as many MIG instances in --gpu-ids for a worker on each, or use",
        false => "use",
    };
    let started = match gpus {
        1 => "1 worker instead".to_owned(),
        _ => format!("{gpus} workers instead, one on each"),
    };
    Ok(format!(
        "--nproc {workers}, but only {described} visible: starting {started}; effective batch and learning rate stay those \
         of the recipe, and each worker computes a larger share of every step; results differ by rounding, and more with \
         local BatchNorm; {more} --gpu-ids none for {workers} workers on the CPU"
    ))
}

impl Size {
    fn inherited(nproc: usize, place: String, note: Option<String>) -> Self {
        Self { nproc, devices: Devices::Inherited, place, note, gpus: None }
    }
}

/// Handles `--gpu-ids none`.
fn on_the_cpu(request: SizeRequest<'_>, host: HostInfo) -> anyhow::Result<Size> {
    let nproc = match request.nproc {
        Nproc::Auto => request.auto_on_the_cpu(host),
        Nproc::Cpu => host.cores,
        Nproc::Count(count) => count,
        Nproc::Gpu => bail!(
            "--nproc gpu and --gpu-ids none contradict each other; leave one out, or use --nproc N for N workers on the CPU"
        ),
    };
    let place = " on the CPU".to_owned();
    Ok(Size { devices: Devices::Cpu, ..Size::inherited(nproc, place, None) })
}

/// Starts one worker on each named GPU.
fn on_the_chosen(
    nproc: Nproc,
    ids: &GpuIds,
    host: HostInfo,
    probe: impl FnOnce() -> Machine,
) -> anyhow::Result<Size> {
    let named = ids.ids.len();
    let count = match nproc {
        Nproc::Auto | Nproc::Gpu => named,
        Nproc::Cpu => host.cores,
        Nproc::Count(count) => count,
    };
    if count != named {
        bail!(
            "--nproc {} gives {}, but --gpu-ids {ids} names {}; leave out --nproc for one worker per named GPU",
            word(nproc),
            counted(count, "worker"),
            counted(named, "GPU")
        );
    }
    let machine = probe();
    let chosen = machine.choose(ids)?;
    let place = format!(" on {}", chosen.described);
    Ok(Size {
        gpus: machine.in_use_as(&chosen),
        devices: Devices::Chosen(chosen),
        ..Size::inherited(count, place, None)
    })
}

fn word(nproc: Nproc) -> String {
    match nproc {
        Nproc::Auto => "auto".into(),
        Nproc::Gpu => "gpu".into(),
        Nproc::Cpu => "cpu".into(),
        Nproc::Count(count) => count.to_string(),
    }
}

/// Returns the number of cores that this process may use.
pub(crate) fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests;
