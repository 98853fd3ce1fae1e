//! The units of a machine that processes compute on: GPUs, and MIG instances of GPUs.

use std::env;
use std::sync::LazyLock;

use crate::machine::{Gpu, MACHINE, Other};

/// A GPU or a MIG instance.
#[derive(Debug)]
pub(crate) struct Unit {
    /// The index of the GPU.
    pub(crate) gpu: usize,
    /// The index of the instance on its GPU.
    pub(crate) instance: Option<usize>,
    pub(crate) name: String,
    pub(crate) uuid: String,
    pub(crate) memory: u64,
    pub(crate) multiprocessors: i32,
    pub(crate) others: Vec<Other>,
}

impl Unit {
    pub(crate) fn gpu(&self) -> &'static Gpu {
        &MACHINE.gpus[self.gpu]
    }

    /// Returns the number of the GPU's PCI bus.
    pub(crate) fn bus(&self) -> u32 {
        0x10 + self.gpu as u32
    }

    /// Returns the sixteen bytes of the UUID.
    pub(crate) fn uuid_bytes(&self) -> [u8; 16] {
        let digits: Vec<u8> = self.uuid.bytes().skip(4).filter(u8::is_ascii_hexdigit).collect();
        let digit = |i: usize| (digits[i] as char).to_digit(16).unwrap_or(0) as u8;
        std::array::from_fn(|i| digit(2 * i) << 4 | digit(2 * i + 1))
    }
}

/// All units: first the GPUs, then the instances.
pub(crate) static UNITS: LazyLock<Vec<Unit>> = LazyLock::new(|| {
    let whole = MACHINE.gpus.iter().enumerate().map(|(index, gpu)| Unit {
        gpu: index,
        instance: None,
        name: gpu.name.clone(),
        uuid: format!("GPU-fa4e0000-0000-4000-8000-{index:012x}"),
        memory: gpu.memory.0,
        multiprocessors: gpu.multiprocessors,
        others: gpu.others.clone(),
    });
    let instances = MACHINE.gpus.iter().enumerate().flat_map(|(index, gpu)| {
        gpu.mig.iter().enumerate().map(move |(instance, mig)| Unit {
            gpu: index,
            instance: Some(instance),
            name: format!("{} MIG {}", gpu.name, mig.profile),
            uuid: format!("MIG-fa4e0000-0000-4000-8000-{index:06x}{instance:06x}"),
            memory: mig.memory.0,
            multiprocessors: mig.multiprocessors,
            others: Vec::new(),
        })
    });
    whole.chain(instances).collect()
});

/// Returns the units that `CUDA_VISIBLE_DEVICES` leaves, in its order. CUDA opens one MIG instance at most.
pub(crate) fn visible() -> Vec<usize> {
    let of_gpu = |gpu: usize| {
        let has_instances = !MACHINE.gpus[gpu].mig.is_empty();
        UNITS.iter().position(|unit| unit.gpu == gpu && unit.instance.is_some() == has_instances)
    };
    let find = |word: &str| match word.parse::<usize>() {
        Ok(index) if index < MACHINE.gpus.len() => of_gpu(index),
        Err(_) if word.starts_with("GPU-") || word.starts_with("MIG-") => {
            let mut found = (0..UNITS.len()).filter(|unit| UNITS[*unit].uuid.starts_with(word));
            found.next().filter(|_| found.next().is_none())
        }
        _ => None,
    };
    let mut units: Vec<usize> = match env::var("CUDA_VISIBLE_DEVICES") {
        // The first unknown word hides itself and all after it.
        Ok(list) => list.split(',').map(str::trim).map_while(find).collect(),
        Err(_) => (0..MACHINE.gpus.len()).filter_map(of_gpu).collect(),
    };
    // A list that names a device twice shows none.
    if (1..units.len()).any(|at| units[..at].contains(&units[at])) {
        return Vec::new();
    }
    if let Some(first) = units.iter().position(|unit| UNITS[*unit].instance.is_some()) {
        units = vec![units[first]];
    }
    units
}
