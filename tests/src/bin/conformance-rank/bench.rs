//! Measures the reduction of a model's gradients (45 MB in binary32) in a bucket of 1 MiB and
//! others of 25 MiB. In turn: the group's memory, ordinary memory, and the group's memory with bfloat16.

use std::time::{Duration, Instant};

use dtrain_worker::collectives::{ProcessGroup, ReduceOp, Work};
use rustix::time::{ClockId, clock_gettime};
use tch::{Device, Kind, Tensor};

use crate::{Failure, Group};

const NUMEL: i64 = 45_000_000 / 4;
const ROUNDS: usize = 31;

/// A way to store the gradients, and its times so far.
struct Way {
    name: &'static str,
    tensor: Tensor,
    wall: Vec<Duration>,
    cpu: Duration,
    small: Vec<Duration>,
}

pub(crate) fn run(group: Group) -> Result<(), Failure> {
    let g = group.as_ref();
    let mut ways = Vec::new();
    let before = resident_bytes()?;
    if let Some(own) = g.allocate(NUMEL as usize, Kind::Float)? {
        ways.push(Way::new(g, "allocated", own, before)?);
    }
    let before = resident_bytes()?;
    let ordinary = Tensor::zeros([NUMEL], (Kind::Float, Device::Cpu));
    ways.push(Way::new(g, "ordinary", ordinary, before)?);
    let before = resident_bytes()?;
    if let Some(short) = g.allocate(NUMEL as usize, Kind::BFloat16)? {
        ways.push(Way::new(g, "allocated", short, before)?);
    }
    for round in 0..=ROUNDS {
        for way in &mut ways {
            let _ = way.tensor.fill_(1);
            g.barrier()?.wait()?;
            let (begun, spent) = (Instant::now(), cpu_time());
            reduce(g, &way.tensor)?;
            // The first round fills caches and is not counted.
            if round > 0 {
                way.wall.push(begun.elapsed());
                way.cpu += cpu_time().saturating_sub(spent);
            }
            g.barrier()?.wait()?;
            for _ in 0..20 {
                let begun = Instant::now();
                g.all_reduce(&way.tensor.narrow(0, 0, 16), ReduceOp::Sum)?.wait()?;
                way.small.push(begun.elapsed());
            }
        }
    }
    for way in &mut ways {
        println!(
            "{} {}: {} MB of {:?} all_reduce median {:.2} ms (of {ROUNDS}), CPU {:.2} ms per rank; 16 values median {:.1} us",
            way_of(g)?,
            way.name,
            NUMEL as f64 * way.tensor.kind().elt_size_in_bytes() as f64 / 1e6,
            way.tensor.kind(),
            median(&mut way.wall).as_secs_f64() * 1e3,
            way.cpu.as_secs_f64() * 1e3 / ROUNDS as f64,
            median(&mut way.small).as_secs_f64() * 1e6
        );
    }
    group.shutdown()?;
    Ok(())
}

impl Way {
    /// Fills the tensor, reduces it once, and prints the memory used since `before`.
    fn new(g: &dyn ProcessGroup, name: &'static str, tensor: Tensor, before: f64) -> Result<Self, Failure> {
        let _ = tensor.shallow_clone().fill_(1);
        let filled = resident_bytes()? - before;
        reduce(g, &tensor)?;
        let reduced = resident_bytes()? - before;
        println!(
            "{} {name} {:?}: resident memory +{:.1} MB, after a reduction +{:.1} MB",
            way_of(g)?,
            tensor.kind(),
            filled / 1e6,
            reduced / 1e6
        );
        Ok(Self { name, tensor, wall: Vec::new(), cpu: Duration::ZERO, small: Vec::new() })
    }
}

fn way_of(g: &dyn ProcessGroup) -> Result<&'static str, Failure> {
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

/// Returns the processor time of all threads of this process.
fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn resident_bytes() -> Result<f64, Failure> {
    let statm = std::fs::read_to_string("/proc/self/statm")?;
    let pages: f64 = statm.split_whitespace().nth(1).ok_or("no resident size")?.parse()?;
    Ok(pages * rustix::param::page_size() as f64)
}
