//! Checks of every backend on every tensor.

use std::time::{Duration, Instant};

use dtrain_test_kit::no_values;
use dtrain_worker::collectives::{CollectiveError, ProcessGroup, ReduceOp, Work};
use tch::{Device, Kind, Tensor};

use super::values::{expected, same, values};
use super::{Failure, Group, allocated, device};

const KINDS: [Kind; 8] =
    [Kind::Float, Kind::Double, Kind::Half, Kind::BFloat16, Kind::Int64, Kind::Int, Kind::Int8, Kind::Uint8];

/// Empty, one, odd, even, and a size that takes several segments of a ring.
const SIZES: [i64; 7] = [0, 1, 3, 8, 1000, 4097, 262_147];

pub(super) fn run(group: Group) -> Result<(), Failure> {
    let g = group.as_ref();
    for kind in KINDS {
        for size in SIZES {
            all_reduce(g, kind, size)?;
            broadcast(g, kind, size)?;
            all_gather(g, kind, size)?;
            reduce_scatter(g, kind, size)?;
        }
        println!("ok {kind:?}");
    }
    shapes(g)?;
    same_bits(g)?;
    in_flight(g)?;
    barrier(g)?;
    refusals(g)?;
    // Host memory only: a group of GPUs alone has no such memory.
    if device() == Device::Cpu {
        allocated::all(g)?;
    }
    group.shutdown()?;
    println!("ok shutdown");
    no_values::report();
    Ok(())
}

pub(super) fn all_reduce(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let tensor = values(g.rank(), size, kind);
        g.all_reduce(&tensor, op)?.wait()?;
        same(&format!("all_reduce {op:?} {kind:?} {size}"), &tensor, &expected(size, kind, g.size(), op))?;
    }
    Ok(())
}

fn broadcast(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    for root in 0..g.size() {
        let tensor = values(g.rank(), size, kind);
        g.broadcast(&tensor, root)?.wait()?;
        same(&format!("broadcast from {root} {kind:?} {size}"), &tensor, &values(root, size, kind))?;
    }
    Ok(())
}

fn all_gather(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    let output = Tensor::zeros([size * g.size() as i64], (kind, device()));
    g.all_gather(&output, &values(g.rank(), size, kind))?.wait()?;
    let all: Vec<Tensor> = (0..g.size()).map(|rank| values(rank, size, kind)).collect();
    same(&format!("all_gather {kind:?} {size}"), &output, &Tensor::cat(&all, 0))
}

fn reduce_scatter(g: &dyn ProcessGroup, kind: Kind, size: i64) -> Result<(), Failure> {
    let whole = size * g.size() as i64;
    for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
        let output = Tensor::zeros([size], (kind, device()));
        let input = values(g.rank(), whole, kind);
        g.reduce_scatter(&output, &input, op)?.wait()?;
        let wanted = expected(whole, kind, g.size(), op).narrow(0, g.rank() as i64 * size, size);
        same(&format!("reduce_scatter {op:?} {kind:?} {size}"), &output, &wanted)?;
        same("reduce_scatter leaves its input", &input, &values(g.rank(), whole, kind))?;
    }
    Ok(())
}

/// Checks tensors of several dimensions and views into the middle of a buffer, such as the trainer's buckets.
fn shapes(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let flat = values(g.rank(), 120, Kind::Float);
    g.all_reduce(&flat.narrow(0, 24, 48).view([2, 4, 6]), ReduceOp::Sum)?.wait()?;
    let sum = expected(120, Kind::Float, g.size(), ReduceOp::Sum);
    let own = values(g.rank(), 120, Kind::Float);
    let wanted = Tensor::cat(&[own.narrow(0, 0, 24), sum.narrow(0, 24, 48), own.narrow(0, 72, 48)], 0);
    same("all_reduce of a view", &flat, &wanted)?;

    let output = Tensor::zeros([g.size() as i64, 5, 24], (Kind::Float, device()));
    g.all_gather(&output, &own.view([5, 24]))?.wait()?;
    for rank in 0..g.size() {
        same("all_gather of matrices", &output.get(rank as i64).view(-1), &values(rank, 120, Kind::Float))?;
    }
    in_place(g)?;
    println!("ok shapes");
    Ok(())
}

