//! The machine's topology, from files of Linux.

use anyhow::{Context, bail};
use dtrain_common::env::CUDA_VISIBLE_DEVICES;
use dtrain_common::gpu::{GpuInfo, Inventory, Visible};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// CPU cores by the system's numbers.
pub(super) type Cores = BTreeSet<usize>;

/// Places of cores and GPUs. Groups have the number of their lowest core, allowed or not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Topology {
    pub(super) nodes: BTreeMap<usize, Cores>,
    /// Each core's socket, if known.
    pub(super) sockets: BTreeMap<usize, usize>,
    /// Each core's physical core.
    pub(super) siblings: BTreeMap<usize, usize>,
    /// Each core's last-level cache, if known.
    pub(super) caches: BTreeMap<usize, usize>,
    /// The NUMA node of each visible GPU, in the order of local ranks.
    pub(super) gpus: Vec<usize>,
}

impl Topology {
    /// Reads this machine's topology for this process. `visible` is CUDA_VISIBLE_DEVICES.
    pub(super) fn of_this_machine(visible: Option<&str>) -> anyhow::Result<Self> {
        let set = sched_getaffinity(None).context("cannot read the allowed CPU cores")?;
        let allowed = (0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).collect();
        Self::read(Path::new("/"), &allowed, visible)
    }

    /// Reads the files below `root`, which is `/` except in tests.
    fn read(root: &Path, allowed: &Cores, visible: Option<&str>) -> anyhow::Result<Self> {
        let mut nodes = BTreeMap::new();
        for (node, folder) in numbered(&root.join("sys/devices/system/node"), "node") {
            let cores = list(&folder.join("cpulist"))?;
            nodes.insert(node, &cores & allowed);
        }
        if nodes.is_empty() {
            // The kernel has no NUMA support.
            nodes.insert(0, allowed.clone());
        }
        let mut topology = Self { nodes, ..Self::default() };
        for core in allowed {
            let folder = root.join(format!("sys/devices/system/cpu/cpu{core}"));
            if let Some(socket) = number(&folder.join("topology/physical_package_id")) {
                topology.sockets.insert(*core, socket);
            }
            let siblings = list(&folder.join("topology/thread_siblings_list")).unwrap_or_default();
            let physical = siblings.first().copied().unwrap_or(*core);
            topology.siblings.insert(*core, physical);
            if let Some(cache) = last_level_cache(&folder.join("cache")) {
                topology.caches.insert(*core, cache);
            }
        }
        let usual = topology.nodes.keys().next().copied().unwrap_or_default();
        topology.gpus = nodes_of_gpus(root, visible, usual)?;
        Ok(topology)
    }
}

/// Returns the nodes of the visible GPUs in CUDA's order; `usual` for a GPU without a node.
fn nodes_of_gpus(root: &Path, visible: Option<&str>, usual: usize) -> anyhow::Result<Vec<usize>> {
    let folder = root.join("proc/driver/nvidia/gpus");
    let Ok(entries) = fs::read_dir(&folder) else {
        return Ok(Vec::new());
    };
    let addresses = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let addresses = addresses.collect::<Result<BTreeSet<_>, _>>();
    let addresses = addresses.with_context(|| format!("cannot list {}", folder.display()))?;
    let mut entries = visible.unwrap_or_default().split(',').map(str::trim);
    if let Some(entry) = entries.find(|entry| entry.starts_with("MIG-"))
        && !addresses.is_empty()
    {
        bail!(
            "the NUMA node of {entry} in {CUDA_VISIBLE_DEVICES} is unknown; name whole GPUs, or leave out \
             --numa-binding"
        );
    }
    let known = |(index, address): (u32, &OsString)| {
        let information = fs::read_to_string(folder.join(address).join("information")).unwrap_or_default();
        let uuid = information.lines().find_map(|line| line.strip_prefix("GPU UUID:"));
        let uuid = uuid.map(|uuid| uuid.trim().to_owned());
        GpuInfo { index, name: String::new(), uuid, total_bytes: 0, free_bytes: 0, mig: None }
    };
    let inventory = Inventory { gpus: (0..).zip(&addresses).map(known).collect() };
    // A machine with one node often reports -1, and so may a virtual machine with several.
    let node = |address| number(&root.join("sys/bus/pci/devices").join(address).join("numa_node"));
    let nodes: Vec<_> = addresses.iter().map(|address| node(address).unwrap_or(usual)).collect();
    let shown = Visible::new(&inventory, visible);
    Ok(shown.devices().iter().map(|place| nodes[place.gpu()]).collect())
}

/// Returns the lowest core that shares this core's largest cache.
fn last_level_cache(folder: &Path) -> Option<usize> {
    let is_of_data = |cache: &PathBuf| {
        let kind = fs::read_to_string(cache.join("type")).unwrap_or_default();
        matches!(kind.trim(), "Unified" | "Data")
    };
    let levels = numbered(folder, "index").into_iter().map(|(_, cache)| cache).filter(is_of_data);
    let levels = levels.filter_map(|cache| Some((number(&cache.join("level"))?, cache)));
    let (_, last) = levels.max_by_key(|(level, _)| *level)?;
    list(&last.join("shared_cpu_list")).ok()?.first().copied()
}

/// Returns the entries named `prefix` and a number. Without the folder the list is empty.
fn numbered(folder: &Path, prefix: &str) -> Vec<(usize, PathBuf)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = entries
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            Some((name.strip_prefix(prefix)?.parse().ok()?, entry.path()))
        })
        .collect();
    found.sort();
    found
}

/// Returns the number in a file; `None` if it is negative or missing.
fn number(path: &Path) -> Option<usize> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Returns the list of cores in a file.
fn list(path: &Path) -> anyhow::Result<Cores> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    parse(&text).with_context(|| format!("{} is not a list of cores: {text:?}", path.display()))
}

