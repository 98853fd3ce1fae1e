//! Checks of every backend on tensors from `allocate`, or on ordinary tensors if the backend allocates none.

use dtrain_worker::collectives::{ProcessGroup, ReduceOp, Work};
use tch::{Device, Kind, Tensor};

use super::values::{expected, same, values};
use super::{Failure, allocates, uses_shared_memory};

const FLOATS: [Kind; 4] = [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16];
const OPS: [ReduceOp; 3] = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max];

pub(super) fn all(g: &dyn ProcessGroup) -> Result<(), Failure> {
    zeroed(g)?;
    for kind in FLOATS {
        for (size, first, count) in
            [(1, 0, 1), (3, 1, 2), (4097, 0, 4097), (4097, 17, 1001), (262_147, 5, 262_141)]
        {
            views(g, kind, size, first, count)?;
        }
        parts(g, kind)?;
    }
    empty(g)?;
    order_of_ranks(g)?;
    many(g)?;
    mixed(g)?;
    dropped(g)?;
    rejected(g)?;
    println!("ok allocated");
    Ok(())
}

/// Returns a zeroed tensor in the group's memory, or in ordinary memory if the group has no such memory.
fn zeros(g: &dyn ProcessGroup, size: i64, kind: Kind) -> Result<Tensor, Failure> {
    let shares = allocates();
    match g.allocate(size as usize, kind)? {
        Some(tensor) if shares => Ok(tensor),
        None if !shares => Ok(Tensor::zeros([size], (kind, Device::Cpu))),
        other => Err(format!("shared memory: {shares}, but allocate returned {other:?}").into()),
    }
}

fn zeroed(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let mut first = zeros(g, 5000, Kind::Float)?;
    let _ = first.fill_(7);
    drop(first);
    let second = zeros(g, 5000, Kind::Float)?;
    same("new memory", &second, &Tensor::zeros([5000], (Kind::Float, Device::Cpu)))
}

/// Checks that reducing a view at any offset does not change its neighbours.
fn views(g: &dyn ProcessGroup, kind: Kind, size: i64, first: i64, count: i64) -> Result<(), Failure> {
    let mut whole = zeros(g, size, kind)?;
    for op in OPS {
        let own = values(g.rank(), size, kind);
        whole.copy_(&own);
        g.all_reduce(&whole.narrow(0, first, count), op)?.wait()?;
        let sum = expected(size, kind, g.size(), op);
        let rest = size - first - count;
        let wanted = Tensor::cat(
            &[own.narrow(0, 0, first), sum.narrow(0, first, count), own.narrow(0, first + count, rest)],
            0,
        );
        same(&format!("all_reduce {op:?} {kind:?} of {count} from {first}"), &whole, &wanted)?;
    }
    Ok(())
}

/// Checks in-place reduce-scatter and all-gather over the middle of a tensor.
fn parts(g: &dyn ProcessGroup, kind: Kind) -> Result<(), Failure> {
    let (size, rank) = (g.size() as i64, g.rank() as i64);
    for (first, each) in [(0, 1), (3, 7), (11, 5003)] {
        let length = each * size;
        let mut flat = zeros(g, first + length + 2, kind)?;
        let whole = flat.narrow(0, first, length);
        let own = whole.narrow(0, rank * each, each);
        for op in OPS {
            let before = values(g.rank(), first + length + 2, kind);
            flat.copy_(&before);
            let sum = expected(first + length + 2, kind, g.size(), op);
            let mine = first + rank * each;
            g.reduce_scatter(&own, &whole, op)?.wait()?;
            let wanted = before.copy();
            wanted.narrow(0, mine, each).copy_(&sum.narrow(0, mine, each));
            // Backends differ in the final contents of the other parts; only shared memory keeps them.
            if uses_shared_memory() {
                same(&format!("reduce_scatter {op:?} {kind:?} in place"), &flat, &wanted)?;
            }
            same("the own part", &own, &sum.narrow(0, mine, each))?;
            g.all_gather(&whole, &own)?.wait()?;
            before.narrow(0, first, length).copy_(&sum.narrow(0, first, length));
            same(&format!("all_gather {kind:?} in place"), &flat, &before)?;
        }
    }
    Ok(())
}

fn empty(g: &dyn ProcessGroup) -> Result<(), Failure> {
    if let Some(tensor) = g.allocate(0, Kind::Float)? {
        return Err(format!("allocating nothing returned {tensor:?}").into());
    }
    let tensor = zeros(g, 10, Kind::Float)?;
    g.all_reduce(&tensor.narrow(0, 10, 0), ReduceOp::Sum)?.wait()?;
    g.all_gather(&tensor.narrow(0, 0, 0), &tensor.narrow(0, 0, 0))?.wait()?;
    Ok(())
}

