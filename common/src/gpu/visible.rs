//! The devices that a CUDA program sees for a value of CUDA_VISIBLE_DEVICES.

use super::{DeviceIndex, Inventory};

/// The devices that CUDA_VISIBLE_DEVICES shows to a program, in its order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Visible {
    devices: Vec<DeviceIndex>,
    list: Option<String>,
    /// Whether the list has numbers; CUDA may count them differently from NVML.
    pub(super) by_index: bool,
}

impl Visible {
    /// Reads the variable as CUDA does, and as PyTorch does to count devices.
    ///
    /// Unset: all devices. Otherwise a list of indexes, of UUIDs (or prefixes) of GPUs, or of UUIDs of MIG
    /// instances. The first entry decides the kind. The list ends before the first entry of another kind,
    /// such as `-1`, or that names no device. A list that names a device twice shows no device. Text after
    /// the digits of an index is ignored.
    pub fn new(inventory: &Inventory, cuda_visible_devices: Option<&str>) -> Self {
        let (devices, by_index) = match cuda_visible_devices {
            None => (inventory.whole_gpus().collect(), false),
            Some(list) => match ["GPU-", "MIG-"].into_iter().find(|kind| list.trim_start().starts_with(kind))
            {
                Some(kind) => {
                    let entry = |entry: &str| entry.starts_with(kind).then(|| entry.to_owned());
                    let find = |uuid: &String| match inventory.with_uuid_prefix(uuid)[..] {
                        [device] => Some(device),
                        _ => None,
                    };
                    (read(list, entry, find), false)
                }
                None => (read(list, leading_number, |gpu| inventory.whole_gpus().nth(*gpu)), true),
            },
        };
        Self { devices, list: cuda_visible_devices.map(str::to_owned), by_index }
    }

    /// Returns whether a value of CUDA_VISIBLE_DEVICES begins with an index or a UUID, known here or not.
    pub fn names_a_device(list: &str) -> bool {
        let first = list.split(',').next().unwrap_or_default().trim();
        leading_number(first).is_some() || first.starts_with("GPU-") || first.starts_with("MIG-")
    }

    /// Returns the devices; a GPU in MIG mode is one device.
    pub fn devices(&self) -> &[DeviceIndex] {
        &self.devices
    }

    pub fn list(&self) -> Option<&str> {
        self.list.as_deref()
    }

    /// Returns the number of devices that one process can use: one MIG instance, or all GPUs without MIG.
    pub fn count(&self, inventory: &Inventory) -> usize {
        if self.instances(inventory).next().is_some() {
            return 1;
        }
        self.devices.iter().filter(|device| inventory.gpus[device.gpu].mig.is_none()).count()
    }

    /// Returns the MIG instances among the devices, including the instances of whole GPUs.
    pub fn instances(&self, inventory: &Inventory) -> impl Iterator<Item = DeviceIndex> {
        self.devices.iter().flat_map(|device| {
            let of_whole = (!device.is_instance()).then(|| inventory.instances(device.gpu));
            let itself = device.is_instance().then_some(*device);
            itself.into_iter().chain(of_whole.into_iter().flatten())
        })
    }

    /// Returns whether a program may use this device.
    pub fn contains(&self, device: DeviceIndex) -> bool {
        self.devices.contains(&device) || self.devices.contains(&DeviceIndex::whole(device.gpu))
    }
}

/// Returns the devices of the entries that `entry` reads, up to the first that `find` does not find.
fn read<T: PartialEq>(
    list: &str,
    entry: impl Fn(&str) -> Option<T>,
    find: impl Fn(&T) -> Option<DeviceIndex>,
) -> Vec<DeviceIndex> {
    let entries: Vec<T> = list.split(',').map_while(|text| entry(text.trim())).collect();
    let devices: Vec<DeviceIndex> = entries.iter().map_while(find).collect();
    // Neither an unknown entry nor one device under two names may appear twice.
    if has_twice(&entries) || has_twice(&devices) {
        return Vec::new();
    }
    devices
}

fn has_twice<T: PartialEq>(items: &[T]) -> bool {
    (1..items.len()).any(|position| items[..position].contains(&items[position]))
}