/// Parses the kernel's form of a list, such as `0-2,8`.
pub(super) fn parse(text: &str) -> Option<Cores> {
    let mut cores = Cores::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No kernel has more cores, and a damaged file must not fill the memory.
        if first > last || last >= 1 << 16 {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

/// Formats cores in the same form for the user.
pub(super) fn in_words(cores: &Cores) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for core in cores {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == *core => *last = *core,
            _ => ranges.push((*core, *core)),
        }
    }
    let word = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(word).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use proptest::prelude::*;

    fn cores(list: &str) -> Cores {
        parse(list).unwrap()
    }

    fn write(root: &Path, path: &str, content: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes two nodes, each a socket with two physical cores of two threads, a cache and a GPU.
    fn machine(root: &Path) {
        for (node, list) in [(0, "0-1,4-5\n"), (1, "2-3,6-7\n")] {
            write(root, &format!("sys/devices/system/node/node{node}/cpulist"), list);
        }
        write(root, "sys/devices/system/node/online", "0-1\n");
        for core in 0..8 {
            let at = format!("sys/devices/system/cpu/cpu{core}");
            let (physical, socket) = (core % 4, core % 4 / 2);
            write(root, &format!("{at}/topology/physical_package_id"), &format!("{socket}\n"));
            let pair = format!("{physical},{}\n", physical + 4);
            write(root, &format!("{at}/topology/thread_siblings_list"), &pair);
            let shared = if socket == 0 { "0-1,4-5\n" } else { "2-3,6-7\n" };
            let caches =
                [("1", "Data", pair.as_str()), ("4", "Instruction", "0-7"), ("3", "Unified", shared)];
            for (index, (level, kind, list)) in caches.into_iter().enumerate() {
                write(root, &format!("{at}/cache/index{index}/level"), level);
                write(root, &format!("{at}/cache/index{index}/type"), kind);
                write(root, &format!("{at}/cache/index{index}/shared_cpu_list"), list);
            }
        }
        for (address, uuid, node) in [("0000:81:00.0", "GPU-b1", "1\n"), ("0000:01:00.0", "GPU-a0", "0\n")] {
            let text = format!("Model: \t\t NVIDIA T4\nIRQ: 1\nGPU UUID: \t {uuid}\n");
            write(root, &format!("proc/driver/nvidia/gpus/{address}/information"), &text);
            write(root, &format!("sys/bus/pci/devices/{address}/numa_node"), node);
        }
    }

    #[test]
    fn a_machine_is_read() {
        let root = tempfile::tempdir().unwrap();
        machine(root.path());
        let topology = Topology::read(root.path(), &cores("0-6"), None).unwrap();
        assert_eq!(topology.nodes, BTreeMap::from([(0, cores("0-1,4-5")), (1, cores("2-3,6"))]));
        assert_eq!(topology.sockets[&6], 1);
        assert_eq!(topology.siblings[&5], 1);
        assert_eq!((topology.caches[&5], topology.caches[&6]), (0, 2));
        assert_eq!(topology.gpus, [0, 1], "by PCI address");
    }

    #[test]
    fn visible_gpus_are_in_cudas_order() {
        let root = tempfile::tempdir().unwrap();
        machine(root.path());
        let gpus =
            |visible| Topology::read(root.path(), &cores("0-7"), Some(visible)).map(|topology| topology.gpus);
        assert_eq!(gpus("1,0").unwrap(), [1, 0]);
        assert_eq!(gpus(" GPU-b").unwrap(), [1]);
        assert_eq!(gpus("1,-1,0").unwrap(), [1]);
        assert_eq!(gpus("").unwrap(), [0; 0]);
        assert_eq!(gpus("7").unwrap(), [0; 0]);
        assert!(gpus("MIG-1").unwrap_err().to_string().contains("MIG-1"));
    }

    #[test]
    fn a_machine_that_tells_nothing_is_one_node() {
        let root = tempfile::tempdir().unwrap();
        let topology = Topology::read(root.path(), &cores("0-3"), Some("0")).unwrap();
        assert_eq!(topology.nodes, BTreeMap::from([(0, cores("0-3"))]));
        assert!(topology.sockets.is_empty() && topology.caches.is_empty() && topology.gpus.is_empty());
        assert_eq!(topology.siblings[&3], 3);
        write(root.path(), "sys/devices/system/node/node0/cpulist", "0-x\n");
        let error = Topology::read(root.path(), &cores("0"), None).unwrap_err().to_string();
        assert!(error.contains("cpulist is not a list of cores"), "{error}");
    }

    #[test]
    fn a_gpu_without_a_node_lies_on_the_first() {
        let root = tempfile::tempdir().unwrap();
        machine(root.path());
        write(root.path(), "sys/bus/pci/devices/0000:81:00.0/numa_node", "-1\n");
        let topology = Topology::read(root.path(), &cores("0-7"), None).unwrap();
        assert_eq!(topology.gpus, [0, 0]);
    }

    #[test]
    fn this_machine_can_be_read() {
        let topology = Topology::of_this_machine(None).unwrap();
        assert!(topology.nodes.values().any(|cores| !cores.is_empty()));
    }

    #[test]
    fn lists_that_are_none_are_refused() {
        for text in ["x", "1-", "-1", "3-1", "0-99999999", "1;2"] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert_eq!(parse(""), Some(Cores::new()));
    }

    proptest! {
        #[test]
        fn lists_read_back(cores in prop::collection::btree_set(0usize..300, 0..40)) {
            prop_assert_eq!(parse(&in_words(&cores)), Some(cores));
        }

        #[test]
        fn no_list_panics(text in "[0-9,x -]{0,20}") {
            let _ = parse(&text);
        }
    }
}
