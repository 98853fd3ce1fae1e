//! GPUs and their driver.

use super::row::Row;
use crate::plan::gpu_check::{self, User};
use dtrain_common::env::{CUDA_DEVICE_ORDER, CUDA_VISIBLE_DEVICES, of_process};
use dtrain_common::gpu::{GpuError, Inventory, Nvidia, Settings, Versions, Visible};
use dtrain_common::text::counted;
use dtrain_common::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;

/// The oldest compute capability of libtorch for CUDA 13.
const OLDEST_CAPABILITY: (i32, i32) = (7, 5);

/// The driver and the GPUs that a launch would use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpus {
    pub(super) versions: Versions,
    /// The names of the visible GPUs.
    pub(super) names: Vec<String>,
    /// Visible GPUs that most memory of is free.
    pub(super) free: usize,
}

#[derive(Debug)]
struct Reading {
    versions: Versions,
    inventory: Inventory,
    /// One for each GPU.
    settings: Vec<Settings>,
    /// CUDA_VISIBLE_DEVICES.
    list: Option<String>,
    /// Whether CUDA_DEVICE_ORDER is PCI_BUS_ID.
    is_by_bus: bool,
    has_mps: bool,
}

pub(super) fn check() -> (Vec<Row>, Option<Gpus>) {
    match read() {
        Ok(reading) => judge(&reading, gpu_check::processes),
        Err(GpuError::NoDriver) => (vec![without_driver(count_on_bus())], None),
        Err(error) => {
            let remedy = "run `nvidia-smi`; if it fails too, restart the machine or install the driver again";
            (vec![Row::fail("GPUs", error.to_string(), remedy)], None)
        }
    }
}

fn read() -> Result<Reading, GpuError> {
    let driver = Nvidia::open()?;
    let mps = std::env::var_os("CUDA_MPS_PIPE_DIRECTORY").unwrap_or_else(|| "/tmp/nvidia-mps".into());
    Ok(Reading {
        versions: driver.versions()?,
        inventory: driver.inventory()?,
        settings: driver.settings()?,
        list: of_process(CUDA_VISIBLE_DEVICES),
        is_by_bus: of_process(CUDA_DEVICE_ORDER).is_some_and(|order| order == "PCI_BUS_ID"),
        has_mps: Path::new(&mps).join("control").exists(),
    })
}

/// Returns the number of NVIDIA's display controllers on the PCI bus.
fn count_on_bus() -> usize {
    let devices = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let is_gpu = |path: &Path| {
        let read = |file: &str| fs::read_to_string(path.join(file)).unwrap_or_default();
        read("vendor").trim() == "0x10de" && read("class").starts_with("0x03")
    };
    devices.filter(|entry| is_gpu(&entry.path())).count()
}

fn without_driver(on_bus: usize) -> Row {
    match on_bus {
        0 => Row::ok("GPUs", "none: no NVIDIA driver is loaded, so training runs on the CPU"),
        _ => Row::warn(
            "GPUs",
            format!("the machine has {}, but no NVIDIA driver is loaded", counted(on_bus, "NVIDIA GPU")),
            "install the driver (580 or newer); in a container, start it with `--gpus all`",
        ),
    }
}

