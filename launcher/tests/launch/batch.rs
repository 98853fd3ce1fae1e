//! `dtrain batch` as a user sees it.

mod systems;

use crate::harness::{Finished, Scene};
use std::fs;
use std::process::Command;

fn batch(scene: &Scene, args: &[&str]) -> Finished {
    let dtrain = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    let command = scene.adapt(dtrain, &["batch"]).into_command(args);
    scene.start(command).wait()
}

#[test]
fn a_script_is_written_to_standard_output_or_a_file() {
    let scene = Scene::new();
    let args = ["slurm", "demo", "--nodes", "2", "--time", "2 h", "--set", "train.epochs=2"];
    let script = batch(&scene, &args).expect_code(0).stdout();
    for line in [
        "#!/bin/bash",
        "#SBATCH --job-name=demo",
        "#SBATCH --nodes=2",
        "#SBATCH --time=0-02:00:00",
        "#SBATCH --signal=USR1@120",
        "run_dir=runs/demo",
        "    --set 'train.epochs=2' \\",
    ] {
        assert!(script.lines().any(|found| found == line), "{line} is missing in:\n{script}");
    }
    scene.expect_nothing_written();
    let done = batch(&scene, &[&args[..], &["--output", ".job.sh"]].concat());
    assert_eq!(done.expect_code(0).stdout(), "");
    assert_eq!(fs::read_to_string(scene.path(".job.sh")).unwrap(), script);
}

#[test]
fn a_program_is_only_signalled_on_request() {
    let scene = Scene::new();
    let plain = batch(&scene, &["slurm", "--time", "2 h", "--", "./train", "a b"]).expect_code(0).stdout();
    assert!(!plain.contains("--signal") && plain.contains("-- ./train 'a b' \\\n"), "{plain}");
    let asked = batch(&scene, &["slurm", "--time", "2 h", "--signal-before", "5 min", "--", "./train"]);
    assert!(asked.expect_code(0).stdout().contains("#SBATCH --signal=USR1@300\n"));
}

#[test]
fn wrong_jobs_are_one_sentence_with_a_remedy() {
    let scene = Scene::new();
    fs::write(scene.path(".setup.sh"), "#SBATCH --nodes=9\n").unwrap();
    for (args, message) in [
        (&["slurm", "nowhere"][..], "there is no such file"),
        (&["slurm", "train.py"], "write `-- python train.py`"),
        (&["pbs", "demo", "--submit"], "qsub is not in PATH"),
        (&["k8s", "demo"], "give --container IMAGE"),
        (&["slurm", "demo", "--set", "train.epoch=1"], "epoch"),
        (&["slurm", "demo", "--array", "optim.lr=0.1,fast"], "lr"),
        (&["slurm", "demo", "--signal-before", "5 min"], "give --time, or leave it out"),
        (
            &["slurm", "demo", "--time", "2 min", "--signal-before", "5 min"],
            "is not longer than --signal-before 5 min",
        ),
        (&["slurm", "demo", "--queue", "gpu"], "--queue has no effect on slurm; Slurm's word is --partition"),
        (
            &["slurm", "demo", "--env-setup", "none.sh"],
            "cannot read --env-setup none.sh; give a readable file",
        ),
        (&["slurm", "demo", "--env-setup", ".setup.sh"], "which slurm would read as an option"),
        (&["slurm", "demo", "--account", "a\n#SBATCH --wrap=x"], "which batch systems do not read there"),
        (&["slurm", "demo", "--output", "no/folder/job.sh"], "give another --output"),
        (&["condor", "demo"], "[possible values: slurm"),
    ] {
        batch(&scene, args).expect_code(2).expect_stderr(message);
    }
    scene.expect_nothing_written();
}
