//! Recomputation compared with the normal way: random numbers, autocast, memory. One test at a time, because
//! generators, memory stats and failures on purpose are process-wide.
#![allow(clippy::unwrap_used)]

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::recompute::recompute;
use dtrain_torch_shim::{ErrorKind, ShimError, kind_of, memory, rng};
use tch::{Device, Kind, TchError, Tensor};

const CPU: Device = Device::Cpu;

fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn leaf(shape: &[i64]) -> Tensor {
    Tensor::randn(shape, (Kind::Float, CPU)).set_requires_grad(true)
}

/// A block that saves six tensors of its input's size for backward.
fn block(x: &Tensor, w: &Tensor) -> Result<Tensor, TchError> {
    let mut y = x.shallow_clone();
    for _ in 0..3 {
        y = y.f_mm(w)?.f_tanh()?;
    }
    Ok(y)
}

fn forward(x: &Tensor, w: &Tensor, recomputes: bool) -> Result<Tensor, ShimError> {
    let mut y = x.shallow_clone();
    for _ in 0..4 {
        let held = Arc::new(Mutex::new(w.shallow_clone()));
        y = match recomputes {
            true => recompute(&[&y], move |inputs, _| Ok(block(&inputs[0], &held.lock().unwrap())?))?,
            false => block(&y, w)?,
        };
    }
    Ok(y.f_sum(Kind::Float)?)
}

#[test]
fn the_peak_falls_and_a_failed_allocation_in_recompute_is_out_of_memory() {
    let _alone = alone();
    memory::enable_stats().unwrap();
    let x = Tensor::randn([512, 16], (Kind::Float, CPU));
    let mut w = Tensor::randn([16, 16], (Kind::Float, CPU)).set_requires_grad(true);
    let mut peak = |recomputes: bool| {
        w.zero_grad();
        let before = memory::usage(CPU).unwrap().allocated;
        memory::reset_peak(CPU).unwrap();
        forward(&x, &w, recomputes).unwrap().backward();
        memory::usage(CPU).unwrap().peak - before
    };
    let (plain, recomputed) = (peak(false), peak(true));
    assert!(5 * recomputed < 3 * plain, "{recomputed} of {plain}");
    let gradient = w.grad().copy();
    w.zero_grad();

    // Each allocation of a backward pass with recomputation fails in turn.
    let before = memory::usage(CPU).unwrap().allocated;
    let mut failures = 0;
    for allocation in (1..).step_by(3) {
        let loss = forward(&x, &w, true).unwrap();
        memory::fail_allocation(allocation);
        let outcome = loss.f_backward();
        let left = memory::allocations_until_failure();
        memory::fail_allocation(0);
        drop(loss);
        match outcome {
            Err(error) => {
                assert_eq!(kind_of(&error), ErrorKind::OutOfMemory, "{allocation}: {error}");
                failures += 1;
            }
            Ok(()) => {
                assert!(left > 0, "{allocation}");
                break;
            }
        }
        w.zero_grad();
        let now = memory::usage(CPU).unwrap().allocated;
        assert!(now <= before, "{allocation}: the graph is freed ({now}, {before})");
    }
    assert!(failures > 20, "{failures}");
    w.zero_grad();
    forward(&x, &w, true).unwrap().backward();
    assert!(w.grad().equal(&gradient), "failed passes leave no gradient");
}

type Run = dyn Fn(Tensor) -> Tensor + Send + Sync;

/// Checks that recomputation gives output and gradients identical to the bit.
fn compare(segment: impl Fn(&Tensor, &Tensor) -> Tensor + Send + Sync + Clone + 'static, around: &Run) {
    let _alone = alone();
    let (x, w) = (leaf(&[8, 16]), leaf(&[16, 16]));
    let run = |recomputes: bool| {
        tch::manual_seed(7);
        let y = {
            let h = &x * 2.0;
            let y = if recomputes {
                let (segment, held) = (segment.clone(), Mutex::new(w.shallow_clone()));
                recompute(&[&h], move |inputs, _| Ok(segment(&inputs[0], &held.lock().unwrap()))).unwrap()
            } else {
                segment(&h, &w)
            };
            around(y)
        };
        y.square().sum(Kind::Float).backward();
        let state = rng::state(CPU).unwrap();
        let found = [y.detach(), x.grad().copy(), w.grad().copy(), state];
        let _ = (x.grad().zero_(), w.grad().zero_());
        found
    };
    let (plain, recomputed) = (run(false), run(true));
    for (number, (a, b)) in plain.iter().zip(&recomputed).enumerate() {
        assert!(a.equal(b), "{number}: {a} {b}");
    }
    assert!(plain[2].abs().sum(Kind::Float).double_value(&[]) > 0.0);
}

#[test]
fn recompute_repeats_random_numbers_and_later_ones_continue() {
    compare(
        |x, w| x.mm(w).dropout(0.5, true).relu().mm(w),
        // Drawn between the segment and its backward pass.
        &|y| y.dropout(0.3, true),
    );
}

#[test]
fn recompute_uses_the_autocast_of_the_forward_pass() {
    let short = |x: &Tensor, w: &Tensor| {
        let _region = Autocast::enter(CPU, Kind::BFloat16).unwrap();
        let y = x.mm(w);
        let _within = Autocast::enter(CPU, Kind::BFloat16).unwrap();
        (y.to_kind(Kind::Float) * 1.5).mm(w)
    };
    compare(short, &|y| y);
}

#[test]
fn weights_cast_without_a_graph_are_not_reused_with_one() {
    let _alone = alone();
    let (x, w) = (leaf(&[8, 16]), leaf(&[16, 16]));
    // The segment needs no gradients, and backward runs outside of the region.
    let run = |recomputes: bool| {
        let y = {
            let _region = Autocast::enter(CPU, Kind::BFloat16).unwrap();
            let held = Mutex::new(w.shallow_clone());
            let segment = move |x: &Tensor| x.mm(&held.lock().unwrap()).gelu("none");
            let y = match recomputes {
                true => recompute(&[&x], move |inputs, _| Ok(segment(&inputs[0]))).unwrap(),
                false => segment(&x),
            };
            assert_eq!(y.kind(), Kind::BFloat16);
            // This must not use the cached weight that was cast without a graph.
            y.mm(&w)
        };
        y.to_kind(Kind::Float).square().sum(Kind::Float).backward();
        let found = [y.detach(), x.grad().copy(), w.grad().copy()];
        let _ = (x.grad().zero_(), w.grad().zero_());
        found
    };
    for (a, b) in run(false).iter().zip(&run(true)) {
        let near = a.to_kind(Kind::Float).allclose(&b.to_kind(Kind::Float), 1e-2, 1e-2, false);
        assert!(near, "{a} {b}");
    }
    assert_eq!(w.mm(&w).kind(), Kind::Float);
}
