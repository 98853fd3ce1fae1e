//! Every backend passes the same suite with every number of ranks, as processes.

use std::path::Path;
use std::time::Duration;

use dtrain_tests::process::output_text;
use dtrain_tests::ranks::{run, run_on_nodes};

const LIMIT: Duration = Duration::from_secs(120);

fn conformance(backend: &str, scenario: &str, ranks: usize) -> Vec<std::process::Output> {
    run(Path::new(env!("CARGO_BIN_EXE_conformance-rank")), &[backend, scenario], ranks, LIMIT)
}

fn suite(backend: &str, ranks: usize) {
    for (rank, output) in conformance(backend, "suite", ranks).iter().enumerate() {
        assert!(output.status.success(), "rank {rank} of {ranks}: {}", output_text(output));
        assert!(
            output_text(output).contains("ok shutdown"),
            "rank {rank} of {ranks}: {}",
            output_text(output)
        );
    }
}

#[test]
fn single_process() {
    suite("single", 1);
}

#[test]
fn gloo_with_one_rank() {
    suite("gloo", 1);
}

#[test]
fn gloo_with_two_ranks() {
    suite("gloo", 2);
}

#[test]
fn gloo_with_three_ranks() {
    suite("gloo", 3);
}

#[test]
fn shared_memory_with_one_rank() {
    suite("shared", 1);
}

#[test]
fn shared_memory_with_two_ranks() {
    suite("shared", 2);
}

#[test]
fn shared_memory_with_three_ranks() {
    suite("shared", 3);
}

#[test]
fn shared_memory_with_four_ranks() {
    suite("shared", 4);
}

/// Runs a scenario on nodes with this many ranks each, and returns the ranks' output.
fn on_nodes(backend: &str, scenario: &str, nodes: &[usize]) -> Vec<std::process::Output> {
    let program = Path::new(env!("CARGO_BIN_EXE_conformance-rank"));
    run_on_nodes(program, &[backend, scenario], &[], nodes, LIMIT)
}

fn succeed_on_nodes(backend: &str, scenario: &str, nodes: &[usize]) {
    for (rank, output) in on_nodes(backend, scenario, nodes).iter().enumerate() {
        let text = output_text(output);
        assert!(output.status.success(), "{scenario}, rank {rank} of {nodes:?}: {text}");
        // The last rank may leave silently.
        let is_silent = rank + 1 == nodes.iter().sum::<usize>() && !matches!(scenario, "suite");
        assert!(is_silent || text.contains("ok "), "{scenario}, rank {rank} of {nodes:?}: {text}");
    }
}

#[test]
fn nodes_of_one_rank_use_gloo() {
    for backend in ["gloo", "auto"] {
        succeed_on_nodes(backend, "suite", &[1, 1]);
    }
    for (rank, output) in on_nodes("nodes", "suite", &[1, 1]).iter().enumerate() {
        let text = output_text(output);
        assert!(text.contains("every node has one rank"), "rank {rank}: {text}");
    }
}

#[test]
fn two_nodes_with_two_ranks() {
    succeed_on_nodes("nodes", "suite", &[2, 2]);
}

#[test]
fn nodes_with_different_numbers_of_ranks() {
    succeed_on_nodes("nodes", "suite", &[2, 1]);
    succeed_on_nodes("nodes", "suite", &[1, 3, 1]);
}

#[test]
fn faults_on_several_nodes_are_detected() {
    for nodes in [&[2, 1][..], &[2, 2]] {
        succeed_on_nodes("nodes", "shared-peer-leaves-amid", nodes);
        succeed_on_nodes("nodes", "shared-time-out", nodes);
        succeed_on_nodes("nodes", "no-memory", nodes);
        succeed_on_nodes("auto", "disagreement", nodes);
        succeed_on_nodes("auto", "fallback", nodes);
        for scenario in ["peer-dies", "shared-peer-dies", "shared-peer-dies-amid"] {
            let mut outputs = on_nodes("nodes", scenario, nodes);
            assert!(!outputs.pop().unwrap().status.success(), "the last rank was to die");
            for (rank, output) in outputs.iter().enumerate() {
                let text = output_text(output);
                assert!(output.status.success(), "{scenario}, rank {rank} of {nodes:?}: {text}");
            }
        }
    }
}

/// Checks that every rank ends well.
fn all_succeed(backend: &str, scenario: &str, ranks: usize) {
    for (rank, output) in conformance(backend, scenario, ranks).iter().enumerate() {
        assert!(output.status.success(), "{scenario}, rank {rank} of {ranks}: {}", output_text(output));
        assert!(output_text(output).contains("ok "), "{scenario}, rank {rank} of {ranks} did nothing");
    }
}

/// Checks that the others notice the death of the last rank.
fn last_dies(backend: &str, scenario: &str, ranks: usize) {
    let outputs = conformance(backend, scenario, ranks);
    for (rank, output) in outputs.iter().enumerate().take(ranks - 1) {
        assert!(output.status.success(), "{scenario}, rank {rank} of {ranks}: {}", output_text(output));
    }
    assert!(!outputs[ranks - 1].status.success(), "the last rank was to die");
}

#[test]
fn a_dead_peer_is_detected() {
    for ranks in [2, 3] {
        last_dies("gloo", "peer-dies", ranks);
        last_dies("shared", "peer-dies", ranks);
        last_dies("shared", "shared-peer-dies", ranks);
    }
}

#[test]
fn a_peer_death_during_operations_is_detected() {
    for ranks in [2, 3, 4] {
        last_dies("shared", "shared-peer-dies-amid", ranks);
    }
}

#[test]
fn a_peer_exit_during_operations_is_detected() {
    for ranks in [2, 3] {
        for (rank, output) in conformance("shared", "shared-peer-leaves-amid", ranks).iter().enumerate() {
            assert!(output.status.success(), "rank {rank} of {ranks}: {}", output_text(output));
        }
    }
}

#[test]
fn an_operation_times_out() {
    for ranks in [2, 3] {
        for (backend, scenario) in
            [("gloo", "time-out"), ("shared", "time-out"), ("shared", "shared-time-out")]
        {
            for (rank, output) in conformance(backend, scenario, ranks).iter().enumerate() {
                assert!(
                    output.status.success(),
                    "{backend} {scenario}, rank {rank} of {ranks}: {}",
                    output_text(output)
                );
            }
        }
    }
}

#[test]
fn no_rank_gets_memory_that_one_rank_cannot_map() {
    for ranks in [2, 3] {
        all_succeed("shared", "no-memory", ranks);
    }
}

#[test]
fn all_ranks_or_none_share_memory() {
    for ranks in [2, 3] {
        all_succeed("gloo", "no-descriptors", ranks);
        all_succeed("auto", "fallback", ranks);
        all_succeed("shared", "fallback", ranks);
    }
}

#[test]
fn different_transports_are_an_error() {
    for ranks in [2, 3] {
        all_succeed("auto", "disagreement", ranks);
    }
}

/// By default, the ranks of one machine share memory.
#[test]
fn the_benchmark_runs_and_shared_memory_is_the_default() {
    for (rank, output) in conformance("auto", "bench", 2).iter().enumerate() {
        let text = output_text(output);
        assert!(output.status.success(), "rank {rank}: {text}");
        assert!(
            text.contains("shared memory allocated: 45 MB of Float all_reduce median"),
            "rank {rank}: {text}"
        );
    }
}
