//! The workers' environment, compared with torchrun's list.

use crate::harness::Scene;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// Writes the worker's variables, and checks that the folder of its error file exists.
const WRITE_ENV: &str = r#"env -0 > "$TEST_DIR/env.$RANK"; test -d "${TORCHELASTIC_ERROR_FILE%/*}""#;

fn variables(scene: &Scene, rank: usize) -> BTreeMap<String, String> {
    let text = scene.read(&format!("env.{rank}"));
    let pairs = text.split('\0').filter_map(|variable| variable.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns whether the name belongs to torchrun's variables.
fn of_the_contract(name: &str) -> bool {
    ["RANK", "LOCAL_", "GROUP_", "ROLE_", "WORLD_", "MASTER_", "TORCH"]
        .iter()
        .any(|start| name.starts_with(start))
}

#[test]
fn torchruns_variables_are_set_for_1_2_and_3_workers() {
    for world in [1, 2, 3] {
        let scene = Scene::new();
        scene.sh(world, &[], WRITE_ENV).expect_code(0);
        let mut ports = BTreeSet::new();
        let mut run_ids = BTreeSet::new();
        for rank in 0..world {
            let mut vars = variables(&scene, rank);
            vars.retain(|name, _| of_the_contract(name));
            ports.insert(vars.remove("MASTER_PORT").unwrap());
            run_ids.insert(vars.remove("TORCHELASTIC_RUN_ID").unwrap());
            let error_file = vars.remove("TORCHELASTIC_ERROR_FILE").unwrap();
            assert!(error_file.starts_with('/') && error_file.ends_with(&format!("rank_{rank}/error.json")));
            let (world, rank) = (world.to_string(), rank.to_string());
            let expected = [
                ("RANK", rank.as_str()),
                ("LOCAL_RANK", &rank),
                ("GROUP_RANK", "0"),
                ("ROLE_RANK", &rank),
                ("ROLE_NAME", "default"),
                ("WORLD_SIZE", &world),
                ("LOCAL_WORLD_SIZE", &world),
                ("GROUP_WORLD_SIZE", "1"),
                ("ROLE_WORLD_SIZE", &world),
                ("MASTER_ADDR", "127.0.0.1"),
                ("TORCHELASTIC_RESTART_COUNT", "0"),
                ("TORCHELASTIC_MAX_RESTARTS", "0"),
                ("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGINT,SIGTERM,SIGHUP,SIGQUIT,SIGUSR1,SIGUSR2"),
                ("TORCHELASTIC_USE_AGENT_STORE", "False"),
                ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
            ];
            let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
            assert_eq!(vars, BTreeMap::from(expected));
        }
        assert_eq!((ports.len(), run_ids.len()), (1, 1), "the same for all workers");
        assert!(ports.first().unwrap().parse::<u16>().unwrap() > 0);
    }
}

#[test]
fn threads_are_shared_unless_the_user_has_said_how() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let scene = Scene::new();
    scene.sh(2, &[], WRITE_ENV).expect_code(0);
    assert_eq!(variables(&scene, 1)["OMP_NUM_THREADS"], (cores / 2).max(1).to_string());

    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "2", "--", "sh", "-c", WRITE_ENV]);
    command.env("OMP_NUM_THREADS", "17").env("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3");
    scene.start(command).wait().expect_code(0);
    assert_eq!(variables(&scene, 0)["OMP_NUM_THREADS"], "17");
    assert_eq!(variables(&scene, 0)["TORCH_NCCL_ASYNC_ERROR_HANDLING"], "3");
}

#[test]
fn the_outer_launchers_variables_do_not_leak_into_an_inner_launch() {
    let scene = Scene::new();
    let mut command = scene.command(&["--nproc", "1", "--", "sh", "-c", WRITE_ENV]);
    command.env("RANK", "5").env("WORLD_SIZE", "8").env("LOCAL_RANK", "3").env("DTRAIN_PROGRESS", "terminal");
    scene.start(command).wait().expect_code(0);
    let vars = variables(&scene, 0);
    assert_eq!((vars["RANK"].as_str(), vars["WORLD_SIZE"].as_str()), ("0", "1"));
    assert_eq!(vars["DTRAIN_PROGRESS"], "lines");
}

#[test]
fn the_start_of_the_launch_is_told() {
    let now = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    let scene = Scene::new();
    let before = now();
    scene.sh(1, &[], WRITE_ENV).expect_code(0);
    let told: u128 = variables(&scene, 0)["DTRAIN_START_UNIX_NS"].parse().unwrap();
    assert!(before <= told && told <= now());
}

#[test]
fn the_temporary_folder_of_the_error_files_is_removed() {
    let scene = Scene::new();
    scene.sh(2, &[], WRITE_ENV).expect_code(0);
    let error_file = variables(&scene, 0).remove("TORCHELASTIC_ERROR_FILE").unwrap();
    assert!(!Path::new(&error_file).parent().unwrap().exists());
}

#[test]
fn a_file_at_standard_input_is_passed_on_to_all_or_to_the_named_rank() {
    let scene = Scene::new();
    std::fs::write(scene.path(".in"), "some\ndata\n").unwrap();
    let mut command = scene.command(&["--nproc", "1", "--", "cat"]);
    command.stdin(std::fs::File::open(scene.path(".in")).unwrap());
    assert_eq!(scene.start(command).wait().expect_code(0).stdout(), "some\ndata\n");
    let mut command = scene.command(&["--nproc", "3", "--stdin-rank", "1", "--", "cat"]);
    command.stdin(std::fs::File::open(scene.path(".in")).unwrap());
    assert_eq!(scene.start(command).wait().expect_code(0).stdout(), "[rank 1] some\n[rank 1] data\n");
}

#[test]
fn workers_lead_their_own_process_groups() {
    let scene = Scene::new();
    scene.sh(2, &[], r#"read -r _ _ _ _ group _ < /proc/$$/stat; test "$group" = $$"#).expect_code(0);
}
