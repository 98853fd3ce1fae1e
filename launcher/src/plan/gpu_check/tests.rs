//! The checks on invented machines.

#![allow(clippy::unwrap_used)]

use super::super::devices::fake::{divided, gpus, machine, versions};
use super::*;

const GIB: u64 = 1 << 30;

fn all(inventory: Inventory) -> InUse {
    let count = inventory.gpus.len();
    machine(inventory, None).in_use(count).unwrap()
}

/// Builds two GPUs, the second with this much of its 16 GiB free.
fn with_free(bytes: u64) -> InUse {
    let mut inventory = gpus(2);
    inventory.gpus[0].free_bytes = 15 * GIB;
    inventory.gpus[1].free_bytes = bytes;
    all(inventory)
}

fn process(pid: u32, used_bytes: Option<u64>) -> GpuProcess {
    GpuProcess { pid, used_bytes }
}

fn ann() -> Option<Owner> {
    Some(Owner { uid: 1000, user: "ann".into(), command: "python train.py".into() })
}

fn nobody(_: usize) -> Vec<User> {
    Vec::new()
}

#[test]
fn a_driver_for_libtorchs_cuda_is_no_matter() {
    for (driver, cuda, own) in [
        ("580.65.06", "13.0", None),
        ("590.44", "13.1", None),
        ("580.65.06", "13.0", Some("12.6")),
        ("550.54", "12.4", Some("12.6")),
        ("550.54", "12.4", Some("12")),
        ("580.65.06", "13.0", Some(" ")),
    ] {
        check_driver(&versions(driver, cuda), own).unwrap();
    }
}

#[test]
fn a_driver_that_is_too_old_is_refused_with_the_remedies() {
    let refused = |own| check_driver(&versions("550.54.15", "12.4"), own).unwrap_err().to_string();
    for own in [None, Some(""), Some("13.0")] {
        assert_eq!(
            refused(own),
            "the NVIDIA driver is 550.54.15, which supports CUDA up to 12.4, and libtorch is built for CUDA 13: install driver \
             580 or a newer one, use a libtorch that is built for an older CUDA (LIBTORCH, and its version in DTRAIN_CUDA), or \
             train on the CPU with --gpu-ids none"
        );
    }
    let unknown = refused(Some("99"));
    assert!(unknown.contains("install driver a newer one"), "{unknown}");
    let wrong = refused(Some("cu126"));
    assert!(wrong.starts_with("DTRAIN_CUDA is \"cu126\"; expected"), "{wrong}");
    let silent = Versions { driver: "535.1".into(), cuda: None };
    let error = check_driver(&silent, None).unwrap_err().to_string();
    assert!(error.starts_with("the NVIDIA driver is 535.1, and libtorch"), "{error}");
}

#[test]
fn a_gpu_that_is_mostly_free_is_not_looked_at_closer() {
    let never = |_| panic!("the driver was asked");
    for free in [12 * GIB, 16 * GIB] {
        assert_eq!(check_memory(&with_free(free), never).unwrap(), [""; 0]);
    }
}

#[test]
fn memory_that_others_hold_is_told_with_their_names() {
    let users = |gpu| {
        assert_eq!(gpu, 1);
        vec![(process(99, None), None), (process(4711, Some(12 * GIB)), ann()), (process(7, Some(GIB)), None)]
    };
    let notes = check_memory(&with_free(3 * GIB), users).unwrap();
    assert_eq!(
        notes,
        [
            "GPU 1 (NVIDIA T4) has 3.00 GiB of 16.00 GiB free: pid 4711 of ann (python train.py) holds 12.00 GiB, pid \
             7 (not visible from here) holds 1.00 GiB, pid 99 (not visible from here) holds an unknown part; `dtrain \
             gpu monitor` shows when memory becomes free, `dtrain gpu kill` ends your processes, and --gpu-ids names \
             other GPUs"
        ]
    );
    let many = |_| (1..=6).map(|pid| (process(pid, Some(GIB)), ann())).collect::<Vec<_>>();
    let notes = check_memory(&with_free(3 * GIB), many).unwrap();
    assert!(notes[0].contains(", 2 more; "), "{notes:?}");
    let notes = check_memory(&with_free(LEAST_FREE), nobody).unwrap();
    assert!(notes[0].contains("has 512.00 MiB of 16.00 GiB free: the driver lists no process"), "{notes:?}");
}

#[test]
fn next_to_nothing_free_is_refused() {
    let users = |_| vec![(process(4711, Some(15 * GIB)), ann())];
    let error = check_memory(&with_free(LEAST_FREE - 1), users).unwrap_err().to_string();
    assert!(
        error.starts_with(
            "GPU 1 (NVIDIA T4) has 512.00 MiB of 16.00 GiB free, and a training needs at least 512.00 MiB before its first \
             tensor: pid 4711 of ann"
        ),
        "{error}"
    );
    assert!(error.ends_with("--gpu-ids names other GPUs"), "{error}");
    let mut both = with_free(0);
    both.inventory.gpus[0].free_bytes = 0;
    let error = check_memory(&both, nobody).unwrap_err().to_string();
    assert!(error.contains("GPU 0 (") && error.contains("; GPU 1 ("), "{error}");
}

#[test]
fn gpus_that_are_not_used_or_not_certain_are_not_judged() {
    let mut inventory = gpus(2);
    inventory.gpus[0].free_bytes = 16 * GIB;
    inventory.gpus[1].free_bytes = 0;
    let one = machine(inventory, None).in_use(1).unwrap();
    assert_eq!(check_memory(&one, nobody).unwrap(), [""; 0]);
    let uncertain = machine(divided(), None).in_use(1).unwrap();
    assert_eq!(uncertain.devices, []);
    assert_eq!(check_memory(&uncertain, nobody).unwrap(), [""; 0]);
    assert_eq!(several_kinds(&uncertain), None);
}

#[test]
fn an_instance_has_memory_of_its_own() {
    let never = |_| panic!("whose processes these are is not known");
    let one = machine(divided(), Some("MIG-1")).in_use(1).unwrap();
    let notes = check_memory(&one, never).unwrap();
    assert!(
        notes[0].starts_with(
            "MIG instance 1 of GPU 1 (NVIDIA T4 MIG 1g.8gb) has 4.00 GiB of 8.00 GiB free: `dtrain gpu info` lists"
        ),
        "{notes:?}"
    );
}

#[test]
fn gpus_of_several_kinds_are_named() {
    assert_eq!(several_kinds(&all(gpus(2))), None);
    let mut inventory = gpus(3);
    inventory.gpus[0].name = "NVIDIA H200".into();
    inventory.gpus[0].total_bytes = 139 * GIB;
    inventory.gpus[2].total_bytes += 1;
    assert_eq!(
        several_kinds(&all(inventory)).unwrap(),
        "the GPUs are of 2 kinds, NVIDIA H200 with 139.00 GiB and NVIDIA T4 with 16.00 GiB: the smallest memory (NVIDIA \
         T4, 16.00 GiB) limits the micro-batch, the slowest GPU sets the pace, and precision.amp = \"auto\" is bf16 only if \
         all GPUs of the machine support it; to use one kind, name its GPUs in --gpu-ids"
    );
}
