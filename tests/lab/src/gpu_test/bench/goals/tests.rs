#![allow(clippy::unwrap_used)]

use super::super::network::Network;
use super::*;
use crate::bench::Steps;
use crate::report::Verdict;

fn case(is_small: bool) -> Case {
    Case {
        network: Network::Resnet50,
        batch: 10,
        steps: Steps { skipped: 1, counted: 2 },
        is_small,
        has_goals: true,
    }
}

/// Builds rounds from the rates and peaks of each mode.
fn rounds(of: &[(Mode, &[(f64, f64)])]) -> Rounds {
    let measured = |&(rate, peak): &(f64, f64)| Measured {
        rate,
        peak_allocated: peak,
        peak_reserved: 2.0 * peak,
        parameters: 25.0,
        wait_data_ms: Some(0.5),
        gpu: Some("NVIDIA H200".to_owned()),
    };
    Rounds {
        measured: of.iter().map(|(mode, all)| (*mode, all.iter().map(measured).collect())).collect(),
        ..Rounds::default()
    }
}

/// Returns three rounds; the second is half as fast.
fn all() -> Rounds {
    rounds(&[
        (Mode::Ddp, &[(100.0, 8.0), (50.0, 8.0), (100.0, 8.0)]),
        (Mode::Eager, &[(105.0, 5.0), (50.0, 5.0), (110.0, 5.0)]),
        (Mode::Dtrain, &[(110.0, 6.0), (55.0, 6.0), (112.0, 6.0)]),
        (Mode::Graph, &[(150.0, 12.0), (75.0, 12.0), (150.0, 12.0)]),
        (Mode::Compile, &[(120.0, 5.0), (60.0, 5.0), (120.0, 5.0)]),
        (Mode::CompileGraphs, &[(150.0, 9.0), (75.0, 9.0), (150.0, 9.0)]),
    ])
}

#[test]
fn a_case_that_meets_its_goals_passes_with_all_figures() {
    let finding = finding(&case(true), &all());
    assert_eq!(finding.verdict, Verdict::Passed, "{}", finding.note);
    let figure = |name: &str| finding.figures[name];
    for (name, expected) in [
        ("dtrain_to_ddp", 1.1),
        ("dtrain_to_eager", 110.0 / 105.0),
        ("dtrain_graph_to_ddp", 1.5),
        ("best_to_compile", 1.25),
        ("best_to_compile_graphs", 1.0),
        ("peak_dtrain_to_ddp", 0.75),
        ("peak_dtrain_to_eager", 1.2),
        ("peak_dtrain_graph_to_ddp", 1.5),
        ("ddp_images_per_s", 100.0),
        ("dtrain_images_per_s", 110.0),
        ("dtrain_wait_data_ms", 0.5),
        ("compile_peak_allocated_bytes", 5.0),
        ("compile_peak_reserved_bytes", 10.0),
        // 100 images of 24.534 GFLOP, as a share of the GPU's 989 TFLOP.
        ("ddp_mfu", 24.534 * 100.0 / 989_000.0),
    ] {
        assert!((figure(name) - expected).abs() < 1e-12, "{name}: {}", figure(name));
    }
    assert!(!finding.figures.contains_key("ddp_wait_data_ms"));
    assert!(
        finding.note.starts_with(
            "images/s: DDP 100, eager PyTorch 105, dtrain 110, dtrain with graphs 150, torch.compile 120, torch.compile with graphs 150; \
             dtrain has 1.100 x DDP's speed (goal: at least 1.05); dtrain has 0.750 x DDP's peak memory (goal: at most 1)"
        ),
        "{}",
        finding.note
    );
}

#[test]
fn a_missed_goal_fails() {
    let outcome = |is_small, change: fn(&mut Rounds)| {
        let mut rounds = all();
        change(&mut rounds);
        let finding = finding(&case(is_small), &rounds);
        (finding.verdict, finding.note.contains(", missed"))
    };
    let slow: fn(&mut Rounds) = |rounds| scale(rounds, Mode::Dtrain, 0.95, 1.0);
    let large: fn(&mut Rounds) = |rounds| scale(rounds, Mode::Dtrain, 1.0, 1.4);
    let no_match: fn(&mut Rounds) = |rounds| scale(rounds, Mode::CompileGraphs, 1.06, 1.0);
    assert_eq!(outcome(true, slow), (Verdict::Failed, true));
    assert_eq!(outcome(true, large), (Verdict::Failed, true));
    assert_eq!(outcome(true, no_match), (Verdict::Failed, true));
    // Only small batches have a goal for graphs.
    assert_eq!(outcome(false, no_match), (Verdict::Passed, false));
}