fn judge(reading: &Reading, users: impl Fn(usize) -> Vec<User>) -> (Vec<Row>, Option<Gpus>) {
    let Reading { versions, inventory, settings, .. } = reading;
    let visible = Visible::new(inventory, reading.list.as_deref());
    let mut rows = vec![listed(inventory, settings)];
    rows.extend(hidden(reading, &visible));
    for (gpu, settings) in inventory.gpus.iter().zip(settings) {
        let index = gpu.index;
        if let Some((major, minor)) = settings.capability.filter(|it| *it < OLDEST_CAPABILITY) {
            rows.push(Row::warn(
                "GPUs",
                format!("GPU {index} has compute capability {major}.{minor}; libtorch for CUDA 13 needs 7.5"),
                "leave this GPU out with --gpu-ids, or use a libtorch built for CUDA 12",
            ));
        }
        if settings.is_prohibited == Some(true) {
            rows.push(Row::fail(
                "GPUs",
                format!("GPU {index} forbids all programs (compute mode Prohibited)"),
                format!("run `sudo nvidia-smi -i {index} -c DEFAULT`"),
            ));
        }
    }
    if settings.iter().any(|settings| settings.is_persistent == Some(false)) {
        rows.push(Row::warn(
            "GPUs",
            "persistence mode is off: each start waits 1 to 3 s until the driver is loaded",
            "run `sudo nvidia-smi -pm 1`",
        ));
    }
    if reading.has_mps {
        rows.push(Row::ok("GPUs", "an MPS server runs: programs of one user share its GPUs"));
    }
    let taken = gpu_check::taken(inventory, visible.devices(), users);
    rows.extend(taken.iter().map(|taken| {
        let row = if taken.is_full { Row::fail } else { Row::warn };
        row("GPU memory", taken.text.as_str(), gpu_check::REMEDY)
    }));
    let free = visible.count(inventory).saturating_sub(taken.len());
    let names = visible.devices().iter().map(|index| inventory.device(*index).name.clone()).collect();
    (rows, Some(Gpus { versions: versions.clone(), names, free }))
}

