#![allow(clippy::unwrap_used)]
use super::super::case::GPTS;
use super::*;

const STEPS: Steps = Steps { skipped: 2, counted: 3 };

fn files(times: &[f64], batch: u64) -> RunFiles {
    let mut metrics = String::new();
    for (step, time) in (1u64..).zip(times) {
        let record = serde_json::json!({
            "step": step, "samples": step * batch, "step_ms": time, "wait_ms": {"data": 0.0, "comm": time / 4.0},
            "memory": {"allocated": 1, "reserved": 2, "peak": 100 * step},
        });
        metrics.push_str(&format!("{record}\n"));
    }
    metrics.push_str("{\"eval\": {\"loss\": 1.0}}\n");
    RunFiles {
        metrics,
        result: r#"{"peak_memory_bytes": [600, 700]}"#.to_owned(),
        plan: r#"{"parameters": 11}"#.to_owned(),
    }
}

#[test]
fn dtrains_rate_is_that_of_the_median_counted_step() {
    let files = files(&[9000.0, 9000.0, 400.0, 500.0, 800.0], 32);
    let figures = read_dtrain(&files, Network::Resnet18, 2, STEPS).unwrap();
    let expected = [
        (Metric::Rate, 64.0),
        (Metric::StepMs, 500.0),
        (Metric::WaitMs, 125.0),
        (Metric::WaitShare, 0.25),
        (Metric::TrainingPeakBytes, 500.0),
        (Metric::RunPeakBytes, 700.0),
        (Metric::OwnPeakBytes, 500.0),
        (Metric::Parameters, 11.0),
    ];
    assert_eq!(figures, expected.into());
}

#[test]
fn the_rate_of_a_gpt_counts_tokens() {
    let files = files(&[1.0, 1.0, 1024.0, 1024.0, 1024.0], 4);
    let figures = read_dtrain(&files, GPTS[0], 1, STEPS).unwrap();
    assert_eq!(figures[&Metric::Rate], 1000.0);
}

#[test]
fn a_run_of_another_length_or_batch_is_an_error() {
    let complaint = |files: &RunFiles| {
        let error = read_dtrain(files, Network::Resnet18, 2, STEPS).unwrap_err();
        format!("{error:#}")
    };
    assert!(complaint(&files(&[1.0; 4], 32)).contains("4 steps, expected 5"));
    assert!(complaint(&files(&[1.0; 5], 16)).contains("16 samples, expected 32"));
    let mut cut = files(&[1.0; 5], 32);
    cut.metrics.push_str("{\"step\": 6");
    assert!(complaint(&cut).contains("line 7 is not JSON"));
    let mut silent = files(&[1.0; 5], 32);
    silent.result = "{}".to_owned();
    assert!(complaint(&silent).contains("no peak memory"));
}

fn rank(times: [f64; 5], peak: u64) -> String {
    serde_json::json!({
        "samples": 16, "per_sample": 2, "step_ms": times, "peak_bytes": peak, "parameters": 11,
        "gpu_library_bytes": 3,
    })
    .to_string()
}

#[test]
fn independent_ranks_add_up_their_rates() {
    let ranks = [rank([9e3, 9e3, 100.0, 100.0, 100.0], 10), rank([9e3, 9e3, 400.0, 400.0, 400.0], 20)];
    let together = read_torch(&ranks, true, STEPS).unwrap();
    assert_eq!(together[&Metric::Rate], 640.0);
    assert_eq!(together[&Metric::StepMs], 100.0);
    assert_eq!(together[&Metric::TrainingPeakBytes], 10.0);
    assert_eq!(together[&Metric::RunPeakBytes], 20.0);
    assert_eq!(together[&Metric::OwnPeakBytes], 7.0);
    assert_eq!(together[&Metric::Parameters], 11.0);
    let alone = read_torch(&ranks, false, STEPS).unwrap();
    assert_eq!(alone[&Metric::Rate], 320.0 + 80.0);
    assert_eq!(alone[&Metric::TrainingPeakBytes], 20.0);
}

#[test]
fn independent_runs_of_dtrain_add_up_like_pytorchs() {
    let one = |time| {
        let files = files(&[time; 5], 16);
        read_dtrain(&files, Network::Resnet18, 1, STEPS).unwrap()
    };
    let pair = combine_pair(&[one(100.0), one(400.0)]).unwrap();
    assert_eq!(pair[&Metric::Rate], 160.0 + 40.0);
    assert_eq!(pair[&Metric::StepMs], 250.0);
    assert_eq!(pair[&Metric::RunPeakBytes], 700.0);
    assert!(!pair.contains_key(&Metric::WaitShare));
}

#[test]
fn a_loaders_rates_are_images_per_second() {
    let loader = |images: u32, cpu: f64| {
        let value = serde_json::json!({
            "images": images, "seconds": 0.5, "cpu_seconds": cpu, "mean": -0.25,
        });
        read_loader(&value.to_string())
    };
    let expected = [(Metric::Rate, 180.0), (Metric::CpuRate, 225.0), (Metric::PixelMean, -0.25)];
    assert_eq!(loader(90, 0.4).unwrap(), expected.into());
    assert!(loader(0, 0.4).is_err() && loader(90, 0.0).is_err());
    assert!(read_loader("[]").is_err());
}
