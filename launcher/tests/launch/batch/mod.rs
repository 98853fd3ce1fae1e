//! `dtrain batch` as a user sees it.

mod pods;
mod systems;

use crate::harness::{Finished, Scene, executable};
use dtrain_test_kit::programs::{self, RESOLVE};
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
        (&["slurm", "demo", "--set", "train.epoch=1"], "epoch"),
        (&["slurm", "demo", "--array", "optim.lr=0.1,fast"], "lr"),
        (&["slurm", "demo", "nowhere"], "there is no such file"),
        (&["slurm", "demo", "--signal-before", "5 min"], "give --time, or leave it out"),
        (
            &["slurm", "demo", "--env-setup", "none.sh"],
            "cannot read --env-setup none.sh; give a readable file",
        ),
        (&["slurm", "demo", "--env-setup", ".setup.sh"], "which slurm would read as an option"),
        (&["slurm", "demo", "--account", "a\n#SBATCH --wrap=x"], "which batch systems do not read there"),
        (&["slurm", "demo", "--output", "no/folder/job.sh"], "give another --output"),
        (&["condor", "demo"], "[possible values: slurm"),
        (&["slurm", "demo", "--launch", "--rdzv-conf join_timeout=x"], "--launch: "),
        (
            &["pbs", "demo", "--time", "1 h", "--launch", "--time-limit 2h"],
            "--launch: the script gives --time-limit, or the job says it; give --time and --signal-before",
        ),
        (
            &["slurm", "--launch", "--log-dir x", "--", "true"],
            "--launch: the script gives --log-dir, or the job says it; give --run-dir",
        ),
        (
            &["pbs", "demo", "--nodes", "2", "--launch", "--rdzv-id a"],
            "--launch: the script gives --rdzv-id, or the job says it; leave it out",
        ),
        (&["slurm", "demo", "--gpu-resource", "nvidia.com/mig-1g.10gb"], "only k8s has such names"),
    ] {
        batch(&scene, args).expect_code(2).expect_stderr(message);
    }
    scene.expect_nothing_written();
}

/// Starts `dtrain batch` with a trainer that answers every plan with this exit code.
fn batch_with_plan(scene: &Scene, args: &[&str], code: u8) -> Finished {
    batch_with_planner(scene, args, &format!("echo \"the plan of $*\"\nexit {code}"))
}

