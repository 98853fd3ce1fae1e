//! Lists of files in the memory of rank 0, for ranks that cannot map them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use dtrain_common::env::WorkerEnv;
use dtrain_tests::process::output_text;
use dtrain_tests::programs::{without_outer_run, worker};
use dtrain_tests::ranks::{node_environments, start, wait};
use dtrain_tests::runs::Sandbox;

use super::bad_input::{folder_recipe, image_folder};
use super::file_systems::compile;

const LIMIT: Duration = Duration::from_secs(120);

/// On one node, and on two of which the second has two ranks: its second rank can map neither rank 0's lists nor those of its
/// neighbour.
#[test]
fn ranks_that_cannot_map_lists_get_them_from_rank_0() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    let sandbox = Sandbox::new(&folder_recipe());
    image_folder(&sandbox, 24, 4);
    let log = sandbox.path("refused");
    let train = |nodes: &[usize], run: &str, faults: &str| {
        let command = |_: &WorkerEnv| {
            let mut command = Command::new(worker());
            without_outer_run(&mut command);
            command.env("LD_PRELOAD", &library).env("ODD_FAULTS", faults).env("ODD_LOG", &log);
            command.env("CUDA_VISIBLE_DEVICES", "").current_dir(sandbox.path(""));
            command.args(["recipe.toml", "--run-dir", run, "--set", "train.steps=3"]);
            command
        };
        for (rank, output) in wait(start(&node_environments(nodes), command), LIMIT).iter().enumerate() {
            assert!(output.status.success(), "rank {rank} of {run}: {}", output_text(output));
        }
        sandbox.run(run)
    };
    for (nodes, name) in [(&[2][..], "one"), (&[1, 2], "two")] {
        let mapped = train(nodes, name, "");
        assert!(!log.exists(), "{name}");
        let fetched = train(nodes, &format!("{name}-fetched"), "maps=13");
        // Only ranks other than 0 open lists of others.
        assert!(!fs::read_to_string(&log).unwrap().is_empty(), "{name}");
        fs::remove_file(&log).unwrap();
        assert_eq!(mapped.per_step("loss"), fetched.per_step("loss"), "{name}");
        assert!(mapped.weights() == fetched.weights(), "{name}");
    }
}
