#![allow(clippy::unwrap_used)]

use super::super::tests::{divided, gpus, mixed};
use super::*;
use proptest::prelude::*;

fn ids(text: &str) -> Vec<GpuId> {
    text.split(',').map(|id| id.parse().unwrap()).collect()
}

fn choose(inventory: &Inventory, list: Option<&str>, text: &str) -> Result<Vec<String>, ChoiceError> {
    let devices = Visible::new(inventory, list).choose(inventory, &ids(text), None)?;
    Ok(devices.into_iter().map(|device| inventory.uuid(device).unwrap().to_owned()).collect())
}

#[track_caller]
fn expect_error(inventory: &Inventory, list: Option<&str>, text: &str, parts: &[&str]) {
    let error = choose(inventory, list, text).unwrap_err().to_string();
    for part in parts {
        assert!(error.contains(part), "{part:?} is missing in: {error}");
    }
}

#[test]
fn names_of_gpus() {
    assert_eq!("0".parse(), Ok(GpuId::Index(0)));
    assert_eq!(" 12 ".parse(), Ok(GpuId::Index(12)));
    for uuid in ["GPU-8932f937", "MIG-8932f937-d72c-4106-c12f-20bd9faed9f6", "MIG-GPU-8932f937/1/2"] {
        assert_eq!(uuid.parse(), Ok(GpuId::Uuid(uuid.into())));
    }
    for wrong in [
        "",
        " ",
        "-1",
        "+1",
        "1.5",
        "x",
        "all",
        "GPU-",
        "MIG-",
        "GPU-8 9",
        "gpu0",
        "0 1",
        "4294967296",
        "cuda:0",
        "0x1",
    ] {
        assert_eq!(wrong.parse::<GpuId>(), Err(GpuIdError(wrong.trim().into())));
    }
}

#[test]
fn an_index_counts_the_visible_ones() {
    let eight = gpus(8);
    assert_eq!(choose(&eight, Some("4,6"), "1").unwrap(), ["GPU-66aa-0001"]);
    assert_eq!(choose(&eight, Some("6,4"), "1,0").unwrap(), ["GPU-44aa-0001", "GPU-66aa-0001"]);
    assert_eq!(choose(&eight, None, "6").unwrap(), ["GPU-66aa-0001"]);
    assert_eq!(choose(&eight, Some("GPU-55,GPU-2"), "0").unwrap(), ["GPU-55aa-0001"]);
    expect_error(
        &eight,
        Some("4,6"),
        "6",
        &[
            "`6` is not a GPU visible with CUDA_VISIBLE_DEVICES=4,6; choose from:\n",
            "\n  1: GPU 6, NVIDIA T4, 16.00 GiB, GPU-66aa-0001",
        ],
    );
}

#[test]
fn a_uuid_must_be_among_the_visible_ones() {
    let eight = gpus(8);
    assert_eq!(choose(&eight, Some("4,6"), "GPU-66aa").unwrap(), ["GPU-66aa-0001"]);
    expect_error(
        &eight,
        Some("4,6"),
        "GPU-55",
        &["`GPU-55` is GPU 5, which CUDA_VISIBLE_DEVICES=4,6 hides", "  0: GPU 4, "],
    );
    let mut two = gpus(2);
    two.gpus[1].uuid = Some("GPU-00ab".into());
    expect_error(&two, None, "GPU-00a", &["`GPU-00a` matches several UUIDs"]);
    assert_eq!(choose(&two, Some("1"), "GPU-00a").unwrap(), ["GPU-00ab"]);
}

#[test]
fn missing_and_repeated_devices_are_errors_with_the_choices() {
    let two = gpus(2);
    let all = "  0: NVIDIA T4, 16.00 GiB, GPU-00aa-0001\n  1: NVIDIA T4, 16.00 GiB, GPU-11aa-0001";
    expect_error(&two, None, "2", &["`2` is not a GPU of this machine; choose from:\n", all]);
    expect_error(&two, None, "GPU-ff", &["`GPU-ff` is not a GPU of this machine; choose from:\n", all]);
    expect_error(&two, None, "MIG-ff", &["`MIG-ff` is not a GPU of this machine; choose from:\n", all]);
    expect_error(&two, None, "1,0,1", &["`1` and `1` both name GPU 1", all]);
    expect_error(&two, None, "1,GPU-11", &["`1` and `GPU-11` both name GPU 1", all]);
}

#[test]
fn only_the_instances_of_a_divided_gpu_can_be_used() {
    let machine = divided();
    assert_eq!(choose(&machine, None, "MIG-1c,0").unwrap(), ["MIG-1c-77", "GPU-00aa-0001"]);
    assert_eq!(choose(&machine, Some("MIG-1c,MIG-0c"), "1").unwrap(), ["MIG-0c-77"]);
    for name in ["1", "GPU-11"] {
        expect_error(
            &machine,
            None,
            name,
            &[
                "GPU 1 is divided into MIG instances",
                "  1: NVIDIA A100, 16.00 GiB, GPU-11aa-0001, in MIG mode\n     instance: NVIDIA A100 MIG \
                 3g.20gb, 20.00 GiB, MIG-0c-77\n",
            ],
        );
    }
    expect_error(&machine, None, "2", &["GPU 2 is in MIG mode without instances"]);
    expect_error(&machine, Some("MIG-0c"), "MIG-1c", &["`MIG-1c` is MIG instance 1 of GPU 1, which"]);
    expect_error(&machine, Some("MIG-0c"), "GPU-11", &["hides"]);
}