fn leading_number(entry: &str) -> Option<usize> {
    let digits = entry.strip_prefix('+').unwrap_or(entry);
    let end = digits.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(digits.len());
    digits[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{divided, gpus};
    use super::*;
    use proptest::prelude::*;

    fn numbers(inventory: &Inventory, list: Option<&str>) -> Vec<usize> {
        let visible = Visible::new(inventory, list);
        visible.devices().iter().map(|device| device.gpu()).collect()
    }

    #[test]
    fn lists_are_read_as_cuda_reads_them() {
        let four = gpus(4);
        for (list, expected) in [
            ("", &[][..]),
            (" ", &[]),
            ("-1", &[]),
            ("0", &[0]),
            ("3,1", &[3, 1]),
            (" 0 , 2 ", &[0, 2]),
            ("0,1,-1,2", &[0, 1]),
            ("0,9,1", &[0]),
            ("9", &[]),
            ("+1", &[1]),
            ("1gpu2,2ampere", &[1, 2]),
            ("none", &[]),
            ("NoDevFiles", &[]),
            ("0,0", &[]),
            ("0,9,9", &[]),
            ("0,00", &[]),
            ("1,-1,1", &[1]),
            ("1,GPU-00aa-0001", &[1]),
            ("GPU-00aa-0001", &[0]),
            ("GPU-00,GPU-3", &[0, 3]),
            ("GPU-00,3", &[0]),
            ("GPU-00,GPU-00aa", &[]),
            ("GPU-", &[]),
            ("GPU-ff", &[]),
            ("GPU-00,GPU-ff,GPU-11", &[0]),
            ("MIG-1234", &[]),
            ("0,", &[0]),
            ("0,,1", &[0]),
            ("99999999999999999999", &[]),
        ] {
            assert_eq!(numbers(&four, Some(list)), expected, "{list:?}");
        }
        assert_eq!(numbers(&four, None), [0, 1, 2, 3]);
        assert!(numbers(&gpus(0), None).is_empty() && numbers(&gpus(0), Some("0")).is_empty());
        // A single GPU matches every prefix.
        assert_eq!(numbers(&gpus(1), Some("GPU-")), [0]);
    }

    #[test]
    fn a_list_names_a_device_or_hides_all() {
        for asking in ["0", "1,0", " 3 ,-1", "+2", "GPU-00aa", "MIG-1c,0"] {
            assert!(Visible::names_a_device(asking), "{asking:?}");
        }
        for hiding in ["", " ", "-1", "-1,0", ",0", "none", "NoDevFiles", "gpu-0"] {
            assert!(!Visible::names_a_device(hiding), "{hiding:?}");
        }
    }

    #[test]
    fn a_process_sees_one_mig_instance_and_no_gpu_beside_it() {
        let machine = divided();
        for (list, count, instances) in [
            (None, 1, 2),
            (Some("0"), 1, 0),
            (Some("1"), 1, 2),
            (Some("2"), 0, 0),
            (Some("2,0"), 1, 0),
            (Some("MIG-1c"), 1, 1),
            (Some("MIG-1c-77,MIG-0c"), 1, 2),
            (Some("MIG-"), 0, 0),
            (Some("MIG-0c,MIG-0c-77"), 0, 0),
        ] {
            let visible = Visible::new(&machine, list);
            assert_eq!(visible.count(&machine), count, "{list:?}");
            assert_eq!(visible.instances(&machine).count(), instances, "{list:?}");
        }
        let one = Visible::new(&machine, Some("MIG-1c"));
        let shown = machine.instances(1).map(|device| one.contains(device));
        assert_eq!(shown.collect::<Vec<_>>(), [false, true]);
        assert!(!one.contains(DeviceIndex::whole(1)));
        let parent = Visible::new(&machine, Some("1"));
        assert!(machine.instances(1).all(|device| parent.contains(device)));
    }

    #[test]
    fn a_uuid_of_an_old_driver_may_be_a_prefix_of_another() {
        let mut machine = divided();
        let instances = machine.gpus[1].mig.iter_mut().flatten();
        for (instance, name) in instances.zip(["MIG-GPU-1/1/0", "MIG-GPU-1/1/00"]) {
            instance.uuid = Some(name.into());
        }
        let visible = Visible::new(&machine, Some("MIG-GPU-1/1/0"));
        assert_eq!(visible.instances(&machine).count(), 1);
    }

    fn order() -> impl Strategy<Value = Vec<usize>> {
        Just((0..6).collect::<Vec<usize>>())
            .prop_shuffle()
            .prop_flat_map(|all| (0..=all.len()).prop_map(move |length| all[..length].to_vec()))
    }

    fn joined(numbers: &[usize]) -> String {
        numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
    }

    proptest! {
        #[test]
        fn any_text_shows_each_device_once_at_most(
            text in prop_oneof![".*", "[-+0-9, GPUMIac]{0,20}", "((GPU|MIG)-[0-3a]{0,3},?){0,4}"]
        ) {
            for inventory in [gpus(4), divided()] {
                let visible = Visible::new(&inventory, Some(&text));
                prop_assert!(!has_twice(visible.devices()), "{visible:?}");
                prop_assert!(visible.devices().iter().all(|device| device.gpu < inventory.gpus.len()));
                prop_assert!(visible.count(&inventory) <= visible.devices().len());
            }
        }

        #[test]
        fn indexes_show_their_devices_in_order(order in order()) {
            prop_assert_eq!(numbers(&gpus(6), Some(&joined(&order))), order);
        }

        #[test]
        fn a_list_ends_at_the_first_unknown_entry(
            order in order(),
            at in any::<prop::sample::Index>(),
            stop in prop_oneof![Just("-1"), Just(""), Just("77"), Just("x"), Just("GPU-00")]
        ) {
            let at = at.index(order.len() + 1);
            let mut entries: Vec<_> = order.iter().map(usize::to_string).collect();
            entries.insert(at, stop.to_owned());
            // A list that begins with a UUID is a list of UUIDs.
            prop_assume!(at > 0 || !stop.starts_with("GPU-"));
            prop_assert_eq!(numbers(&gpus(6), Some(&entries.join(","))), &order[..at]);
        }

        #[test]
        fn a_list_that_repeats_a_device_shows_none(order in order(), pick in any::<prop::sample::Index>()) {
            prop_assume!(!order.is_empty());
            let again = order[pick.index(order.len())];
            let list = format!("{},{again}", joined(&order));
            prop_assert!(numbers(&gpus(6), Some(&list)).is_empty());
        }

        #[test]
        fn uuids_and_indexes_are_equivalent(order in order(), letters in 6usize..=13) {
            let inventory = gpus(6);
            let uuids = order.iter().filter_map(|gpu| inventory.uuid(DeviceIndex::whole(*gpu)));
            let uuids: Vec<_> = uuids.map(|uuid| &uuid[..letters]).collect();
            prop_assert_eq!(numbers(&inventory, Some(&uuids.join(","))), order);
        }
    }
}
