//! An array of four runs, against the same runs without Slurm.

use std::time::Duration;

use dtrain_common::run_dir::RunDir;
use dtrain_test_kit::process::{finish, output_text};
use dtrain_test_kit::programs;
use dtrain_test_kit::slurm::Slurm;
use dtrain_tests::runs::Run;

use super::training::{recipe, recorded, wait};

const RATES: [&str; 4] = ["1e-3", "3e-4", "1e-4", "3e-5"];
const STEPS: u64 = 40;

/// Trains a sweep of four learning rates as an array, and each of them directly. Returns what differs.
pub(super) fn compare_with_direct_runs(slurm: &Slurm) -> Vec<String> {
    let mut args = recipe("sweep", STEPS);
    args.extend(["--array".to_owned(), format!("optim.lr={}", RATES.join(","))]);
    let id = slurm.submit_training(&args);
    wait("the array", || {
        let jobs = slurm.jobs(&id);
        jobs.len() == RATES.len() && jobs.iter().all(|job| job.is_over())
    });
    let mut problems = Vec::new();
    for job in slurm.jobs(&id) {
        if (job.state.as_str(), job.exit_code.as_str()) != ("COMPLETED", "0:0") {
            problems.push(format!("{job:?}"));
        }
    }
    for (index, rate) in RATES.iter().enumerate() {
        let (of_array, direct) = (format!("sweep/{index}"), format!("direct-{index}"));
        let mut launch = programs::launch();
        // `--name` is a word of the job only.
        let words = recipe("sweep", STEPS).into_iter().filter(|word| word.starts_with("--set"));
        launch.args(["--run-dir", &direct, "--set", &format!("optim.lr={rate}")]).args(words).arg("demo");
        launch.current_dir(slurm.path("")).env("CUDA_VISIBLE_DEVICES", "");
        let output = finish(&mut launch, Duration::from_secs(120));
        assert!(output.status.success(), "{}", output_text(&output));
        let [of_array, direct] = [of_array, direct].map(|name| Run(RunDir::new(slurm.path(&name))));
        if recorded(&of_array) != (1..=STEPS).collect::<Vec<_>>() {
            problems.push(format!("run {index} has other steps"));
        }
        if of_array.weights() != direct.weights() || of_array.per_step("loss") != direct.per_step("loss") {
            problems.push(format!("run {index} differs from the direct run"));
        }
    }
    let weights: Vec<_> =
        (0..4).map(|n| Run(RunDir::new(slurm.path(&format!("sweep/{n}")))).weights()).collect();
    if weights.iter().skip(1).any(|other| *other == weights[0]) {
        problems.push("two rates gave the same weights".to_owned());
    }
    problems
}
