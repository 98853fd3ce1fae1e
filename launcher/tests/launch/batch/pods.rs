//! Manifests of Kubernetes, by stand-ins of kubectl and a cluster.

use super::systems::PROGRAM;
use crate::harness::Scene;
use dtrain_test_kit::network::Network;
use dtrain_test_kit::systems::Queue;
use dtrain_test_kit::systems::pods::{Cluster, End};
use std::fs;

/// The image is this machine.
pub(super) const POD: [&str; 4] = ["--container", "team/dtrain", "--volume", "scratch:/mnt"];

/// Submits a program to Kubernetes and returns what kubectl answered.
fn submit_pods(scene: &Scene, flags: &[&str], program: &str) -> String {
    let args = [&POD[..], &["--run-dir", "/mnt/logs"], flags, &["--", "sh", "-c", program]].concat();
    let submitted = Queue::new(scene, "k8s").submit(&args);
    submitted.expect_code(0).expect_stderr("watch it with `kubectl get pods --watch`");
    submitted.stdout().trim().to_owned()
}

#[test]
fn pods_of_two_nodes_start_again_after_code_75() {
    let Ok(network) = Network::new(2) else { return };
    let scene = Scene::new();
    let flags = ["--nodes", "2", "--name", "two", "--max-requeues", "1"];
    assert_eq!(submit_pods(&scene, &flags, &format!("cd /mnt\n{PROGRAM}")), "two");
    let cluster = Cluster::new(&scene, &network, &[]);
    let mut job = cluster.job("two");
    assert_eq!(job.run(), End::Complete, "{}", job.stderr());
    for index in 0..2 {
        assert_eq!(job.codes(index), [Some(75), Some(0)], "{}", job.stderr());
        // Each node has the volume.
        assert!(cluster.claim("scratch").join(format!("again.{index}")).is_dir());
    }
    for (index, done) in job.ended.iter().filter(|(_, done)| done.code == Some(0)) {
        assert_eq!(done.stdout(), format!("[rank {index}] rank {index} of 2\n"));
    }
    network.wait_until_empty();
}

/// Modules or an image may take longer than the margin. The pod's deadline counts from its own start.
#[test]
fn a_pod_that_starts_late_has_time_to_stop_at_its_deadline() {
    let Ok(network) = Network::new(1) else { return };
    let scene = Scene::new();
    fs::write(scene.path(".setup.sh"), "sleep 3\n").unwrap();
    let setup = scene.path(".setup.sh").display().to_string();
    let limit = ["--name", "late", "--time", "5 s", "--signal-before", "1 s", "--max-requeues", "1"];
    let program = "[ -e /mnt/saved ] && exit 0
        trap 'sleep 3; : > /mnt/saved; exit 75' TERM; while :; do sleep 0.05; done";
    submit_pods(&scene, &[&limit[..], &["--env-setup", &setup]].concat(), program);
    let cluster = Cluster::new(&scene, &network, &[]);
    let mut job = cluster.job("late");
    assert_eq!((job.run(), job.codes(0)), (End::Complete, vec![Some(75), Some(0)]), "{}", job.stderr());
    network.wait_until_empty();
}

#[test]
fn a_second_submission_replaces_an_ended_job_only() {
    let Ok(network) = Network::new(2) else { return };
    let scene = Scene::new();
    let program = ": > /mnt/ready; until [ -e /mnt/go ]; do sleep 0.05; done";
    let args = ["--nodes", "2", "--name", "two", "--run-dir", "/mnt/logs", "--", "sh", "-c", program];
    let args = [&POD[..], &args].concat();
    let cluster = Cluster::new(&scene, &network, &[]);
    for _ in 0..2 {
        Queue::new(&scene, "k8s").submit(&args).expect_code(0);
        let mut job = cluster.job("two");
        let (ready, go) = (cluster.claim("scratch").join("ready"), cluster.claim("scratch").join("go"));
        job.run_until("the program", |_| ready.exists());
        let before = fs::read_dir(scene.path(".spool")).unwrap().count();
        let words = "the job two of an earlier submission has not ended; wait for it, delete it by `kubectl delete job two`";
        Queue::new(&scene, "k8s").submit(&args).expect_code(2).expect_stderr(words);
        assert_eq!(fs::read_dir(scene.path(".spool")).unwrap().count(), before, "nothing was replaced");
        fs::write(&go, "").unwrap();
        assert_eq!((job.run(), job.codes(0)), (End::Complete, vec![Some(0)]), "{}", job.stderr());
        fs::remove_file(ready).unwrap();
        fs::remove_file(go).unwrap();
    }
    // A deleted job leaves its secret and service.
    assert_eq!(cluster.kubectl(&["delete", "job", "two"]).stdout(), "job.batch \"two\" deleted\n");
    Queue::new(&scene, "k8s").submit(&args).expect_code(0);
    network.wait_until_empty();
}

