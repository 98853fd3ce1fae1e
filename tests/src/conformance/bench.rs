//! Measures the reduction of a model's gradients (45 MB in binary32) in a bucket of 1 MiB and
//! others of 25 MiB. In turn: the group's memory, ordinary memory, and the group's memory with bfloat16. Then
//! measures single reductions of 1, 16 and 64 MiB in the group's memory and in ordinary memory.

use std::time::{Duration, Instant};

use dtrain_worker::collectives::{ProcessGroup, ReduceOp, Work};
use tch::{Device, Kind, Tensor};

use super::{Failure, Group};
use crate::cpu;

const NUMEL: i64 = 45_000_000 / 4;
const ROUNDS: usize = 31;

/// A kind of memory for the gradients, and its times so far.
struct Storage {
    name: &'static str,
    tensor: Tensor,
    wall: Vec<Duration>,
    cpu: Duration,
    small: Vec<Duration>,
}

pub(super) fn run(group: Group) -> Result<(), Failure> {
    let g = group.as_ref();
    let mut storages = Vec::new();
    let before = resident_bytes()?;
    if let Some(own) = g.allocate(NUMEL as usize, Kind::Float)? {
        storages.push(Storage::new(g, "allocated", own, before)?);
    }
    let before = resident_bytes()?;
    let ordinary = Tensor::zeros([NUMEL], (Kind::Float, Device::Cpu));
    storages.push(Storage::new(g, "ordinary", ordinary, before)?);
    let before = resident_bytes()?;
    if let Some(short) = g.allocate(NUMEL as usize, Kind::BFloat16)? {
        storages.push(Storage::new(g, "allocated", short, before)?);
    }
    for round in 0..=ROUNDS {
        for storage in &mut storages {
            let _ = storage.tensor.fill_(1);
            g.barrier()?.wait()?;
            let (begun, spent) = (Instant::now(), cpu::time());
            reduce(g, &storage.tensor)?;
            // The first round fills caches and is not counted.
            if round > 0 {
                storage.wall.push(begun.elapsed());
                storage.cpu += cpu::time().saturating_sub(spent);
            }
            g.barrier()?.wait()?;
            for _ in 0..20 {
                let begun = Instant::now();
                g.all_reduce(&storage.tensor.narrow(0, 0, 16), ReduceOp::Sum)?.wait()?;
                storage.small.push(begun.elapsed());
            }
        }
    }
    for storage in &mut storages {
        println!(
            "{} {}: {} MB of {:?} all_reduce median {:.2} ms (of {ROUNDS}), CPU {:.2} ms per rank; 16 values median {:.1} us",
            transport_name(g)?,
            storage.name,
            NUMEL as f64 * storage.tensor.kind().elt_size_in_bytes() as f64 / 1e6,
            storage.tensor.kind(),
            median(&mut storage.wall).as_secs_f64() * 1e3,
            storage.cpu.as_secs_f64() * 1e3 / ROUNDS as f64,
            median(&mut storage.small).as_secs_f64() * 1e6
        );
    }
    drop(storages);
    for mib in [1, 16, 64] {
        single(g, mib)?;
    }
    group.shutdown()?;
    Ok(())
}

/// Measures one reduction of this many MiB of binary32.
fn single(g: &dyn ProcessGroup, mib: usize) -> Result<(), Failure> {
    let numel = mib << 18;
    let ordinary = Tensor::zeros([numel as i64], (Kind::Float, Device::Cpu));
    let mut tensors = vec![("ordinary", ordinary, Vec::new())];
    tensors.extend(g.allocate(numel, Kind::Float)?.map(|own| ("allocated", own, Vec::new())));
    for round in 0..=ROUNDS {
        for (_, tensor, times) in &mut tensors {
            let _ = tensor.fill_(1);
            g.barrier()?.wait()?;
            let begun = Instant::now();
            g.all_reduce(tensor, ReduceOp::Sum)?.wait()?;
            if round > 0 {
                times.push(begun.elapsed());
            }
        }
    }
    for (name, _, mut times) in tensors {
        println!(
            "{mib} MiB {name}: all_reduce median {:.2} ms (of {ROUNDS})",
            median(&mut times).as_secs_f64() * 1e3
        );
    }
    Ok(())
}

impl Storage {
    /// Fills the tensor, reduces it once, and prints the memory used since `before`.
    fn new(g: &dyn ProcessGroup, name: &'static str, tensor: Tensor, before: f64) -> Result<Self, Failure> {
        let _ = tensor.shallow_clone().fill_(1);
        let filled = resident_bytes()? - before;
        reduce(g, &tensor)?;
        let reduced = resident_bytes()? - before;
        println!(
            "{} {name} {:?}: resident memory +{:.1} MB, after a reduction +{:.1} MB",
            transport_name(g)?,
            tensor.kind(),
            filled / 1e6,
            reduced / 1e6
        );
        Ok(Self { name, tensor, wall: Vec::new(), cpu: Duration::ZERO, small: Vec::new() })
    }
}

fn transport_name(g: &dyn ProcessGroup) -> Result<&'static str, Failure> {
    Ok(if g.allocate(1, Kind::Float)?.is_some() { "shared memory" } else { "messages" })
}

fn reduce(g: &dyn ProcessGroup, tensor: &Tensor) -> Result<(), Failure> {
    let mut works: Vec<Box<dyn Work>> = Vec::new();
    let (mut start, mut bucket) = (0, 1 << 18);
    while start < NUMEL {
        let count = bucket.min(NUMEL - start);
        works.push(g.all_reduce(&tensor.narrow(0, start, count), ReduceOp::Sum)?);
        (start, bucket) = (start + count, 25 << 18);
    }
    for work in works {
        work.wait()?;
    }
    Ok(())
}

fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

fn resident_bytes() -> Result<f64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}
