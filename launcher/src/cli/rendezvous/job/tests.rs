#![allow(clippy::unwrap_used)]

use super::super::{Rendezvous, RendezvousArgs};
use crate::cli::parse::launch_words;
use dtrain_common::env::job::{
    HOSTNAME, JOB_COMPLETION_INDEX, SLURM_JOB_ID, SLURM_JOB_NUM_NODES, SLURM_LOCALID, SLURM_NODEID,
    SLURM_PROCID, SLURM_STEP_ID, SLURM_STEP_NODELIST, SLURM_STEP_NUM_NODES, SLURM_STEP_NUM_TASKS,
    SLURM_STEP_TASKS_PER_NODE,
};
use dtrain_job::{Job, Surroundings};

/// The second node of a step of Slurm.
const STEP: [(&str, &str); 10] = [
    (SLURM_JOB_ID, "71"),
    (SLURM_JOB_NUM_NODES, "2"),
    (SLURM_STEP_ID, "0"),
    (SLURM_STEP_NUM_NODES, "2"),
    (SLURM_STEP_NODELIST, "n[1-2]"),
    (SLURM_STEP_NUM_TASKS, "2"),
    (SLURM_STEP_TASKS_PER_NODE, "1(x2)"),
    (SLURM_PROCID, "1"),
    (SLURM_NODEID, "1"),
    (SLURM_LOCALID, "0"),
];

