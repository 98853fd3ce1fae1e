//! The collectives of the MPI library that this was built with. DTRAIN_TEST_MPIRUN is its `mpirun` with arguments;
//! `cargo xtask check` sets it.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_tests::process::{finish, output_text};
use dtrain_tests::programs::{self, program};
use dtrain_tests::ranks::{self, free_port};
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{distance, tensors};

const LIMIT: Duration = Duration::from_secs(120);

const RANK: &str = env!("CARGO_BIN_EXE_conformance-rank-mpi");

/// Returns a command that starts this many ranks by `mpirun`, with this transport.
fn mpirun(ranks: usize, transport: &str) -> Command {
    let given = std::env::var("DTRAIN_TEST_MPIRUN").expect("DTRAIN_TEST_MPIRUN");
    let mut words = given.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    programs::without_outer_run(&mut command);
    command.args(words).args(["-n", &ranks.to_string()]);
    command.env("DTRAIN_TRANSPORT", transport).env("OMP_NUM_THREADS", "1");
    command
}

#[test]
fn the_conformance_suite_passes() {
    // The suite has torchrun's variables. Open MPI, then MPICH.
    let script = "RANK=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; export RANK LOCAL_RANK=$RANK; exec \"$@\"";
    for ranks in [2, 3] {
        let mut command = mpirun(ranks, "mpi");
        command.args(["sh", "-c", script, "rank", RANK, "mpi", "suite"]);
        command.env("WORLD_SIZE", ranks.to_string()).env("LOCAL_WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", free_port().to_string());
        let output = finish(&mut command, LIMIT);
        let text = output_text(&output);
        assert!(output.status.success(), "{ranks} ranks: {text}");
        assert_eq!(text.matches("ok shutdown").count(), ranks, "{text}");
    }
}

/// Six steps of the built-in recipe `demo` with a small network.
const DEMO: [&str; 17] = [
    "demo",
    "--set=model.name=\"vit\"",
    "--set=model.width=32",
    "--set=model.depth=2",
    "--set=model.heads=2",
    "--set=model.patch=8",
    // Several buckets, although the network is small.
    "--set=reduce.first_bucket=\"1 KiB\"",
    "--set=reduce.bucket=\"8 KiB\"",
    "--set=data.train_samples=384",
    "--set=data.test_samples=16",
    "--set=train.epochs=1",
    "--set=log.every_steps=1",
    "--set=optim.schedule={ name = \"constant\" }",
    // Adam divides by gradients that are almost zero, and magnifies the order of their sums.
    "--set=optim.name=\"sgd\"",
    "--set=optim.lr=0.01",
    "--set=optim.weight_decay=0.0",
    "--run-dir",
];

#[test]
fn the_demo_ends_in_gloos_weights() {
    let sandbox = Sandbox::new("");
    let train = |ranks: usize, transport: &str| -> Run {
        let name = format!("{transport}-{ranks}");
        // The ranks meet by PMI, and MPI then speaks to the same starter.
        let mut command = mpirun(ranks, transport);
        command.arg(program("dtrain-worker-mpi")).args(DEMO).arg(&name).current_dir(sandbox.path(""));
        let output = finish(&mut command, LIMIT);
        assert!(output.status.success(), "{name}: {}", output_text(&output));
        sandbox.run(&name)
    };
    for ranks in [1, 2, 3] {
        let (mpi, gloo) = (train(ranks, "mpi"), train(ranks, "gloo"));
        assert_eq!(mpi.per_step("loss").len(), 6);
        let weights = |run: &Run| tensors(run, "model.safetensors");
        let apart = distance(&weights(&mpi), &weights(&gloo));
        println!("{ranks} ranks: the weights differ by {apart:.1e}");
        assert!(apart < 1e-6, "{ranks} ranks: {apart:e}");
    }
}

#[test]
fn ranks_without_mpirun_are_told_how_to_start() {
    for output in ranks::run(Path::new(RANK), &["mpi", "suite"], 2, LIMIT) {
        let text = output_text(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("start each with mpirun or srun --mpi"), "{text}");
    }
}
