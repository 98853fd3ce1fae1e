#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use super::*;
use crate::env::{OMP_NUM_THREADS, TORCH_NCCL_ASYNC_ERROR_HANDLING, omp_threads};

fn read(vars: &[(&str, &str)]) -> Result<WorkerEnv, EnvError> {
    let map: BTreeMap<_, _> = vars.iter().copied().collect();
    WorkerEnv::from_lookup(|name| map.get(name).map(|value| value.to_string()))
}

const FOUR: [(&str, &str); 4] =
    [(RANK, "3"), (WORLD_SIZE, "4"), (MASTER_ADDR, "node0"), (MASTER_PORT, "4242")];

fn with<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    FOUR.iter().chain(more).copied().collect()
}

#[test]
fn no_environment_is_rank_0_of_1() {
    let env = read(&[]).unwrap();
    assert_eq!(env, WorkerEnv::single());
    assert_eq!((env.rank, env.world_size), (0, 1));
    assert_eq!((env.master_addr.as_str(), env.master_port), ("127.0.0.1", 29500));
}

#[test]
fn addresses_alone_do_not_make_a_distributed_start() {
    assert_eq!(read(&[(MASTER_ADDR, "host"), (MASTER_PORT, "1")]).unwrap(), WorkerEnv::single());
}

#[test]
fn each_essential_variable_is_missed_by_name() {
    for missing in ESSENTIAL {
        let vars: Vec<_> = FOUR.into_iter().filter(|(name, _)| *name != missing).collect();
        let error = read(&vars).unwrap_err();
        assert!(matches!(error, EnvError::Missing { missing: m, .. } if m == missing), "{error:?}");
        assert!(error.to_string().contains(missing), "{error}");
    }
}

#[test]
fn the_rest_follows_from_rank_and_size() {
    let env = read(&FOUR).unwrap();
    assert_eq!((env.rank, env.local_rank, env.group_rank), (3, 3, 0));
    assert_eq!((env.world_size, env.local_world_size, env.group_world_size), (4, 4, 1));
    assert_eq!((env.restart_count, env.max_restarts, env.use_agent_store), (0, 0, false));

    let env = read(&with(&[(GROUP_WORLD_SIZE, "2")])).unwrap();
    assert_eq!((env.local_rank, env.group_rank, env.local_world_size), (1, 1, 2));
}

#[test]
fn set_variables_win() {
    let env = read(&with(&[
        (LOCAL_RANK, "0"),
        (LOCAL_WORLD_SIZE, "1"),
        (GROUP_RANK, "2"),
        (GROUP_WORLD_SIZE, "3"),
        (TORCHELASTIC_RESTART_COUNT, "1"),
        (TORCHELASTIC_MAX_RESTARTS, "7"),
        (TORCHELASTIC_RUN_ID, "job"),
        (TORCHELASTIC_USE_AGENT_STORE, "True"),
        (TORCHELASTIC_ERROR_FILE, "/x/error.json"),
    ]))
    .unwrap();
    assert_eq!((env.local_rank, env.local_world_size, env.group_rank, env.group_world_size), (0, 1, 2, 3));
    assert_eq!((env.restart_count, env.max_restarts), (1, 7));
    assert_eq!(env.run_id, "job");
    assert!(env.use_agent_store);
    assert_eq!(env.error_file, Some(PathBuf::from("/x/error.json")));
}

#[test]
fn bad_values_are_named() {
    for (name, value) in [
        (RANK, "-1"),
        (RANK, ""),
        (RANK, "x"),
        (RANK, "4"),
        (WORLD_SIZE, "0"),
        (WORLD_SIZE, "2.0"),
        (MASTER_PORT, "65536"),
        (MASTER_PORT, ""),
        (MASTER_ADDR, " "),
        (MASTER_ADDR, "two words"),
        (LOCAL_RANK, "9"),
        (LOCAL_WORLD_SIZE, "0"),
        (GROUP_RANK, "1"),
        (ROLE_RANK, "4"),
        (ROLE_WORLD_SIZE, "0"),
        (TORCHELASTIC_RESTART_COUNT, "-1"),
        (TORCHELASTIC_USE_AGENT_STORE, "perhaps"),
    ] {
        let vars: Vec<_> = FOUR.into_iter().filter(|(n, _)| *n != name).chain([(name, value)]).collect();
        let error = read(&vars).unwrap_err();
        assert!(error.to_string().contains(name), "{name}={value}: {error}");
    }
}

#[test]
fn vars_round_trip() {
    let mut env = WorkerEnv::single();
    env.rank = 5;
    (env.local_rank, env.gpu) = (1, 1);
    env.group_rank = 2;
    (env.world_size, env.local_world_size, env.group_world_size) = (6, 2, 3);
    env.master_addr = "::1".into();
    env.master_port = 0;
    env.max_restarts = 3;
    env.restart_count = 2;
    env.run_id = "a run".into();
    env.use_agent_store = true;
    env.error_file = Some("/tmp/e.json".into());
    let map: BTreeMap<_, _> = env.vars().into_iter().collect();
    assert_eq!(map.len(), 16, "one value for every variable of the contract");
    assert_eq!(WorkerEnv::from_lookup(|name| map.get(name).cloned()).unwrap(), env);
    assert!(!map.contains_key(OMP_NUM_THREADS) && !map.contains_key(TORCH_NCCL_ASYNC_ERROR_HANDLING));
}

#[test]
fn from_process_reads_this_process() {
    // The tests run without a launcher, or with one that sets the whole contract.
    let env = WorkerEnv::from_process().unwrap();
    assert!(env.rank < env.world_size);
}

#[test]
fn threads_share_the_cores() {
    assert_eq!(omp_threads(8, 2), 4);
    assert_eq!(omp_threads(8, 3), 2);
    assert_eq!(omp_threads(2, 8), 1);
    assert_eq!(omp_threads(4, 0), 4);
}
