//! Memory stats of tensors: one test, because stats and budget are process-wide.
#![allow(clippy::unwrap_used)]

use dtrain_torch_shim::{ErrorKind, kind_of, memory};
use tch::{Device, Kind, Tensor};

const CPU: Device = Device::Cpu;
const MIB: u64 = 1 << 20;

fn floats(mebibytes: i64) -> Result<Tensor, tch::TchError> {
    Tensor::f_ones([mebibytes << 18], (Kind::Float, CPU))
}

#[test]
fn tensors_are_counted_and_the_budget_limits_them() {
    assert_eq!(memory::usage(CPU).unwrap(), memory::Usage::default());
    memory::enable_stats().unwrap();
    memory::enable_stats().unwrap();

    // The allocated bytes and their peak.
    let a = floats(3).unwrap();
    let view = a.narrow(0, 0, 10);
    drop(floats(5).unwrap());
    let usage = memory::usage(CPU).unwrap();
    assert_eq!((usage.allocated, usage.reserved, usage.peak), (3 * MIB, 3 * MIB, 8 * MIB));
    memory::reset_peak(CPU).unwrap();
    assert_eq!(memory::usage(CPU).unwrap().peak, 3 * MIB);
    drop(a);
    assert_eq!(memory::usage(CPU).unwrap().allocated, 3 * MIB, "a view keeps its memory");
    drop(view);
    assert_eq!(memory::usage(CPU).unwrap().allocated, 0);
    assert!(Tensor::f_zeros([0], (Kind::Float, CPU)).is_ok(), "an empty tensor needs no block");

    // Beyond the budget libtorch's own error comes, and existing tensors stay usable.
    memory::set_budget(Some(4 * MIB));
    let fits = floats(4).unwrap();
    let error = floats(1).unwrap_err();
    assert_eq!(kind_of(&error), ErrorKind::OutOfMemory, "{error}");
    let expected = "Tried to allocate 1.00 MiB. The budget is 4.00 MiB, of which 0.00 MiB are free and 4.00 MiB are allocated";
    assert!(error.to_string().contains(expected), "{error}");
    assert_eq!(memory::usage(CPU).unwrap().allocated, 4 * MIB, "a failed allocation is not counted");
    assert_eq!(
        fits.f_sum(Kind::Float).map(drop).map_err(|error| kind_of(&error)),
        Err(ErrorKind::OutOfMemory)
    );
    memory::set_budget(None);
    assert_eq!(fits.f_sum(Kind::Double).unwrap().double_value(&[]), (4 << 18) as f64);

    // The requested failure comes once, at the given allocation.
    memory::fail_allocation(2);
    let first = floats(1).unwrap();
    assert_eq!(memory::allocations_until_failure(), 1);
    assert_eq!(kind_of(&floats(1).unwrap_err()), ErrorKind::OutOfMemory);
    assert_eq!(memory::allocations_until_failure(), 0);
    let third = floats(1).unwrap();
    drop((first, third, fits));

    // Blocks of all threads have the same stats, which libtorch's reallocation keeps correct.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            std::thread::spawn(|| (0..200).for_each(|_| drop(floats(1).unwrap().f_resize_([9]).unwrap())))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(memory::usage(CPU).unwrap().allocated, 0);
    memory::empty_cache(CPU).unwrap();
}