fn scale(rounds: &mut Rounds, mode: Mode, rate: f64, peak: f64) {
    for measured in rounds.measured.get_mut(&mode).unwrap() {
        measured.rate *= rate;
        measured.peak_allocated *= peak;
    }
}

#[test]
fn dtrain_without_graphs_counts_if_graphs_are_slower() {
    let mut rounds = all();
    scale(&mut rounds, Mode::Graph, 0.5, 1.0);
    let finding = finding(&case(true), &rounds);
    assert!((finding.figures["best_to_compile_graphs"] - 110.0 / 150.0).abs() < 1e-12);
    assert_eq!(finding.verdict, Verdict::Failed);
}

#[test]
fn a_mode_that_failed_is_named() {
    let without = |mode: Mode| {
        let mut rounds = all();
        rounds.measured.remove(&mode);
        rounds.failed.insert(mode, "no compiler".to_owned());
        finding(&case(true), &rounds)
    };
    // A failed way of dtrain fails the case; a failed way of PyTorch leaves the goal open.
    assert_eq!(without(Mode::Graph).verdict, Verdict::Failed);
    assert_eq!(without(Mode::Dtrain).verdict, Verdict::Failed);
    assert_eq!(without(Mode::Compile).verdict, Verdict::Passed);
    let open = without(Mode::CompileGraphs);
    assert_eq!(open.verdict, Verdict::Skipped);
    assert!(open.note.ends_with("torch.compile with graphs did not run: no compiler"), "{}", open.note);
    assert_eq!(without(Mode::Ddp).verdict, Verdict::Skipped);
    let nothing = finding(&case(true), &Rounds::default());
    assert_eq!(nothing.verdict, Verdict::Skipped);
    assert!(nothing.note.starts_with("no measurements"));
}

#[test]
fn different_networks_fail() {
    let mut rounds = all();
    rounds.measured.get_mut(&Mode::Graph).unwrap()[1].parameters = 26.0;
    let finding = finding(&case(true), &rounds);
    assert_eq!(finding.verdict, Verdict::Failed);
    assert!(
        finding.note.contains("the networks differ: DDP has 25 parameters and dtrain with graphs has 26"),
        "{}",
        finding.note
    );
}

#[test]
fn a_long_wait_for_the_loader_is_noted() {
    let mut rounds = all();
    // A step of 10 images takes 91 ms.
    assert_eq!(rounds.loader_wait(&case(true)), None);
    for measured in rounds.measured.get_mut(&Mode::Dtrain).unwrap() {
        measured.wait_data_ms = Some(5.0);
    }
    let note = rounds.loader_wait(&case(true)).unwrap();
    assert!(note.contains("waits 5.00 of 90.91 ms per step for its loader"), "{note}");
}

#[test]
fn an_unknown_gpu_has_no_mfu() {
    let mut rounds = all();
    for measured in rounds.measured.values_mut().flatten() {
        measured.gpu = Some("Tesla T4".to_owned());
    }
    let finding = finding(&case(true), &rounds);
    assert!(finding.figures.keys().all(|name| !name.contains("mfu")));
}

#[test]
fn ratios_are_taken_within_rounds() {
    assert_eq!(ratio(&[12.0, 6.0, 12.6], &[10.0, 5.0, 10.0]), Some(1.2));
    assert_eq!(ratio(&[1.0, 2.0], &[1.0]), Some(1.0), "of the rounds that both have");
    assert_eq!(ratio(&[1.0], &[0.0]), None);
    assert_eq!(ratio(&[], &[]), None);
    assert_eq!(best(vec![1.0, 4.0], vec![2.0, 3.0]), [2.0, 4.0]);
    assert_eq!(best(vec![1.0], Vec::new()), [1.0]);
    assert_eq!(best(Vec::new(), vec![2.0]), [2.0]);
}
