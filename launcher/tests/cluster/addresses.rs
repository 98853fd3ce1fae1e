//! Which node leads, and by which address, where names and addresses mislead.

use crate::harness::{Cluster, Launch, WORK, count_lines, with_short_lease};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Starts a launcher on a node with these variables.
fn start_in<'a>(cluster: &'a Cluster, node: usize, vars: &[(&str, &str)], args: &[&str]) -> Launch<'a> {
    let mut command = cluster.command(&with_short_lease(&[args, &["--", "sh", "-c", WORK]].concat()));
    command.envs(vars.iter().copied());
    cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
}

/// Lets two launchers run, and expects that the one on node 0 leads.
#[track_caller]
fn expect_run<'a>(cluster: &'a Cluster, start: impl Fn(usize) -> Launch<'a>) {
    let launches = [0, 1].map(start);
    cluster.wait_for_workers(0..2, 0);
    let done = cluster.finish(launches);
    done[0].expect_stderr("n0 leads the run at");
    assert_eq!(count_lines(&done, "leads the run at"), 1);
}

#[test]
fn one_node_leads_although_all_could_bind_its_address() {
    let Ok(cluster) = Cluster::new(2) else { return };
    for node in cluster.network.nodes() {
        let script = "echo 1 > /proc/sys/net/ipv4/ip_nonlocal_bind";
        assert!(node.enter(Command::new("sh").args(["-c", script])).status().unwrap().success());
    }
    expect_run(&cluster, |node| cluster.start(node, "2", &[], WORK));
}

#[test]
fn the_first_pod_leads_although_its_name_is_wrong_or_absent() {
    for wrong in ["", "10.77.0.2 train-0.train\n"] {
        let Ok(cluster) = Cluster::new(2) else { return };
        let append = |node: usize, line: &str| {
            let hosts = cluster.network[node].hosts();
            // In place: the file is mounted.
            fs::write(&hosts, fs::read_to_string(&hosts).unwrap() + line).unwrap();
        };
        append(0, wrong);
        append(1, "10.77.0.1 train-0.train\n");
        expect_run(&cluster, |node| {
            let (index, pod) = (node.to_string(), format!("train-{node}"));
            let vars = [("JOB_COMPLETION_INDEX", index.as_str()), ("HOSTNAME", &pod)];
            let args = ["--nnodes=2", "--rdzv-endpoint=train-0.train:29500", "--rdzv-secret=secret"];
            start_in(&cluster, node, &vars, &args)
        });
    }
}

/// As `scontrol show node` of Slurm 22.05.
const SCONTROL: &str = "#!/bin/sh
[ \"$*\" = 'show node --oneliner a0' ] || exit 1
echo NodeName=a0 Arch=x86_64 CPUAlloc=1 NodeAddr=10.77.0.1 NodeHostName=a0 Port=17001 State=ALLOCATED
";

#[test]
fn nodes_of_slurm_without_names_use_slurms_addresses() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let tool = cluster.scene.path("bin/scontrol");
    fs::create_dir(tool.parent().unwrap()).unwrap();
    fs::write(&tool, SCONTROL).unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", tool.parent().unwrap().display(), std::env::var("PATH").unwrap());
    for endpoint in [&[][..], &["--rdzv-endpoint", "a0:29500"]] {
        let _ = fs::remove_file(cluster.scene.path("go"));
        expect_run(&cluster, |node| {
            let node_id = node.to_string();
            let vars = [
                ("PATH", path.as_str()),
                ("SLURM_JOB_ID", "71"),
                ("SLURM_JOB_NUM_NODES", "2"),
                ("SLURM_JOB_NODELIST", "a[0-1]"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_STEP_NUM_NODES", "2"),
                ("SLURM_STEP_NODELIST", "a[0-1]"),
                ("SLURM_STEP_NUM_TASKS", "2"),
                ("SLURM_STEP_TASKS_PER_NODE", "1(x2)"),
                ("SLURM_PROCID", &node_id),
                ("SLURM_NODEID", &node_id),
                ("SLURM_LOCALID", "0"),
            ];
            start_in(&cluster, node, &vars, &[endpoint, &["--rdzv-secret", "secret"]].concat())
        });
        for rank in 0..2 {
            fs::remove_file(cluster.scene.path(&format!("ready.{rank}.0"))).unwrap();
        }
    }
}
