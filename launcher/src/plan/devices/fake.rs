//! Machines for the tests.

use super::Machine;
use dtrain_common::gpu::{GpuError, GpuInfo, Inventory, Versions};

/// Returns a machine with this value of CUDA_VISIBLE_DEVICES.
pub(in crate::plan) fn machine(inventory: Inventory, list: Option<&str>) -> Machine {
    Machine {
        inventory: Ok(inventory),
        versions: Some(versions("580.65.06", "13.0")),
        list: list.map(str::to_owned),
        order: None,
    }
}

/// Returns the versions of a driver and its CUDA.
pub(in crate::plan) fn versions(driver: &str, cuda: &str) -> Versions {
    Versions { driver: driver.to_owned(), cuda: Some(cuda.to_owned()) }
}

/// Returns a machine without a driver.
pub(in crate::plan) fn no_driver() -> Machine {
    Machine { inventory: Err(GpuError::NoDriver), versions: None, list: None, order: None }
}

/// Returns this number of GPUs of one kind.
pub(in crate::plan) fn gpus(count: u32) -> Inventory {
    Inventory { gpus: (0..count).map(|index| gpu(index, None)).collect() }
}

/// Returns GPU 0, not divided, and GPU 1 with two instances.
pub(in crate::plan) fn divided() -> Inventory {
    let instance = |index| GpuInfo {
        index,
        name: "NVIDIA T4 MIG 1g.8gb".into(),
        uuid: Some(format!("MIG-{index}")),
        total_bytes: 1 << 33,
        free_bytes: 1 << 32,
        mig: None,
    };
    Inventory { gpus: vec![gpu(0, None), gpu(1, Some(vec![instance(0), instance(1)]))] }
}

fn gpu(index: u32, mig: Option<Vec<GpuInfo>>) -> GpuInfo {
    GpuInfo {
        index,
        name: "NVIDIA T4".into(),
        uuid: Some(format!("GPU-{index}")),
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        mig,
    }
}
