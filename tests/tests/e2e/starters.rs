//! Ranks that an MPI starter starts, with neither a launcher nor MPI in the program.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use dtrain_test_kit::need::{self, Need, Skipped};
use dtrain_test_kit::thorough;
use dtrain_tests::process::{Signal, expect_exit_code, finish, output_text, signal};
use dtrain_tests::programs::{dtrain, without_outer_run, worker};
use dtrain_tests::runs::{Sandbox, TINY};

const LIMIT: Duration = Duration::from_secs(120);

/// Open MPI speaks PMIx, MPICH PMI-1 and PMI-2. Tests of several ranks may run on few cores, and as root.
const STARTERS: [(&str, &[&str], &str); 3] = [
    ("mpirun.openmpi", &["--allow-run-as-root", "--oversubscribe"], "auto"),
    ("mpiexec.mpich", &[], "auto"),
    ("mpiexec.mpich", &[], "2"),
];

/// Skips the test where a starter is missing.
#[track_caller]
fn are_there() -> Result<(), Skipped> {
    STARTERS.iter().try_for_each(|(program, ..)| {
        need::output(Need::Mpi, Command::new(program).arg("--version")).map(drop)
    })
}

/// Returns the command that starts this many tasks of `program`.
fn start(
    (starter, args, protocol): (&str, &[&str], &str),
    tasks: usize,
    program: &Path,
    folder: &Path,
) -> Command {
    let mut command = Command::new(starter);
    without_outer_run(&mut command);
    command.args(args).args(["-n", &tasks.to_string()]).arg(program).current_dir(folder);
    command.env("DTRAIN_PMI", protocol).env("OMP_NUM_THREADS", "1");
    command
}

#[test]
fn ranks_of_mpirun_end_in_the_weights_of_a_launch() {
    let Ok(()) = are_there() else { return };
    let sandbox = Sandbox::new(TINY);
    for &ranks in thorough::cases(&[2, 3], 1) {
        let launched = sandbox.train(ranks, &format!("launch-{ranks}"), &[]);
        for starter in STARTERS {
            let name = format!("{}-{}-{ranks}", starter.0, starter.2);
            let mut command = start(starter, ranks, &worker(), &sandbox.path(""));
            let output = finish(command.args(["recipe.toml", "--run-dir", &name]), LIMIT);
            assert!(output.status.success(), "{name}: {}", output_text(&output));
            let run = sandbox.run(&name);
            assert!(run.weights() == launched.weights(), "{name}: other weights");
            assert_eq!((run.result().exit_code, run.result().nproc), (Some(0), launched.result().nproc));
        }
    }
}

/// Ends by itself only after minutes.
const LONG: [&str; 4] = ["--set", "train.epochs=2000", "--set", "checkpoint.every=1000 epochs"];

#[test]
fn a_signal_to_mpirun_stops_all_ranks_with_a_checkpoint_and_a_second_start_resumes() {
    let Ok(()) = are_there() else { return };
    for starter in thorough::cases(&STARTERS[..2], 1) {
        let sandbox = Sandbox::new(TINY);
        let mut command = start(*starter, 2, &worker(), &sandbox.path(""));
        command
            .args(["recipe.toml", "--run-dir", "run"])
            .args(LONG)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        sandbox.run("run").wait_for_lines(2);
        signal(child.id(), Signal::USR1);
        let code = child.wait().unwrap().code();
        let result = sandbox.run("run").result();
        assert_eq!(result.exit_code, Some(75), "{}, {code:?}: {:?}", starter.0, result.reason);
        // MPICH 4.0 forgets the codes of processes to which it passed a signal (its pull request 5930).
        let forgets = starter.0 == "mpiexec.mpich" && code == Some(0);
        assert!(code == Some(75) || forgets, "{}: {code:?}", starter.0);
        let steps = result.steps.unwrap();
        let mut again = start(*starter, 2, &worker(), &sandbox.path(""));
        let epochs = format!("train.steps={}", steps + 3);
        again.args(["recipe.toml", "--run-dir", "run"]).args(LONG).args(["--set", &epochs]);
        let text = expect_exit_code(&finish(&mut again, LIMIT), 0);
        assert!(text.contains(&format!("after step {steps}")), "{text}");
    }
}

#[test]
fn a_wrong_recipe_is_reported_once_and_ends_all_ranks() {
    let Ok(()) = are_there() else { return };
    let sandbox = Sandbox::new(TINY);
    for &starter in thorough::cases(&STARTERS, 2) {
        let mut command = start(starter, 3, &worker(), &sandbox.path(""));
        command.args(["recipe.toml", "--run-dir", "wrong", "--resume", "nowhere"]);
        let text = expect_exit_code(&finish(&mut command, LIMIT), 2);
        let errors: Vec<&str> = text.lines().filter(|line| line.contains("error: ")).collect();
        assert!(errors.len() == 1 && errors[0].contains("nowhere"), "{errors:?}");
    }
}

/// One task for each node, which seem to be two: the launchers meet by PMI.
#[test]
fn launchers_of_mpiexec_learn_where_to_meet() {
    let Ok(()) = are_there() else { return };
    let sandbox = Sandbox::new(TINY);
    let script = "MPI_LOCALNRANKS=1 MPI_LOCALRANKID=0 exec \"$@\"";
    let mut command = start(STARTERS[1], 2, Path::new("sh"), &sandbox.path(""));
    command.args(["-c", script, "node"]).arg(dtrain());
    command.args([
        "launch",
        "--nproc",
        "1",
        "--rdzv-secret",
        "none",
        "--",
        "sh",
        "-c",
        "echo rank $RANK of $WORLD_SIZE on $GROUP_RANK",
    ]);
    let text = expect_exit_code(&finish(&mut command, LIMIT), 0);
    for line in ["rank 0 of 2 on 0", "rank 1 of 2 on 1", "which meet at "] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn a_starter_that_tells_too_little_is_an_error_with_a_remedy() {
    let sandbox = Sandbox::new(TINY);
    let alone = |variables: &[(&str, &str)]| {
        let mut command = Command::new(worker());
        without_outer_run(&mut command);
        command.args(["recipe.toml", "--run-dir", "run"]).current_dir(sandbox.path(""));
        command.envs(variables.iter().copied());
        let output = finish(&mut command, LIMIT);
        (output.status.code(), output_text(&output))
    };
    for (variables, code, message) in [
        (&[("PMIX_RANK", "1")][..], 2, "does not tell the number of ranks"),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "2")], 2, "does not tell the ranks of each node"),
        (
            &[("OMPI_COMM_WORLD_RANK", "2"), ("OMPI_COMM_WORLD_SIZE", "2")],
            2,
            "cannot read the environment of this job",
        ),
        (&[("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("PMI_FD", "x")], 5, "PMI_FD is \"x\""),
        (
            &[
                ("SLURM_JOB_ID", "7"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_PROCID", "1"),
                ("SLURM_LOCALID", "0"),
                ("SLURM_NODEID", "1"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_NUM_NODES", "2"),
                ("SLURM_STEP_NODELIST", "node-[1-2].invalid"),
                ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
            ],
            5,
            "cannot resolve node-1.invalid, the host of rank 0",
        ),
    ] {
        let (found, text) = alone(variables);
        assert!(found == Some(code) && text.contains(message), "{found:?}: {text}");
        assert_eq!(text.matches("error: ").count(), 1, "{text}");
    }
}
