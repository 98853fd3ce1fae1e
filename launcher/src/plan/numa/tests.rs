#![allow(clippy::unwrap_used)]

use super::topology::parse;
use super::*;
use proptest::prelude::*;

fn cores(list: &str) -> Cores {
    parse(list).unwrap()
}

/// Builds `nodes` NUMA nodes of `each` physical cores with two threads, two nodes per socket, `complexes`
/// caches per node. As on Linux, second threads are numbered after all first ones.
fn machine(nodes: usize, each: usize, complexes: usize, gpus: &[usize]) -> Topology {
    let mut topology = Topology { gpus: gpus.to_vec(), ..Topology::default() };
    let physical = nodes * each;
    for node in 0..nodes {
        for at in 0..each {
            let first = node * each + at;
            for core in [first, first + physical] {
                topology.nodes.entry(node).or_default().insert(core);
                topology.sockets.insert(core, node / 2);
                topology.siblings.insert(core, first);
                topology.caches.insert(core, node * each + at * complexes / each * each / complexes);
            }
        }
    }
    topology
}

#[track_caller]
fn expect(topology: &Topology, mode: Binding, expected: &[&str]) {
    let shares = share_out(topology, mode, expected.len()).unwrap();
    let shares: Vec<_> = shares.iter().map(topology::in_words).collect();
    assert_eq!(shares, expected);
}

#[test]
fn a_worker_computes_on_the_node_or_the_socket_of_its_gpu() {
    let machine = machine(4, 2, 1, &[3, 0]);
    expect(&machine, Binding::Node, &["6-7,14-15", "0-1,8-9"]);
    expect(&machine, Binding::Socket, &["4-7,12-15", "0-3,8-11"]);
    // A third worker shares the first worker's GPU.
    expect(&machine, Binding::Node, &["6-7,14-15", "0-1,8-9", "6-7,14-15"]);
}

#[test]
fn exclusive_shares_are_whole_cores_and_as_equal_as_can_be() {
    let machine = machine(2, 5, 1, &[1, 0, 1]);
    expect(&machine, Binding::Exclusive, &["5-7,15-17", "0-4,10-14", "8-9,18-19"]);
    let crowded = share_out(&machine, Binding::Exclusive, 60).unwrap_err().to_string();
    assert!(crowded.starts_with("NUMA node 1 has 5 physical cores for 40 workers;"), "{crowded}");
}

#[test]
fn core_complexes_are_taken_in_turn_and_the_larger_ones_first() {
    let mut machine = machine(1, 4, 2, &[0, 0, 0]);
    expect(&machine, Binding::CoreComplex, &["0-1,4-5", "2-3,6-7", "0-1,4-5"]);
    machine.nodes.insert(0, cores("1-7"));
    expect(&machine, Binding::CoreComplex, &["2-3,6-7", "1,4-5"]);
}

#[test]
fn without_gpus_workers_are_spread_over_the_nodes() {
    let mut machine = machine(2, 2, 1, &[]);
    expect(&machine, Binding::Node, &["0-1,4-5", "0-1,4-5", "2-3,6-7", "2-3,6-7"]);
    expect(&machine, Binding::Exclusive, &["0,4", "1,5", "2,6", "3,7"]);
    expect(&machine, Binding::Node, &["0-1,4-5"]);
    machine.nodes.insert(0, Cores::new());
    expect(&machine, Binding::Node, &["2-3,6-7", "2-3,6-7"]);
}

#[test]
fn a_machine_of_one_node_is_bound_to_all_of_it() {
    let machine = machine(1, 2, 1, &[]);
    for mode in [Binding::Node, Binding::Socket, Binding::CoreComplex] {
        expect(&machine, mode, &["0-3", "0-3"]);
    }
}

#[test]
fn unavailable_bindings_are_errors() {
    let mut machine = machine(2, 2, 1, &[0, 1]);
    machine.nodes.insert(1, Cores::new());
    let refused =
        |machine: &Topology, mode, workers| share_out(machine, mode, workers).unwrap_err().to_string();
    assert!(refused(&machine, Binding::Node, 2).contains("NUMA node 1, which has the GPU of rank 1"));
    machine.caches.clear();
    machine.sockets.clear();
    for (mode, what) in [(Binding::CoreComplex, "the caches"), (Binding::Socket, "the socket")] {
        assert!(refused(&machine, mode, 1).contains(&format!("does not report {what} of CPU core 0")));
    }
}

#[test]
fn the_binding_is_told_and_bounds_the_threads() {
    let core_binding =
        CoreBinding { mode: Some(Binding::Exclusive), cores: vec![cores("0-2"), cores("3,7")] };
    assert_eq!(core_binding.note().unwrap(), "--numa-binding exclusive: CPU cores: rank 0: 0-2; rank 1: 3,7");
    assert_eq!((core_binding.at_most(8), core_binding.at_most(1)), (2, 1));
    let set = core_binding.of(1).unwrap();
    assert!(set.is_set(3) && set.is_set(7) && set.count() == 2);
    let unbound = CoreBinding::default();
    assert_eq!((unbound.at_most(8), unbound.note()), (8, None));
    assert!(unbound.of(0).is_none());
}

proptest! {
    #[test]
    fn shares_have_cores_and_exclusive_ones_are_disjoint(
        nodes in 1usize..5,
        each in 1usize..9,
        gpus in prop::collection::vec(0usize..5, 0..9),
        workers in 1usize..12,
    ) {
        let gpus: Vec<_> = gpus.into_iter().map(|node| node % nodes).collect();
        let machine = machine(nodes, each, 1, &gpus);
        for mode in [Binding::Node, Binding::Socket, Binding::CoreComplex] {
            let shares = share_out(&machine, mode, workers).unwrap();
            prop_assert_eq!(shares.len(), workers);
            prop_assert!(shares.iter().all(|cores| !cores.is_empty()));
        }
        if let Ok(shares) = share_out(&machine, Binding::Exclusive, workers) {
            let all: Cores = shares.iter().flatten().copied().collect();
            prop_assert_eq!(all.len(), shares.iter().map(Cores::len).sum::<usize>());
            prop_assert!(shares.iter().all(|cores| !cores.is_empty()));
        }
    }
}
