//! Ranks that `srun` starts as one task each, without a launcher.

use dtrain_test_kit::programs;
use dtrain_test_kit::slurm::Slurm;
use dtrain_test_kit::thorough;

use super::training::{recipe, recorded, run};

#[test]
fn ranks_that_srun_starts_end_in_the_weights_of_launchers() {
    let Ok(slurm) = Slurm::new(2) else { return };
    let steps = 4;
    let train = |name: &str, more: &[&str], program: &[&str]| {
        let args = recipe(name, steps);
        // The first argument is the recipe; `--name` is one of `dtrain batch`.
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let at = args.iter().position(|arg| *arg == "--name").unwrap();
        let args = [&args[..at], &args[at + 2..]].concat();
        let worker = format!("DTRAIN_WORKER={}", programs::worker().display());
        let start = ["srun", "--nodes=2", "--ntasks=2", "--cpu-bind=none"];
        let variables = ["env", "OMP_NUM_THREADS=1", "CUDA_VISIBLE_DEVICES=", &worker];
        slurm.run(&[&start[..], more, &variables, program, &args].concat());
        let run = run(&slurm, name);
        assert_eq!(recorded(&run), (1..=steps).collect::<Vec<_>>(), "{name}");
        assert_eq!(run.result().nproc, Some(2), "{name}");
        run.weights()
    };
    let (dtrain, worker) = (programs::dtrain(), programs::worker());
    let (dtrain, worker) = (dtrain.to_str().unwrap(), worker.to_str().unwrap());
    let launched = train("launchers", &[], &[dtrain, "launch", "--nproc", "1", "--rdzv-secret", "none"]);
    // `starters` has PMI-2, of MPICH.
    for &mpi in thorough::cases(&["--mpi=none", "--mpi=pmi2"], 1) {
        assert!(train(&mpi[6..], &[mpi], &[worker]) == launched, "{mpi}: other weights");
    }
}