fn job(variables: &[(&str, &str)]) -> Job {
    // A later value replaces an earlier one.
    let variable = |name: &str| {
        let found = variables.iter().rev().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    Job::detect(Surroundings { variable: &variable, file: &|_| None, command: &|_| None }).unwrap()
}

fn step(changes: &[(&str, &str)]) -> Job {
    job(&[&STEP, changes].concat())
}

fn complete(line: &[&str], job: &Job) -> anyhow::Result<RendezvousArgs> {
    let mut args = launch_words(line).unwrap().contract.rendezvous;
    args.expect_one_task(job)?;
    args.complete(job)?;
    Ok(args)
}

#[track_caller]
fn rendezvous(line: &[&str], job: &Job) -> Rendezvous {
    complete(line, job).unwrap().rendezvous().unwrap().unwrap()
}

#[track_caller]
fn refused(line: &[&str], job: &Job, words: &[&str]) {
    let error = complete(line, job).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
}

#[test]
fn a_task_on_each_node_needs_no_flags() {
    for (node, leads) in [("0", true), ("1", false)] {
        let job = step(&[(SLURM_NODEID, node), (SLURM_PROCID, node)]);
        let found = rendezvous(&[], &job);
        assert_eq!((found.nodes.clone(), found.node_rank), (2..=2, node.parse().ok()));
        assert_eq!((found.endpoint.host.as_str(), found.endpoint.port), ("n1", 20_071));
        assert_eq!((found.run_id.as_deref(), found.leads), (Some("71.0"), Some(leads)));
        assert!(!found.is_static, "any free port is for the workers' store");
        let notes = complete(&[], &job).unwrap().check().unwrap();
        let note = format!("node rank {node} of 2 nodes, which meet at n1:20071, from Slurm job 71");
        assert_eq!(notes, [note]);
    }
}

#[test]
fn flags_override_the_job() {
    let job = step(&[]);
    let elastic = rendezvous(&["--nnodes=1:2", "--rdzv-id=own", "--master-port=4000"], &job);
    assert_eq!((elastic.nodes, elastic.run_id.as_deref()), (1..=2, Some("own")));
    assert_eq!((elastic.endpoint.host.as_str(), elastic.endpoint.port), ("n1", 4000));
    let given = rendezvous(&["--rdzv-endpoint=head:5000"], &job);
    assert_eq!((given.endpoint.host.as_str(), given.endpoint.port), ("head", 5000));
    // The node with the endpoint leads.
    assert_eq!((given.nodes, given.node_rank, given.leads), (2..=2, Some(1), None));
    assert_eq!(given.nodes_of_job, Some(2));
    assert_eq!(rendezvous(&["--node-rank=1"], &job).endpoint.host, "n1");
}

#[test]
fn a_flag_that_contradicts_the_job_is_refused_with_both() {
    let job = step(&[]);
    refused(&["--nnodes=3"], &job, &["--nnodes 3", "SLURM_STEP_NUM_NODES=2"]);
    refused(&["--node-rank=0"], &job, &["--node-rank 0", "SLURM_NODEID=1"]);
}

#[test]
fn one_node_by_a_flag_is_a_run_of_each_node() {
    for line in [&["--nnodes=1"][..], &["--nnodes=1:1"]] {
        let args = complete(line, &step(&[])).unwrap();
        assert!(!args.is_several());
        let note = "--nnodes 1: each of the 2 nodes of Slurm job 71 is a separate run";
        assert_eq!(args.check().unwrap(), [note]);
    }
}

#[test]
fn several_tasks_on_a_node_need_a_flag() {
    let job = step(&[(SLURM_STEP_NUM_TASKS, "4"), (SLURM_STEP_TASKS_PER_NODE, "2(x2)")]);
    refused(&[], &job, &["Slurm job 71", "SLURM_STEP_TASKS_PER_NODE=2", "--standalone"]);
    let own = complete(&["--nnodes=2", "--rdzv-endpoint=head"], &job).unwrap();
    assert_eq!(own.rendezvous().unwrap().unwrap().node_rank, None);
}

#[test]
fn one_node_of_a_job_is_a_run_of_one_node() {
    let one = [
        (SLURM_STEP_NUM_NODES, "1"),
        (SLURM_STEP_NODELIST, "n1"),
        (SLURM_STEP_NUM_TASKS, "1"),
        (SLURM_STEP_TASKS_PER_NODE, "1"),
        (SLURM_PROCID, "0"),
        (SLURM_NODEID, "0"),
    ];
    let args = complete(&[], &step(&one)).unwrap();
    assert_eq!((args.is_several(), args.check().unwrap()), (false, Vec::new()));
    // Steps of one node each may form a run by flags.
    let parts = rendezvous(&["--nnodes=2", "--node-rank=1", "--master-addr=n1"], &step(&one));
    assert_eq!((parts.node_rank, parts.endpoint.host.as_str()), (Some(1), "n1"));
}

#[test]
fn a_batch_script_alone_has_a_note() {
    let script = job(&[(SLURM_JOB_ID, "71"), (SLURM_JOB_NUM_NODES, "2"), (SLURM_PROCID, "0")]);
    let args = complete(&[], &script).unwrap();
    assert!(!args.is_several());
    let notes = args.check().unwrap();
    assert!(notes[0].starts_with("Slurm job 71 has 2 nodes, but only this one runs dtrain"), "{notes:?}");
    assert_eq!(complete(&["--nnodes=1"], &script).unwrap().check().unwrap(), [""; 0]);
}

#[test]
fn kubernetes_needs_only_the_number_of_nodes() {
    let pod = job(&[(JOB_COMPLETION_INDEX, "1"), (HOSTNAME, "train-1")]);
    assert!(!complete(&[], &pod).unwrap().is_several());
    let found = rendezvous(&["--nnodes=2"], &pod);
    assert_eq!((found.node_rank, found.leads), (Some(1), Some(false)));
    assert_eq!((found.endpoint.host.as_str(), found.run_id.as_deref()), ("train-0", Some("train")));
    assert_eq!(found.nodes_of_job, None, "Kubernetes replaces pods");
}

#[test]
fn the_node_of_the_job_whose_host_is_the_endpoint_leads() {
    for (host, node) in [("n1", "0"), ("N1.cluster.local", "0"), ("n2", "1")] {
        for (rank, leads) in [("0", node == "0"), ("1", node == "1")] {
            let job = step(&[(SLURM_NODEID, rank), (SLURM_PROCID, rank)]);
            for line in [["--rdzv-endpoint", host], ["--master-addr", host]] {
                let found = rendezvous(&line, &job);
                assert_eq!(found.leads, Some(leads), "{line:?} on node {rank}");
                assert_eq!(found.endpoint.host, host, "as the user wrote it");
            }
        }
    }
    let job = step(&[]);
    assert_eq!(
        rendezvous(&["--rdzv-endpoint=10.0.0.1"], &job).leads,
        None,
        "the machine knows its addresses"
    );
    assert_eq!(rendezvous(&["--rdzv-endpoint=n1", "--rdzv-conf=is_host=true"], &job).leads, Some(true));
    for endpoint in ["train-0.train", "train", "10.0.0.1"] {
        let leads =
            |index| rendezvous(&["--nnodes=2", "--rdzv-endpoint", endpoint], &job_of_pod(index)).leads;
        assert_eq!([leads("0"), leads("1")], [Some(true), Some(false)], "{endpoint}");
    }
}

fn job_of_pod(index: &str) -> Job {
    job(&[(JOB_COMPLETION_INDEX, index), (HOSTNAME, &format!("train-{index}"))])
}

#[test]
fn a_host_without_an_address_gets_that_of_the_job_except_on_the_leader() {
    let find = |line: &[&str], rank| {
        let job = step(&[(SLURM_NODEID, rank), (SLURM_PROCID, rank)]);
        let mut args = complete(line, &job).unwrap();
        args.find_host(|host| (host == "n1").then(|| "10.0.0.1".to_owned()));
        (args.rendezvous().unwrap().unwrap().endpoint.host, args.check().unwrap())
    };
    assert_eq!(find(&[], "0").0, "n1");
    let (host, notes) = find(&[], "1");
    assert_eq!(host, "10.0.0.1");
    assert!(notes[0].contains("the address of n1 is 10.0.0.1"), "{notes:?}");
    assert_eq!(find(&["--master-addr=n1"], "1").0, "10.0.0.1");
    assert_eq!(find(&["--rdzv-endpoint=n2"], "0").0, "n2", "its name is known");
}