/// Returns the objects that exist.
fn objects(scene: &Scene) -> Vec<String> {
    let names = fs::read_dir(scene.path(".spool/objects")).unwrap();
    let mut names: Vec<_> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const PROGRAM_OF_PODS: [&str; 6] = ["--name", "two", "--run-dir", "/mnt/logs", "--", "true"];

#[test]
fn objects_of_others_are_never_deleted() {
    for (object, words) in [
        ("jobs.batch.two", "jobs.batch/two"),
        ("services.two", "services/two"),
        ("secrets.two-rendezvous", "secrets/two-rendezvous"),
    ] {
        let scene = Scene::new();
        let queue = Queue::new(&scene, "k8s");
        fs::create_dir_all(scene.path(".spool/objects")).unwrap();
        fs::write(scene.path(".spool/objects").join(object), "").unwrap();
        fs::write(scene.path(".spool/two.ended"), "Complete").unwrap();
        let args = [&POD[..], &["--nodes", "2"], &PROGRAM_OF_PODS].concat();
        queue.submit(&args).expect_code(2).expect_stderr(&format!(
            "{words} exists, and `dtrain batch` has not made it; delete it by `kubectl delete {words}`, or give another"
        ));
        assert_eq!(objects(&scene), [object]);
    }
}

#[test]
fn a_first_submission_deletes_nothing_and_one_pod_has_no_service() {
    let scene = Scene::new();
    let args = [&POD[..], &PROGRAM_OF_PODS].concat();
    Queue::new(&scene, "k8s").submit_with(&args, &[("FORBID", "delete")]).expect_code(0);
    assert_eq!(objects(&scene), ["jobs.batch.two"]);
}

#[test]
fn a_submission_that_is_refused_deletes_nothing() {
    let scene = Scene::new();
    let queue = Queue::new(&scene, "k8s");
    let args = [&POD[..], &["--nodes", "2"], &PROGRAM_OF_PODS].concat();
    queue.submit(&args).expect_code(0);
    fs::write(scene.path(".spool/two.ended"), "Failed").unwrap();
    let refused = queue.submit_with(&args, &[("REFUSE", "exceeded quota")]);
    refused.expect_code(2).expect_stderr("exceeded quota");
    assert_eq!(objects(&scene), ["jobs.batch.two", "secrets.two-rendezvous", "services.two"]);
    queue.submit(&args).expect_code(0);
}

#[test]
fn pods_have_a_bound_and_other_codes_fail_the_job() {
    let Ok(network) = Network::new(2) else { return };
    for (program, end, starts) in [
        ("exit 75", End::BackoffLimitExceeded, vec![Some(75); 3]),
        ("exit 7", End::PodFailurePolicy, vec![Some(7)]),
    ] {
        let scene = Scene::new();
        submit_pods(&scene, &["--name", "bound", "--max-requeues", "2"], program);
        let cluster = Cluster::new(&scene, &network, &[]);
        let mut job = cluster.job("bound");
        assert_eq!((job.run(), job.codes(0)), (end, starts), "{}", job.stderr());
    }
    // The other node does not start again either.
    let scene = Scene::new();
    submit_pods(&scene, &["--nodes", "2", "--name", "two"], "[ $RANK = 1 ] && exit 7; sleep 60");
    let cluster = Cluster::new(&scene, &network, &[]);
    let mut job = cluster.job("two");
    assert_eq!(job.run(), End::PodFailurePolicy, "{}", job.stderr());
    assert_eq!((job.codes(0).len(), job.codes(1)), (1, vec![Some(7)]), "{}", job.stderr());
    network.wait_until_empty();
}

#[test]
fn an_array_of_pods_is_a_job_for_each_run() {
    let Ok(network) = Network::new(1) else { return };
    let scene = Scene::new();
    let program = "cd /mnt; mkdir again-$(hostname) 2>/dev/null && exit 75; exit 0";
    submit_pods(&scene, &["--array", "2", "--name", "runs"], program);
    let cluster = Cluster::new(&scene, &network, &[]);
    for name in ["runs-0", "runs-1"] {
        let mut job = cluster.job(name);
        assert_eq!((job.run(), job.codes(0)), (End::Complete, vec![Some(75), Some(0)]), "{}", job.stderr());
        let again = cluster.claim("scratch").join(format!("again-{name}-0"));
        assert!(again.is_dir(), "the pod's host name");
    }
    for run in ["logs/0", "logs/1"] {
        assert!(cluster.claim("scratch").join(run).is_dir(), "{run}");
    }
}

#[test]
fn pods_end_well_when_they_are_evicted_or_deleted() {
    let Ok(network) = Network::new(1) else { return };
    let scene = Scene::new();
    let program = "trap 'exit 75' TERM; : > /mnt/ready; while :; do sleep 0.05; done";
    submit_pods(&scene, &["--name", "asked", "--max-requeues", "0"], program);
    let cluster = Cluster::new(&scene, &network, &[]);
    let ready = cluster.claim("scratch").join("ready");
    let mut job = cluster.job("asked");
    job.run_until("the program", |_| ready.exists());
    fs::remove_file(&ready).unwrap();
    // No requeue is left, and this one does not count.
    job.evict(0);
    job.run_until("the second program", |_| ready.exists());
    assert_eq!(cluster.kubectl(&["delete", "job", "asked"]).stdout(), "job.batch \"asked\" deleted\n");
    assert_eq!((job.run(), job.codes(0)), (End::Deleted, vec![Some(75); 2]), "{}", job.stderr());
    network.wait_until_empty();
}