/// Checks the bits of rounded sums: shared memory sums in the order of ranks.
fn order_of_ranks(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let draw = |rank: usize, size: i64, kind| {
        tch::manual_seed(90 + rank as i64);
        let options = (Kind::Double, Device::Cpu);
        (Tensor::randn([size], options) * Tensor::randn([size], options).exp()).to_kind(kind)
    };
    for kind in FLOATS {
        let wide = if kind == Kind::Double { Kind::Double } else { Kind::Float };
        for size in [5i64, 99_991] {
            let mut tensor = zeros(g, size, kind)?;
            tensor.copy_(&draw(g.rank(), size, kind));
            g.all_reduce(&tensor, ReduceOp::Sum)?.wait()?;
            let mut wanted = draw(0, size, kind).to_kind(wide);
            for rank in 1..g.size() {
                wanted += draw(rank, size, kind).to_kind(wide);
            }
            if uses_shared_memory() {
                same("the sum in the order of ranks", &tensor, &wanted.to_kind(kind))?;
            }
        }
    }
    println!("ok order of ranks");
    Ok(())
}

/// Runs many small operations together: a thousand in shared memory, fewer by messages, which are slower.
fn many(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let count = if uses_shared_memory() { 1000 } else { 100 };
    let mut flat = zeros(g, count * 7, Kind::Float)?;
    flat.copy_(&values(g.rank(), count * 7, Kind::Float));
    let start = |index: i64| g.all_reduce(&flat.narrow(0, index * 7, 7), ReduceOp::Sum);
    let works: Vec<Box<dyn Work>> = (0..count).map(start).collect::<Result<_, _>>()?;
    for work in works.into_iter().rev() {
        work.wait()?;
    }
    let sum = expected(count * 7, Kind::Float, g.size(), ReduceOp::Sum);
    same("many operations", &flat, &sum)?;
    println!("ok many");
    Ok(())
}

/// Runs operations on the group's memory and on ordinary memory in turn, and waits for them in another order.
fn mixed(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let size = 3001i64;
    let sum = expected(size, Kind::Float, g.size(), ReduceOp::Sum);
    let mut started: Vec<(Box<dyn Work>, Tensor, Tensor)> = Vec::new();
    for index in 0..12usize {
        let ordinary = values(g.rank(), size, Kind::Float);
        let mut own = zeros(g, size, Kind::Float)?;
        own.copy_(&ordinary);
        started.push((g.all_reduce(&own, ReduceOp::Sum)?, own, sum.copy()));
        let root = index % g.size();
        let (work, wanted) = if index % 2 == 0 {
            (g.all_reduce(&ordinary, ReduceOp::Sum)?, sum.copy())
        } else {
            (g.broadcast(&ordinary, root)?, values(root, size, Kind::Float))
        };
        started.push((work, ordinary, wanted));
        // Broadcasts do not use the group's memory directly.
        let mut sent = zeros(g, size, Kind::Float)?;
        sent.copy_(&values(g.rank(), size, Kind::Float));
        started.push((g.broadcast(&sent, root)?, sent, values(root, size, Kind::Float)));
    }
    g.barrier()?.wait()?;
    while let Some((work, tensor, wanted)) = started.pop() {
        work.wait()?;
        same("a mixed operation", &tensor, &wanted)?;
    }
    println!("ok mixed");
    Ok(())
}

/// Checks that a tensor may be dropped during its reduction, and that its memory is then released.
fn dropped(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let mapped = || -> Result<usize, Failure> {
        let maps = std::fs::read_to_string("/proc/self/maps")?;
        Ok(maps.lines().filter(|line| line.contains("memfd:dtrain")).count())
    };
    let before = mapped()?;
    for _ in 0..20 {
        let tensor = zeros(g, 100_000, Kind::Float)?;
        let work = g.all_reduce(&tensor, ReduceOp::Sum)?;
        drop(tensor);
        work.wait()?;
    }
    let still = zeros(g, 10, Kind::Float)?;
    drop(g.all_reduce(&still, ReduceOp::Sum)?);
    g.all_reduce(&still, ReduceOp::Sum)?.wait()?;
    drop(still);
    // The thread may keep the last segment for a moment after its work has ended.
    let begun = std::time::Instant::now();
    while mapped()? > before {
        if begun.elapsed().as_secs() > 5 {
            return Err(format!("mappings grew from {} to {}", before, mapped()?).into());
        }
        std::thread::yield_now();
    }
    Ok(())
}

/// Checks that other dtypes are not allocated, and that unsuitable tensors are rejected before any message.
fn rejected(g: &dyn ProcessGroup) -> Result<(), Failure> {
    for kind in [Kind::Int64, Kind::Int, Kind::Uint8, Kind::Bool] {
        if let Some(tensor) = g.allocate(100, kind)? {
            return Err(format!("allocating {kind:?} returned {tensor:?}").into());
        }
    }
    let tensor = zeros(g, 16, Kind::Float)?;
    if g.all_reduce(&tensor.view([4, 4]).tr(), ReduceOp::Sum).is_ok() {
        return Err("a transposed view was accepted".into());
    }
    // The same memory as integers is reduced like ordinary memory.
    let whole = tensor.view_dtype(Kind::Int);
    let _ = whole.shallow_clone().fill_(3);
    g.all_reduce(&whole, ReduceOp::Sum)?.wait()?;
    let sum = Tensor::full([16], 3 * g.size() as i64, (Kind::Int, Device::Cpu));
    same("another view of the memory", &whole, &sum)
}
