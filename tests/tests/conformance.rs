//! Every backend passes the same suite at every number of ranks, as processes.

use std::path::Path;
use std::time::Duration;

use dtrain_tests::ranks::{run, said};

const LIMIT: Duration = Duration::from_secs(120);

fn conformance(backend: &str, scenario: &str, ranks: usize) -> Vec<std::process::Output> {
    run(
        Path::new(env!("CARGO_BIN_EXE_conformance-rank")),
        &[backend, scenario],
        ranks,
        LIMIT,
    )
}

fn suite(backend: &str, ranks: usize) {
    for (rank, output) in conformance(backend, "suite", ranks).iter().enumerate() {
        assert!(
            output.status.success(),
            "rank {rank} of {ranks}: {}",
            said(output)
        );
        assert!(
            said(output).contains("ok shutdown"),
            "rank {rank} of {ranks}: {}",
            said(output)
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
fn a_peer_that_dies_is_noticed() {
    for ranks in [2, 3] {
        let outputs = conformance("gloo", "peer-dies", ranks);
        for (rank, output) in outputs.iter().enumerate().take(ranks - 1) {
            assert!(
                output.status.success(),
                "rank {rank} of {ranks}: {}",
                said(output)
            );
        }
        assert!(!outputs[ranks - 1].status.success(), "the last rank was to die");
    }
}

#[test]
fn an_operation_times_out() {
    for ranks in [2, 3] {
        for (rank, output) in conformance("gloo", "time-out", ranks).iter().enumerate() {
            assert!(
                output.status.success(),
                "rank {rank} of {ranks}: {}",
                said(output)
            );
        }
    }
}