/// Returns the row that lists the GPUs by kind.
fn listed(inventory: &Inventory, settings: &[Settings]) -> Row {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for (gpu, settings) in inventory.gpus.iter().zip(settings) {
        let capability =
            settings.capability.map(|(major, minor)| format!(", compute capability {major}.{minor}"));
        let mig = gpu.mig.as_ref().map(|instances| format!(", {}", counted(instances.len(), "MIG instance")));
        let kind = format!(
            "{} ({}{}{})",
            gpu.name,
            ByteSize(gpu.total_bytes),
            capability.unwrap_or_default(),
            mig.unwrap_or_default()
        );
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    let kinds: Vec<String> = kinds.into_iter().map(|(kind, count)| format!("{count} x {kind}")).collect();
    match kinds.is_empty() {
        true => Row::warn("GPUs", "the NVIDIA driver finds no GPU", "check that `nvidia-smi -L` lists one"),
        false => Row::ok("GPUs", kinds.join(", ")),
    }
}

/// Returns the row about CUDA_VISIBLE_DEVICES, if it is set.
fn hidden(reading: &Reading, visible: &Visible) -> Option<Row> {
    let (list, inventory) = (reading.list.as_deref()?, &reading.inventory);
    let what = CUDA_VISIBLE_DEVICES;
    let count = visible.count(inventory);
    let said = format!("`{list}` shows {} of {}", count, counted(inventory.gpus.len(), "GPU"));
    let named = list.split(',').filter(|entry| !entry.trim().is_empty()).count();
    Some(if count == 0 && Visible::names_a_device(list) {
        Row::fail(what, said, "name GPUs of this machine, such as 0 (`nvidia-smi -L`), or unset it")
    } else if count == 0 {
        Row::warn(what, said, "unset it to train on the GPUs")
    } else if visible.devices().len() < named {
        Row::warn(what, format!("{said}: CUDA stops at the first wrong entry"), "correct the list")
    } else if inventory.is_mixed() && !reading.is_by_bus && list.starts_with(|c: char| c.is_ascii_digit()) {
        let remedy = "set CUDA_DEVICE_ORDER=PCI_BUS_ID to count as nvidia-smi does";
        Row::warn(what, format!("{said}, in CUDA's order: the fastest GPU is 0"), remedy)
    } else {
        Row::ok(what, said)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::row::Level;
    use super::*;
    use dtrain_common::gpu::{GpuInfo, GpuProcess};

    const GIB: u64 = 1 << 30;

    fn gpu(index: u32, name: &str, free_bytes: u64) -> GpuInfo {
        let (name, uuid) = (name.to_owned(), Some(format!("GPU-{index}")));
        GpuInfo { index, name, uuid, total_bytes: 16 * GIB, free_bytes, mig: None }
    }

    fn reading(gpus: Vec<GpuInfo>) -> Reading {
        let good = Settings {
            capability: Some((8, 0)),
            is_persistent: Some(true),
            is_prohibited: Some(false),
            ..Settings::default()
        };
        Reading {
            versions: Versions { driver: "580.65".into(), cuda: Some("13.0".into()) },
            settings: vec![good; gpus.len()],
            inventory: Inventory { gpus },
            list: None,
            is_by_bus: false,
            has_mps: false,
        }
    }

    fn two() -> Reading {
        reading(vec![gpu(0, "A100", 16 * GIB), gpu(1, "A100", 16 * GIB)])
    }

    fn rows(reading: &Reading) -> Vec<Row> {
        judge(reading, |_| Vec::new()).0
    }

    #[test]
    fn gpus_are_listed_by_kind() {
        let (rows, gpus) = judge(&two(), |_| Vec::new());
        assert_eq!(rows, [Row::ok("GPUs", "2 x A100 (16.00 GiB, compute capability 8.0)")]);
        let gpus = gpus.unwrap();
        assert_eq!((gpus.names.len(), gpus.free), (2, 2));
        let none = judge(&reading(vec![]), |_| Vec::new()).0;
        assert_eq!(none[0].level, Level::Warn);
        assert_eq!(without_driver(0).level, Level::Ok);
        assert_eq!(without_driver(2).value, "the machine has 2 NVIDIA GPUs, but no NVIDIA driver is loaded");
    }

    #[test]
    fn settings_that_stop_or_slow_programs_have_commands() {
        let mut machine = two();
        machine.settings[1] = Settings {
            capability: Some((7, 0)),
            is_persistent: Some(false),
            is_prohibited: Some(true),
            ..Settings::default()
        };
        machine.has_mps = true;
        let rows = rows(&machine);
        let find = |text: &str| rows.iter().find(|row| row.value.contains(text)).unwrap();
        assert_eq!(find("GPU 1 has compute capability 7.0").level, Level::Warn);
        assert_eq!(find("forbids").level, Level::Fail);
        assert_eq!(find("forbids").remedy.as_deref(), Some("run `sudo nvidia-smi -i 1 -c DEFAULT`"));
        assert!(find("persistence").remedy.as_ref().unwrap().contains("-pm 1"));
        assert_eq!(find("MPS").level, Level::Ok);
    }

    #[test]
    fn memory_of_others_names_the_process() {
        let machine = reading(vec![gpu(0, "T4", 4 * GIB), gpu(1, "T4", 1 << 20), gpu(2, "T4", 16 * GIB)]);
        let process = GpuProcess { pid: 77, used_bytes: Some(GIB) };
        let (rows, gpus) = judge(&machine, |_| vec![(process, None)]);
        let memory: Vec<&Row> = rows.iter().filter(|row| row.what == "GPU memory").collect();
        assert_eq!([memory[0].level, memory[1].level], [Level::Warn, Level::Fail]);
        assert!(
            memory[0].value.starts_with("GPU 0 (T4) has 4.00 GiB of 16.00 GiB free: pid 77"),
            "{memory:?}"
        );
        assert_eq!(gpus.unwrap().free, 1);
    }

    #[test]
    fn odd_values_of_cuda_visible_devices_are_told() {
        for (list, level, text) in [
            ("0,1", Level::Ok, "shows 2 of 2 GPUs"),
            ("1", Level::Ok, "shows 1 of 2"),
            ("", Level::Warn, "shows 0 of 2"),
            ("7", Level::Fail, "`7` shows 0 of 2"),
            ("0,9", Level::Warn, "stops at the first wrong entry"),
        ] {
            let row = rows(&Reading { list: Some(list.into()), ..two() }).remove(1);
            assert!(row.level == level && row.value.contains(text), "{list:?}: {row:?}");
        }
        let mixed = reading(vec![gpu(0, "T4", 16 * GIB), gpu(1, "A100", 16 * GIB)]);
        let mut mixed = Reading { list: Some("0".into()), ..mixed };
        assert_eq!(rows(&mixed)[1].level, Level::Warn);
        mixed.is_by_bus = true;
        assert_eq!(rows(&mixed)[1].level, Level::Ok);
    }
}