/// Checks operations whose other tensor is a part of the whole.
fn in_place(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let (size, rank) = (g.size() as i64, g.rank() as i64);
    for each in [1i64, 13, 40_001] {
        let whole = values(g.rank(), each * size, Kind::Float);
        let part = whole.narrow(0, rank * each, each);
        g.reduce_scatter(&part, &whole, ReduceOp::Sum)?.wait()?;
        let sum = expected(each * size, Kind::Float, g.size(), ReduceOp::Sum);
        same("reduce_scatter in place", &part, &sum.narrow(0, rank * each, each))?;
        g.all_gather(&whole, &part)?.wait()?;
        same("all_gather in place", &whole, &sum)?;
    }
    Ok(())
}

/// Checks that every rank holds the same bits after a reduction, also if the sum is rounded.
fn same_bits(g: &dyn ProcessGroup) -> Result<(), Failure> {
    tch::manual_seed(17 + g.rank() as i64);
    for size in [5i64, 99_991] {
        let tensor = Tensor::randn([size], (Kind::Float, device()));
        g.all_reduce(&tensor, ReduceOp::Sum)?.wait()?;
        let all = Tensor::zeros([g.size() as i64, size], (Kind::Float, device()));
        g.all_gather(&all, &tensor)?.wait()?;
        for rank in 0..g.size() {
            same("the bits of another rank", &all.get(rank as i64), &tensor)?;
        }
    }
    println!("ok same bits");
    Ok(())
}

/// Runs many operations of different kinds together, and waits for them in reverse order.
fn in_flight(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let mut started: Vec<(Box<dyn Work>, Tensor, Tensor)> = Vec::new();
    for index in 0..24i64 {
        let size = 1 + index * 977;
        let tensor = values(g.rank(), size, Kind::Float);
        let (work, wanted) = if index % 3 == 2 {
            let root = index as usize % g.size();
            (g.broadcast(&tensor, root)?, values(root, size, Kind::Float))
        } else {
            let wanted = expected(size, Kind::Float, g.size(), ReduceOp::Sum);
            (g.all_reduce(&tensor, ReduceOp::Sum)?, wanted)
        };
        started.push((work, tensor, wanted));
    }
    while let Some((work, tensor, wanted)) = started.pop() {
        work.wait()?;
        same("an operation in flight", &tensor, &wanted)?;
    }
    println!("ok in flight");
    Ok(())
}

/// Checks that no rank leaves a barrier before the last one has entered.
fn barrier(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let pause = Duration::from_millis(200);
    g.barrier()?.wait()?;
    let begun = Instant::now();
    if g.rank() + 1 == g.size() {
        std::thread::sleep(pause);
    }
    g.barrier()?.wait()?;
    // Scheduling may delay the other ranks' entry into the second barrier.
    if begun.elapsed() < pause / 2 {
        return Err(format!("the barrier held for {:?} only", begun.elapsed()).into());
    }
    println!("ok barrier");
    Ok(())
}

/// Checks that unsuitable tensors are rejected before any message, and that the group stays usable.
fn refusals(g: &dyn ProcessGroup) -> Result<(), Failure> {
    let here = |kind| (kind, device());
    let (n, size) = (g.size() as i64, g.size());
    let square = Tensor::zeros([4, 4], here(Kind::Float));
    let long = Tensor::zeros([4 * n + 1], here(Kind::Float));
    let short = Tensor::zeros([4], here(Kind::Float));
    let doubles = Tensor::zeros([4 * n], here(Kind::Double));
    let refused = [
        ("a transposed tensor", g.all_reduce(&square.tr(), ReduceOp::Sum)),
        ("booleans", g.all_reduce(&Tensor::zeros([4], here(Kind::Bool)), ReduceOp::Sum)),
        ("a root that is no rank", g.broadcast(&short, size)),
        ("a gather of another length", g.all_gather(&long, &short)),
        ("a gather of another dtype", g.all_gather(&doubles, &short)),
        ("a scatter of another length", g.reduce_scatter(&short, &long, ReduceOp::Sum)),
    ];
    for (what, result) in refused {
        match result {
            Err(CollectiveError::InvalidTensor { .. }) => {}
            Err(error) => return Err(format!("{what}: {error}").into()),
            Ok(_) => return Err(format!("{what} was taken").into()),
        }
    }
    all_reduce(g, Kind::Float, 10)?;
    println!("ok refusals");
    Ok(())
}
