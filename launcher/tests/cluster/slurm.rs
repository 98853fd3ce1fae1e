//! Scripts of `dtrain batch slurm` with programs, on a real Slurm.

use dtrain_test_kit::process::wait_until;
use dtrain_test_kit::programs;
use dtrain_test_kit::runs::gpt;
use dtrain_test_kit::slurm::Slurm;
use std::fs;

/// Runs `dtrain ARGS` on the first node.
fn dtrain(slurm: &Slurm, args: &[&str]) -> String {
    let dtrain = programs::dtrain();
    slurm.run(&[&[dtrain.to_str().unwrap()], args].concat())
}

/// Submits a program on two nodes.
fn submit(slurm: &Slurm, flags: &[&str], program: &str) -> String {
    let nodes = if flags.contains(&"--nodes") { &[][..] } else { &["--nodes", "2"] };
    let before = ["batch", "slurm", "--submit", "--name", "two"];
    dtrain(slurm, &[&before, nodes, flags, &["--", "sh", "-c", program]].concat())
}

#[track_caller]
fn wait_for_end(slurm: &Slurm, id: &str) -> String {
    wait_until("the end of the job", || slurm.job(id).is_over());
    fs::read_to_string(slurm.path(&format!("two-{id}.out"))).unwrap()
}

/// A program with a checkpoint that takes less than the `KillWait` of 5 s.
const SAVES: &str = r#"
    if [ -e saved.0 ] && [ -e saved.1 ]; then exit 0; fi
    trap 'trap "" TERM; sleep 2; : > saved.$RANK; exit 75' TERM
    : > ready.$RANK
    while :; do sleep 0.05; done"#;

#[test]
fn a_preemption_without_grace_leaves_the_kill_wait_for_a_checkpoint() {
    let Ok(slurm) = Slurm::new(2) else { return };
    let id = submit(&slurm, &["--partition", "abrupt"], SAVES);
    wait_until("the program", || [0, 1].iter().all(|rank| slurm.path(&format!("ready.{rank}")).exists()));
    slurm.preempt();
    let log = wait_for_end(&slurm, &id);
    let job = slurm.job(&id);
    assert_eq!((job.state.as_str(), job.restarts), ("COMPLETED", 1), "{log}\n{}", slurm.log());
}

#[test]
fn checkpoints_are_regular_where_a_preemption_leaves_too_little_time() {
    let Ok(slurm) = Slurm::new(1) else { return };
    fs::write(slurm.path("recipe.toml"), gpt(10, "")).unwrap();
    let set = "--set 'checkpoint.every=10 min'";
    let script = |flags: &[&str]| dtrain(&slurm, &[&["batch", "slurm", "recipe.toml"], flags].concat());
    assert!(script(&["--partition", "abrupt"]).contains(set));
    // Its grace time is 30 s.
    assert!(script(&[]).contains(set));
    assert!(!script(&["--time", "5 min", "--signal-before", "20 s"]).contains(set));
    assert!(!script(&["--partition", "high"]).contains(set));
    assert!(!script(&["--partition", "abrupt", "--set", "checkpoint.every=1 epoch"]).contains(set));
    assert!(!script(&["--directive=-p high"]).contains(set));
}

#[test]
fn a_job_without_the_users_environment_has_a_secret_and_its_own_variables() {
    let Ok(slurm) = Slurm::new(2) else { return };
    fs::write(slurm.path("setup.sh"), "export OWN=set\n").unwrap();
    let program = "echo rank $RANK of $WORLD_SIZE: $OWN";
    let id = submit(&slurm, &["--directive=--export=NONE", "--env-setup", "setup.sh"], program);
    let log = wait_for_end(&slurm, &id);
    for line in ["rank 0 of 2: set", "rank 1 of 2: set"] {
        assert!(log.contains(line), "{log}");
    }
    assert!(!log.contains("any program"), "{log}");
    assert!(!slurm.path(&format!(".{id}.secret")).exists());
    let script = dtrain(&slurm, &["batch", "slurm", "--nodes", "2", "--", "true"]);
    assert!(!script.contains("trap ") && !script.contains(".secret"), "{script}");
}

/// `srun` returns the highest code of all nodes, and a training writes its own.
#[test]
fn the_code_of_a_job_is_that_of_its_run() {
    let Ok(slurm) = Slurm::new(2) else { return };
    let program = "[ $RANK = 0 ] || exec sleep 60; mkdir -p runs/two; echo '{\"exit_code\":0}' > runs/two/result.json; exit 137";
    for flags in [&["--max-requeues", "0"][..], &["--nodes", "1:2"]] {
        let id = submit(&slurm, flags, program);
        let log = wait_for_end(&slurm, &id);
        let job = slurm.job(&id);
        assert_eq!((job.state.as_str(), job.exit_code.as_str()), ("COMPLETED", "0:0"), "{flags:?}: {log}");
    }
}

#[test]
fn one_node_by_a_flag_is_a_run_of_each_node_of_a_step() {
    let Ok(slurm) = Slurm::new(2) else { return };
    let dtrain = programs::dtrain();
    let launch = [dtrain.to_str().unwrap(), "launch", "--nnodes", "1", "--", "sh", "-c"];
    let text = slurm
        .run(&[&["srun", "--nodes=2", "--ntasks=2"][..], &launch, &["echo $RANK of $WORLD_SIZE"]].concat());
    assert_eq!(text.lines().filter(|line| line.ends_with("0 of 1")).count(), 2, "{text}");
}
