//! Selects the CPU cores of each worker near its GPU, by the machine's topology.

mod topology;

use crate::cli::Binding;
use anyhow::{Context, ensure};
use dtrain_common::batch;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use topology::{Cores, Topology};

/// The cores of each worker; empty without binding.
#[derive(Debug, Default)]
pub(crate) struct CoreBinding {
    mode: Option<Binding>,
    cores: Vec<Cores>,
}

impl CoreBinding {
    /// Returns the cores of the worker of `rank`.
    pub(super) fn of(&self, rank: usize) -> Option<CpuSet> {
        let mut set = CpuSet::new();
        for core in self.cores.get(rank)? {
            set.set(*core);
        }
        Some(set)
    }

    /// Limits threads to the cores of the smallest share.
    pub(crate) fn at_most(&self, threads: usize) -> usize {
        let smallest = self.cores.iter().map(Cores::len).min();
        smallest.map_or(threads, |cores| threads.min(cores))
    }

    /// Describes the binding.
    pub(super) fn note(&self) -> Option<String> {
        let mode = self.mode?.name();
        let shares = self.cores.iter().enumerate();
        let shares: Vec<_> =
            shares.map(|(rank, cores)| format!("rank {rank}: {}", topology::in_words(cores))).collect();
        Some(format!("--numa-binding {mode}: CPU cores: {}", shares.join("; ")))
    }
}

/// Binds the workers by `mode`; without it, no worker is bound. `visible` is CUDA_VISIBLE_DEVICES.
pub(super) fn bind(
    mode: Option<Binding>,
    workers: usize,
    visible: Option<&str>,
) -> anyhow::Result<CoreBinding> {
    let Some(mode) = mode else {
        return Ok(CoreBinding::default());
    };
    let cores =
        Topology::of_this_machine(visible)
            .and_then(|topology| share_out(&topology, mode, workers))
            .with_context(|| format!("cannot bind workers to CPU cores (--numa-binding {})", mode.name()))?;
    Ok(CoreBinding { mode: Some(mode), cores })
}

/// Returns the cores of each worker.
fn share_out(topology: &Topology, mode: Binding, workers: usize) -> anyhow::Result<Vec<Cores>> {
    let nodes: Vec<usize> = (0..workers).map(|rank| node_of(topology, rank, workers)).collect();
    let share = |rank: usize| {
        let node = nodes[rank];
        let cores = topology.nodes.get(&node).filter(|cores| !cores.is_empty());
        let cores = cores.with_context(|| {
            format!(
                "this process may not use any CPU core of NUMA node {node}, which has the GPU of rank {rank}; allow \
                 them in the batch system's or the container's settings"
            )
        })?;
        // The worker's index among the workers of its node, and their number.
        let place = nodes[..rank].iter().filter(|other| **other == node).count();
        let neighbours = nodes.iter().filter(|other| **other == node).count();
        match mode {
            Binding::Node => Ok(cores.clone()),
            Binding::Socket => socket(topology, cores),
            Binding::Exclusive => exclusive(topology, node, cores, place, neighbours),
            Binding::CoreComplex => complex(topology, cores, place),
        }
    };
    (0..workers).map(share).collect()
}

/// Returns the NUMA node of the worker's GPU. Without GPUs, blocks of neighbouring ranks share a node.
fn node_of(topology: &Topology, rank: usize, workers: usize) -> usize {
    if !topology.gpus.is_empty() {
        return topology.gpus[rank % topology.gpus.len()];
    }
    let usable = topology.nodes.iter().filter(|(_, cores)| !cores.is_empty());
    let usable: Vec<usize> = usable.map(|(node, _)| *node).collect();
    usable.get(rank * usable.len() / workers).copied().unwrap_or_default()
}

/// Returns all cores of the sockets of `cores`.
fn socket(topology: &Topology, cores: &Cores) -> anyhow::Result<Cores> {
    let sockets = grouped(cores, &topology.sockets, "the socket")?;
    let is_on_them = |core: &usize| topology.sockets.get(core).is_some_and(|own| sockets.contains_key(own));
    let all = topology.nodes.values().flatten().copied();
    Ok(all.filter(is_on_them).collect())
}

/// Returns an exclusive share of whole physical cores. The first shares get the remainder.
fn exclusive(
    topology: &Topology,
    node: usize,
    cores: &Cores,
    place: usize,
    neighbours: usize,
) -> anyhow::Result<Cores> {
    let physical = grouped(cores, &topology.siblings, "the threads")?;
    ensure!(
        physical.len() >= neighbours,
        "NUMA node {node} has {} physical cores for {neighbours} workers; start fewer, or use another mode than exclusive",
        physical.len()
    );
    let own = batch::share(physical.len(), neighbours, place);
    Ok(physical.into_values().skip(own.start).take(own.len()).flatten().collect())
}

/// Returns cores that share a last-level cache; larger groups first, in turn if there are more workers.
fn complex(topology: &Topology, cores: &Cores, place: usize) -> anyhow::Result<Cores> {
    let mut complexes: Vec<Cores> = grouped(cores, &topology.caches, "the caches")?.into_values().collect();
    // A stable sort keeps equal groups in the order of their lowest core.
    complexes.sort_by_key(|complex| std::cmp::Reverse(complex.len()));
    let chosen = place % complexes.len();
    Ok(complexes.swap_remove(chosen))
}

/// Groups the cores.
fn grouped(
    cores: &Cores,
    group_of: &BTreeMap<usize, usize>,
    what: &'static str,
) -> anyhow::Result<BTreeMap<usize, Cores>> {
    let mut groups: BTreeMap<usize, Cores> = BTreeMap::new();
    for core in cores {
        let group = group_of.get(core);
        let group = group
            .with_context(|| format!("the system does not report {what} of CPU core {core}; use `node`"))?;
        groups.entry(*group).or_default().insert(*core);
    }
    Ok(groups)
}

#[cfg(test)]
mod tests;
