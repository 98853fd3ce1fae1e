#![allow(clippy::unwrap_used)]
use serde_json::Value;

use super::super::case::{DTRAIN, Network, Way};
use super::super::launch::{By, Job};
use super::*;

fn machine() -> Machine {
    Machine {
        date: "2026-11-21T00:00:00Z".to_owned(),
        cores: 2,
        processor: None,
        memory_bytes: None,
        load_before: Some(0.0),
        kernel: None,
        commit: None,
        torch: "2.11.0".to_owned(),
        torchvision: "0.26.0".to_owned(),
    }
}

fn rates(rates: &[f64]) -> Vec<Figures> {
    rates
        .iter()
        .map(|rate| Figures::from([(Metric::Rate, *rate), (Metric::StepMs, 3.2e4 / rate)]))
        .collect()
}

fn report(measured: BTreeMap<Case, Vec<Figures>>) -> Report {
    report_of(Benchmark::Resnet18, measured)
}

fn report_of(benchmark: Benchmark, measured: BTreeMap<Case, Vec<Figures>>) -> Report {
    Report::new(Run {
        command: "cargo xtask bench".to_owned(),
        machine: machine(),
        rounds: 3,
        benchmarks: vec![benchmark],
        measured,
        failures: Vec::new(),
    })
}

fn resnet(way: Way) -> Case {
    Case::Train(Network::Resnet18, way)
}

#[test]
fn tables_show_medians_ratios_and_goals() {
    let report = report(BTreeMap::from([
        (resnet(DTRAIN), rates(&[128.0, 130.0, 64.0])),
        (resnet(Way::Ddp), rates(&[100.0, 100.0, 50.0])),
        (resnet(Way::DtrainAlone), rates(&[160.0, 160.0, 80.0])),
        (resnet(Way::TorchAlone), rates(&[160.0, 160.0, 80.0])),
    ]));
    let text = report.to_string();
    let line = |words: &str| {
        let found = text
            .lines()
            .find(|line| line.trim_start().starts_with(words))
            .unwrap();
        found.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(line("dtrain  "), "dtrain 128.0 64.0 130.0");
    assert_eq!(
        line("dtrain-shared-overlap : ddp"),
        "dtrain-shared-overlap : ddp (rate) 1.280 1.280 1.300 goal >= 1.2, met"
    );
    assert!(line("dtrain-shared-overlap : dtrain-alone").ends_with("0.800 0.800 0.812 goal >= 0.9, MISSED"));
    assert!(line("ddp : torch-alone").ends_with("0.625 0.625 0.625"));
    assert!(text.lines().all(|line| line == line.trim_end()));

    let json: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["cases"]["resnet18/ddp"]["figures"]["rate"]["median"], 100.0);
    assert_eq!(json["ratios"][0]["goal"]["at_least"], 1.2);
    assert_eq!(json["ratios"][0]["met"], true);
    assert_eq!(json["ratios"][0]["rounds"].as_array().unwrap().len(), 3);
    assert_eq!(json["ratios"][1]["met"], false);
    assert_eq!(json["ratios"][2]["met"], Value::Null);
}

#[test]
fn what_was_not_measured_is_no_figure() {
    let report = report(BTreeMap::from([(resnet(DTRAIN), rates(&[128.0]))]));
    let text = report.to_string();
    let ddp = text.lines().find(|line| line.contains("PyTorch DDP")).unwrap();
    assert_eq!(
        ddp.split_whitespace().collect::<Vec<_>>().join(" "),
        "PyTorch DDP - - -"
    );
    assert!(!text.contains("ratios"), "{text}");
    let json: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["ratios"].as_array().unwrap().len(), 0);
}

#[test]
fn figures_are_held_to_goals_of_their_own() {
    let rounds = |wall: [f64; 3], peak: f64| -> Vec<Figures> {
        let figures = |wall| Figures::from([(Metric::WallMs, wall), (Metric::LauncherPeakBytes, peak)]);
        wall.map(figures).to_vec()
    };
    let case = |by| Case::Launch(Job::NoOp(8), by);
    let report = report_of(
        Benchmark::Launch,
        BTreeMap::from([
            (case(By::Dtrain), rounds([40.0, 50.0, 60.0], 20.1e6)),
            (case(By::Torchrun), rounds([2000.0, 2000.0, 2000.0], 600e6)),
        ]),
    );
    let text = report.to_string();
    let goals: Vec<String> = text
        .lines()
        .filter(|line| line.ends_with(" met") || line.ends_with(" MISSED"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    assert_eq!(
        goals,
        [
            "dtrain launch: from start to end, ms 50.0 <= 50.0 met",
            "dtrain launch: peak of the launcher, MB 20.1 <= 20.0 MISSED",
        ]
    );
    let json: Value = serde_json::to_value(&report).unwrap();
    assert_eq!(json["goals"].as_array().unwrap().len(), 2);
    assert_eq!(json["goals"][0]["case"], "no-op-8/dtrain");
    assert_eq!(json["goals"][0]["met"], true);
    assert_eq!(json["goals"][1]["goal"]["at_most"], 20e6);
    assert_eq!(json["ratios"][0]["median"], 0.025);
}
