#![allow(clippy::unwrap_used)]

use super::fake::{divided, gpus, machine, no_driver};
use super::*;
use std::collections::BTreeMap;

/// Returns a worker's variables, with `local_rank` before.
fn told(devices: &Devices, local_rank: usize, inherited: Option<&str>) -> BTreeMap<&'static str, String> {
    let mut vars = vec![(LOCAL_RANK, local_rank.to_string().into())];
    let get = |name: &str| inherited.filter(|_| name == CUDA_DEVICE_ORDER).map(OsString::from);
    devices.set_vars(local_rank, &mut vars, get);
    let count = vars.len();
    let vars: BTreeMap<_, _> =
        vars.into_iter().map(|(name, value)| (name, value.into_string().unwrap())).collect();
    assert_eq!(vars.len(), count, "each variable once");
    vars
}

fn choose(machine: Machine, ids: &str) -> Devices {
    Devices::Chosen(machine.choose(&ids.parse().unwrap()).unwrap())
}

fn refused(machine: Machine, ids: &str) -> String {
    let error = machine.choose(&ids.parse().unwrap()).unwrap_err();
    format!("{error:#}")
}

#[test]
fn visible_devices_are_described() {
    let described = |inventory, list| machine(inventory, list).described();
    assert_eq!(described(gpus(1), None), "1 GPU (NVIDIA T4)");
    assert_eq!(described(gpus(3), Some("0,1")), "2 GPUs (NVIDIA T4)");
    assert_eq!(described(gpus(0), Some("0")), "the NVIDIA driver finds no GPU");
    assert_eq!(described(gpus(1), Some("-1")), "CUDA_VISIBLE_DEVICES=\"-1\" hides the 1 GPU of this machine");
    let mut two_kinds = gpus(3);
    two_kinds.gpus[2].name = "NVIDIA H200".into();
    assert_eq!(described(two_kinds.clone(), Some("0,1")), "2 GPUs (NVIDIA T4)");
    assert_eq!(described(two_kinds, None), "3 GPUs (NVIDIA T4, NVIDIA H200)");
    assert_eq!(described(divided(), None), "1 of 2 MIG instances (NVIDIA T4 MIG 1g.8gb)");
    assert_eq!(described(divided(), Some("0")), "1 GPU (NVIDIA T4)");
    let mut empty = divided();
    empty.gpus[1].mig = Some(vec![]);
    assert_eq!(described(empty, Some("1")), "the visible GPUs are in MIG mode and have no instances");
}

#[test]
fn workers_see_the_chosen_gpus_by_uuid_in_the_order_of_their_ranks() {
    let devices = choose(machine(gpus(8), Some("4,6")), "1,GPU-4");
    for rank in 0..2 {
        let vars = told(&devices, rank, None);
        assert_eq!(vars[CUDA_VISIBLE_DEVICES], "GPU-6,GPU-4");
        assert_eq!(vars[CUDA_DEVICE_ORDER], "PCI_BUS_ID");
        assert_eq!(vars[LOCAL_RANK], rank.to_string());
        assert!(!told(&devices, rank, Some("FASTEST_FIRST")).contains_key(CUDA_DEVICE_ORDER));
    }
}

#[test]
fn without_uuids_gpus_have_numbers_in_the_order_of_the_bus() {
    let mut inventory = gpus(3);
    inventory.gpus[2].uuid = None;
    let devices = choose(machine(inventory, None), "2,0");
    for order in [None, Some("FASTEST_FIRST")] {
        let vars = told(&devices, 1, order);
        assert_eq!(vars[CUDA_VISIBLE_DEVICES], "2,0");
        assert_eq!(vars[CUDA_DEVICE_ORDER], "PCI_BUS_ID");
    }
}

#[test]
fn workers_see_only_their_own_mig_instance() {
    let devices = choose(machine(divided(), None), "MIG-1,MIG-0");
    for (rank, uuid) in [(0, "MIG-1"), (1, "MIG-0")] {
        let vars = told(&devices, rank, None);
        assert_eq!((vars[CUDA_VISIBLE_DEVICES].as_str(), vars[LOCAL_RANK].as_str()), (uuid, "0"));
    }
    let one = choose(machine(divided(), None), "MIG-1");
    assert_eq!(told(&one, 0, None)[CUDA_VISIBLE_DEVICES], "MIG-1");
}

#[test]
fn the_cpu_is_an_empty_list_and_no_choice_changes_nothing() {
    assert_eq!(told(&Devices::Cpu, 1, None)[CUDA_VISIBLE_DEVICES], "");
    assert_eq!(told(&Devices::Inherited, 1, None).len(), 1);
}

#[test]
fn chosen_gpus_in_words() {
    let words = |inventory, ids: &str| {
        let chosen = machine(inventory, None).choose(&ids.parse().unwrap());
        chosen.unwrap().described
    };
    assert_eq!(words(gpus(4), "2"), "GPU 2 (NVIDIA T4)");
    assert_eq!(words(gpus(4), "3,1"), "GPUs 3 and 1 (NVIDIA T4)");
    assert_eq!(words(gpus(4), "0,1,2"), "GPUs 0, 1 and 2 (NVIDIA T4)");
    assert_eq!(
        words(divided(), "MIG-1,0"),
        "MIG instance 1 of GPU 1 and GPU 0 (NVIDIA T4 MIG 1g.8gb, NVIDIA T4)"
    );
}

#[test]
fn a_choice_without_gpus_is_refused_with_the_remedy() {
    assert_eq!(
        refused(no_driver(), "0"),
        "--gpu-ids 0: no NVIDIA driver is loaded on this machine, so no GPU can be used; leave the flag out, or give --gpu-ids \
         none, for workers on the CPU"
    );
    assert!(refused(machine(gpus(0), Some("0")), "0").contains("finds no GPU; leave the flag out"));
    assert!(refused(machine(gpus(2), Some("")), "0").contains("hides the 2 GPUs of this machine; unset it"));
    assert!(
        refused(machine(gpus(2), None), "2")
            .starts_with("--gpu-ids 2: `2` is not a GPU of this machine; choose from:\n  0: ")
    );
}