/// Starts `dtrain batch` with a trainer that answers every plan by this shell program.
fn batch_with_planner(scene: &Scene, args: &[&str], program: &str) -> Finished {
    let worker = executable(scene, ".planner", &format!("#!/bin/sh\n{RESOLVE}\n{program}\n"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_dtrain"));
    command.env("DTRAIN_WORKER", &worker).env("RESOLVER", programs::resolver()).current_dir(scene.path("."));
    command.arg("batch").args(args);
    scene.start(command).wait()
}

#[test]
fn without_a_trainer_the_general_part_is_checked() {
    let scene = Scene::new();
    let recipe = |data: &str, train: &str| {
        let text = format!("task = \"one of mine\"\n[data]\n{data}\n[train]\n{train}\n");
        fs::write(scene.path("mine.toml"), text).unwrap();
    };
    let batch = |args: &[&str]| {
        let mut command =
            scene.adapt(Command::new(env!("CARGO_BIN_EXE_dtrain")), &["batch"]).into_command(args);
        command.env("DTRAIN_WORKER", "/no/such/worker");
        scene.start(command).wait()
    };
    recipe("colours = 3", "steps = 1");
    let done = batch(&["slurm", "mine.toml", "demo"]);
    done.expect_code(0)
        .expect_stderr("[model] and [custom] are checked when the job starts: DTRAIN_WORKER is set wrongly");
    assert_eq!(done.stderr.matches("warning").count(), 1, "{}", done.stderr);
    recipe("colours = 3", "stepps = 1");
    batch(&["slurm", "mine.toml"]).expect_code(2).expect_stderr("mine.toml:5: train.stepps: unknown key");
}

#[test]
fn the_trainer_checks_the_recipes_of_a_batch() {
    let scene = Scene::new();
    let set = ["slurm", "demo", "--set", "data.imagesize=3"];
    batch(&scene, &set).expect_code(2).expect_stderr("did you mean `image_size`?");
    scene.expect_nothing_written();
}

#[test]
fn a_dry_run_shows_the_job_and_the_plan_of_each_run() {
    let scene = Scene::new();
    let job = ["slurm", "demo", "--dry-run", "--nodes", "2", "--gpus-per-node", "4", "--gpu", "t4"];
    let done = batch_with_plan(&scene, &[&job[..], &["--time", "1 h"]].concat(), 0);
    let text = done.expect_code(0).stdout();
    for part in
        ["2 nodes with 4 GPUs each, 8 ranks", "asked to stop after 58 min", "the plan of demo", "\"nproc\":8"]
    {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
    let sweep = batch_with_plan(&scene, &[&job[..], &["--array", "optim.lr=0.1,0.01"]].concat(), 3);
    let text = sweep.expect_code(3).stdout();
    assert!(text.contains("Run 1, --set optim.lr=0.01:\nthe plan of demo --set optim.lr=0.01 "), "{text}");
    let recipes = [&job[..2], &["cifar100"], &job[2..], &["--set", "train.seed=3"]].concat();
    let text = batch_with_plan(&scene, &recipes, 0).expect_code(0).stdout();
    for part in [
        "run directory: runs/demo/0 to /1",
        "Run 0, demo:\nthe plan of demo --set train.seed=3 ",
        "Run 1, cifar100:\nthe plan of cifar100 --set train.seed=3 ",
    ] {
        assert!(text.contains(part), "{part} is missing in:\n{text}");
    }
}

#[test]
fn values_of_an_array_are_read_by_what_their_key_takes() {
    let scene = Scene::new();
    let recipe = "task = \"classify\"\ndata.root = \"/images\"\ntrain.epochs = 1\n";
    fs::write(scene.path("years.toml"), recipe).unwrap();
    let array = |values| batch(&scene, &["slurm", "years.toml", "--array", values]);
    let text = array("data.train=2024,2025-01-01").expect_code(0).stdout();
    assert!(text.contains("data.train=") && text.contains("2025-01-01"), "{text}");
    array("optim.lr=.1,1.").expect_code(0);
    assert!(array("train.epochs=2,x").expect_code(2).stderr.contains("train.epochs"));
}

#[test]
fn flags_and_options_are_passed_on() {
    let scene = Scene::new();
    let extra =
        ["--launch", "--max-restarts 3 --shutdown-timeout 60", "--launch=--rdzv-conf admit=checkpoint"];
    let options =
        ["--directive=--exclude=node7", "--directive", "--mail-type=END", "--nodes", "2:4", "--array", "8%2"];
    let script = batch(&scene, &[&["slurm", "demo"], &extra[..], &options].concat()).expect_code(0).stdout();
    for line in [
        "#SBATCH --exclude=node7",
        "#SBATCH --mail-type=END",
        "#SBATCH --no-kill",
        "#SBATCH --array=0-7%2",
        "    --nnodes 2:4 \\",
        "    --max-restarts 3 --shutdown-timeout 60 --rdzv-conf 'admit=checkpoint' \\",
    ] {
        assert!(script.lines().any(|found| found == line), "{line} is missing in:\n{script}");
    }
}

#[test]
fn several_recipes_are_one_array() {
    let scene = Scene::new();
    let script = batch(&scene, &["slurm", "demo", "demo", "--set", "train.seed=3"]).expect_code(0).stdout();
    for line in [
        "#SBATCH --array=0-1",
        "run_dir=runs/demo/$index",
        "    demo # 1",
        "    \"$recipe\" \\",
        "    --set 'train.seed=3' \\",
    ] {
        assert!(script.lines().any(|found| found == line), "{line} is missing in:\n{script}");
    }
}

#[test]
fn a_recipe_that_does_not_fit_is_refused_before_submission() {
    let scene = Scene::new();
    let job = ["slurm", "demo", "--submit", "--gpus-per-node", "1", "--gpu", "t4"];
    batch_with_plan(&scene, &job, 3).expect_code(2).expect_stderr("demo does not fit the GPUs of --gpu");
    // The plan of the second recipe fails.
    let second = [&job[..], &["cifar100"]].concat();
    batch_with_planner(&scene, &second, "case $1 in demo) exit 0 ;; esac; exit 3")
        .expect_code(2)
        .expect_stderr("cifar100 does not fit the GPUs of --gpu");
    let without = ["slurm", "demo", "--gpu", "t4"];
    batch_with_plan(&scene, &without, 0)
        .expect_code(2)
        .expect_stderr("give --gpus-per-node, or leave it out");
    let named = ["slurm", "demo", "--gpus-per-node", "1", "--gpu", "t4,l4"];
    let script = batch_with_plan(&scene, &named, 0).expect_code(0).stdout();
    assert!(script.contains("#SBATCH --constraint=t4|l4\n"), "{script}");
}

#[test]
fn a_time_that_is_too_short_for_a_checkpoint_is_refused() {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("runs/demo")).unwrap();
    let line = "{\"checkpoint\":{\"step\":50,\"total_ms\":90000.0}}\n";
    fs::write(scene.path("runs/demo/metrics.jsonl"), line).unwrap();
    let short = batch(&scene, &["slurm", "demo", "--time", "10 min"]);
    short.expect_code(2).expect_stderr("took 90 s, but the workers have only 1 min to stop");
    batch(&scene, &["slurm", "demo", "--time", "10 min", "--signal-before", "2 min"]).expect_code(0);
    fs::create_dir_all(scene.path("runs/demo/1")).unwrap();
    fs::rename(scene.path("runs/demo/metrics.jsonl"), scene.path("runs/demo/1/metrics.jsonl")).unwrap();
    let second = batch(&scene, &["slurm", "demo", "demo", "--time", "10 min"]);
    second.expect_code(2).expect_stderr("a checkpoint in runs/demo/1 took 90 s");
}