#[test]
fn an_ambiguous_inherited_list_of_numbers_is_an_error() {
    let two = mixed();
    expect_error(&two, Some("1"), "0", &["GPUs of several kinds", "CUDA_DEVICE_ORDER=PCI_BUS_ID"]);
    let visible = Visible::new(&two, Some("1"));
    assert!(visible.choose(&two, &ids("0"), Some("FASTEST_FIRST")).is_err());
    assert!(visible.choose(&two, &ids("0"), Some("PCI_BUS_ID")).is_ok());
    assert_eq!(choose(&two, Some("GPU-11"), "0").unwrap(), ["GPU-11aa-0001"]);
    assert_eq!(choose(&two, None, "1").unwrap(), ["GPU-11aa-0001"]);
    expect_error(&divided(), Some("0"), "0", &["GPUs in MIG mode", "list UUIDs"]);
}

fn name() -> impl Strategy<Value = GpuId> {
    prop_oneof![(0..9u32).prop_map(GpuId::Index), "(GPU|MIG)-[0-3][0-3ac]{0,2}".prop_map(GpuId::Uuid),]
}

proptest! {
    #[test]
    fn any_text_is_a_gpu_id_or_an_error(text in prop_oneof![".*", "[-0-9GPUMI/ ]{0,12}"]) {
        if let Ok(id) = text.parse::<GpuId>() {
            prop_assert_eq!(id.to_string().parse::<GpuId>(), Ok(id));
        }
    }

    #[test]
    fn chosen_devices_are_visible_usable_and_distinct(
        names in prop::collection::vec(name(), 1..4),
        list in prop::option::of("((GPU-|MIG-)?[0-3],?){0,4}"),
    ) {
        for inventory in [gpus(4), divided()] {
            let visible = Visible::new(&inventory, list.as_deref());
            match visible.choose(&inventory, &names, None) {
                Ok(chosen) => {
                    prop_assert_eq!(chosen.len(), names.len());
                    for (position, device) in chosen.iter().enumerate() {
                        prop_assert!(visible.contains(*device) && !chosen[..position].contains(device));
                        let divided = inventory.gpus[device.gpu].mig.is_some();
                        prop_assert_eq!(divided, device.is_instance());
                    }
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn an_index_selects_that_entry_of_the_list(
        list in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(),
        pick in 0..6u32,
    ) {
        let inventory = gpus(6);
        let text = list.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
        let chosen = Visible::new(&inventory, Some(&text)).choose(&inventory, &[GpuId::Index(pick)], None);
        prop_assert_eq!(chosen.unwrap()[0].gpu(), list[pick as usize] as usize);
    }

    /// A worker of an inner launch finds the devices of the outer launch by UUID, in the same order.
    #[test]
    fn a_program_sees_the_chosen_devices(
        ids in Just((0..6u32).collect::<Vec<_>>()).prop_shuffle(),
        count in 1..6usize,
    ) {
        let inventory = gpus(6);
        let ids: Vec<_> = ids[..count].iter().copied().map(GpuId::Index).collect();
        let chosen = Visible::new(&inventory, None).choose(&inventory, &ids, None).unwrap();
        let uuids: Vec<_> = chosen.iter().filter_map(|device| inventory.uuid(*device)).collect();
        let seen = Visible::new(&inventory, Some(&uuids.join(",")));
        prop_assert_eq!(seen.devices(), &chosen[..]);
        prop_assert_eq!(seen.count(&inventory), count);
    }
}

#[test]
fn first_devices_are_known_only_in_a_certain_order() {
    let of = |inventory: &Inventory, list, count, order| {
        let devices = Visible::new(inventory, list).first_devices(inventory, count, order)?;
        Some(devices.into_iter().map(|device| inventory.title(device)).collect::<Vec<_>>().join(", "))
    };
    let bus = Some(PCI_BUS_ID);
    for (inventory, list, count, order, expected) in [
        (gpus(4), None, 2, None, Some("GPU 0, GPU 1")),
        (gpus(4), Some("3,1,0"), 2, None, Some("GPU 3, GPU 1")),
        (gpus(2), None, 3, None, None),
        // All GPUs are used, so their order does not matter.
        (mixed(), None, 2, None, Some("GPU 0, GPU 1")),
        (mixed(), None, 1, None, None),
        (mixed(), None, 1, bus, Some("GPU 0")),
        (mixed(), Some("1"), 1, None, None),
        (mixed(), Some("1"), 1, bus, Some("GPU 1")),
        (mixed(), Some("GPU-11aa-0001"), 1, None, Some("GPU 1")),
        // CUDA chooses one of the two instances.
        (divided(), None, 1, None, None),
        (divided(), Some("MIG-1c-77"), 1, None, Some("MIG instance 1 of GPU 1")),
        (divided(), Some("0"), 1, None, None),
        (divided(), Some("GPU-00aa-0001"), 1, None, Some("GPU 0")),
    ] {
        let found = of(&inventory, list, count, order);
        assert_eq!(found.as_deref(), expected, "{list:?} {count} {order:?}");
    }
}
