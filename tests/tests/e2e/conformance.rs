//! Every backend passes the same suite with every number of ranks, as processes.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use dtrain_test_kit::thorough;
use dtrain_tests::process::output_text;
use dtrain_tests::ranks::run_on_nodes;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs a scenario on nodes with this many ranks each, and returns the ranks' output.
fn conformance(backend: &str, scenario: &str, nodes: &[usize]) -> Vec<Output> {
    let program = Path::new(env!("CARGO_BIN_EXE_conformance-rank"));
    run_on_nodes(program, &[backend, scenario], &[], nodes, LIMIT)
}

/// Checks that ranks have ended well, and printed these words.
#[track_caller]
fn expect_success(outputs: &[Output], what: &str, words: &str) {
    for (rank, output) in outputs.iter().enumerate() {
        let text = output_text(output);
        assert!(output.status.success() && text.contains(words), "{what}, rank {rank}: {text}");
    }
}

fn suite(backend: &str, ranks: usize) {
    expect_success(&conformance(backend, "suite", &[ranks]), backend, "ok shutdown");
}

#[test]
fn single_process() {
    suite("single", 1);
}

#[test]
fn gloo() {
    // The nodes of one rank below are two ranks.
    for &ranks in thorough::cases(&[3, 1, 2], 1) {
        suite("gloo", ranks);
    }
}

#[test]
fn shared_memory() {
    for &ranks in thorough::cases(&[3, 1, 4, 2], 1) {
        suite("shared", ranks);
    }
}

fn succeed_on_nodes(backend: &str, scenario: &str, nodes: &[usize]) {
    let outputs = conformance(backend, scenario, nodes);
    let what = format!("{scenario} on {nodes:?}");
    expect_success(&outputs, &what, "");
    // The last rank may leave silently.
    let silent = usize::from(scenario != "suite");
    expect_success(&outputs[..outputs.len() - silent], &what, "ok ");
}

#[test]
fn nodes_of_one_rank_use_gloo() {
    for &backend in thorough::cases(&["auto", "gloo"], 1) {
        succeed_on_nodes(backend, "suite", &[1, 1]);
    }
    for (rank, output) in conformance("nodes", "suite", &[1, 1]).iter().enumerate() {
        let text = output_text(output);
        assert!(text.contains("every node has one rank"), "rank {rank}: {text}");
    }
}

#[test]
fn nodes_share_memory() {
    // The faults below and memory_nodes.rs have nodes with different numbers of ranks.
    for &nodes in thorough::cases(&[&[2, 2][..], &[1, 3, 1], &[2, 1]], 1) {
        succeed_on_nodes("nodes", "suite", nodes);
    }
}

#[test]
fn faults_on_several_nodes_are_detected() {
    // Whether the last rank is alone on its node.
    let (alone, together) = (&[2, 1][..], &[2, 2][..]);
    let cases = [
        ("shared-peer-leaves-amid", together),
        ("shared-peer-dies", together),
        ("shared-peer-dies-amid", alone),
        ("shared-time-out", alone),
        ("no-memory", alone),
        ("fallback", alone),
        // One node has the same disagreement, and nodes reduce other tensors by Gloo.
        ("disagreement", alone),
        ("peer-dies", alone),
        ("shared-peer-leaves-amid", alone),
        ("shared-peer-dies", alone),
        ("shared-peer-dies-amid", together),
        ("shared-time-out", together),
        ("no-memory", together),
        ("fallback", together),
        ("disagreement", together),
        ("peer-dies", together),
    ];
    for &(scenario, nodes) in thorough::cases(&cases, 6) {
        let backend = if matches!(scenario, "disagreement" | "fallback") { "auto" } else { "nodes" };
        if !scenario.contains("dies") {
            succeed_on_nodes(backend, scenario, nodes);
            continue;
        }
        last_dies(backend, scenario, nodes);
    }
}

/// Checks that every rank ends well.
fn all_succeed(backend: &str, scenario: &str, ranks: usize) {
    expect_success(&conformance(backend, scenario, &[ranks]), scenario, "ok ");
}

/// Checks that the others notice the death of the last rank.
fn last_dies(backend: &str, scenario: &str, nodes: &[usize]) {
    let mut outputs = conformance(backend, scenario, nodes);
    assert!(!outputs.pop().unwrap().status.success(), "the last rank was to die");
    expect_success(&outputs, &format!("{scenario} on {nodes:?}"), "");
}

#[test]
fn a_dead_peer_is_detected() {
    let cases = [
        ("shared", "shared-peer-dies", 3),
        ("gloo", "peer-dies", 2),
        ("shared", "peer-dies", 2),
        ("shared", "shared-peer-dies", 2),
        ("gloo", "peer-dies", 3),
        ("shared", "peer-dies", 3),
    ];
    for &(backend, scenario, ranks) in thorough::cases(&cases, 3) {
        last_dies(backend, scenario, &[ranks]);
    }
}

#[test]
fn a_peer_death_during_operations_is_detected() {
    for &ranks in thorough::cases(&[3, 2, 4], 1) {
        last_dies("shared", "shared-peer-dies-amid", &[ranks]);
    }
}

#[test]
fn a_peer_exit_during_operations_is_detected() {
    for &ranks in thorough::cases(&[2, 3], 1) {
        expect_success(&conformance("shared", "shared-peer-leaves-amid", &[ranks]), "leaves", "");
    }
}

#[test]
fn an_operation_times_out() {
    let cases = [
        ("gloo", "time-out", 2),
        ("shared", "shared-time-out", 3),
        ("shared", "shared-time-out", 2),
        ("gloo", "time-out", 3),
        ("shared", "time-out", 2),
        ("shared", "time-out", 3),
    ];
    for &(backend, scenario, ranks) in thorough::cases(&cases, 2) {
        let what = format!("{backend} {scenario}");
        expect_success(&conformance(backend, scenario, &[ranks]), &what, "");
    }
}

#[test]
fn no_rank_gets_memory_that_one_rank_cannot_map() {
    // By default, the ranks of one machine share memory.
    for &(backend, ranks) in thorough::cases(&[("auto", 3), ("shared", 3), ("shared", 2)], 1) {
        all_succeed(backend, "no-memory", ranks);
    }
}

#[test]
fn all_ranks_or_none_share_memory() {
    let cases = [
        ("gloo", "no-descriptors", 3),
        ("auto", "fallback", 2),
        ("shared", "fallback", 2),
        ("auto", "fallback", 3),
        ("shared", "fallback", 3),
        ("gloo", "no-descriptors", 2),
    ];
    for &(backend, scenario, ranks) in thorough::cases(&cases, 3) {
        all_succeed(backend, scenario, ranks);
    }
}

#[test]
fn different_transports_are_an_error() {
    for &ranks in thorough::cases(&[3, 2], 1) {
        all_succeed("auto", "disagreement", ranks);
    }
}

/// By default, the ranks of one machine share memory.
#[test]
fn the_benchmark_runs_and_shared_memory_is_the_default() {
    if thorough::leaves_out("the default: no_rank_gets_memory_that_one_rank_cannot_map") {
        return;
    }
    let words = "shared memory allocated: 45 MB of Float all_reduce median";
    expect_success(&conformance("auto", "bench", &[2]), "bench", words);
}
