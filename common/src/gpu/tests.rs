//! Machines for the tests.

use super::{GpuInfo, Inventory};

/// Returns a machine with `count` GPUs of one kind: `GPU-00aa-0001`, `GPU-11aa-0001` and so on.
pub(super) fn gpus(count: u32) -> Inventory {
    Inventory { gpus: (0..count).map(|index| gpu(index, "NVIDIA T4", None)).collect() }
}

/// Returns GPU 0 whole, GPU 1 in two instances, and GPU 2 in MIG mode without an instance.
pub(super) fn divided() -> Inventory {
    let instance = |index: u32| GpuInfo {
        index,
        name: "NVIDIA A100 MIG 3g.20gb".into(),
        uuid: Some(format!("MIG-{index}c-77")),
        total_bytes: 20 << 30,
        free_bytes: 19 << 30,
        mig: None,
    };
    let name = "NVIDIA A100";
    Inventory {
        gpus: vec![
            gpu(0, name, None),
            gpu(1, name, Some(vec![instance(0), instance(1)])),
            gpu(2, name, Some(vec![])),
        ],
    }
}

pub(super) fn mixed() -> Inventory {
    Inventory { gpus: vec![gpu(0, "NVIDIA T4", None), gpu(1, "NVIDIA H200", None)] }
}

fn gpu(index: u32, name: &str, mig: Option<Vec<GpuInfo>>) -> GpuInfo {
    GpuInfo {
        index,
        name: name.into(),
        uuid: Some(format!("GPU-{index}{index}aa-0001")),
        total_bytes: 1 << 34,
        free_bytes: 1 << 33,
        mig,
    }
}
