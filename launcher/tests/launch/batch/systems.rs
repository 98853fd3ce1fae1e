//! Scripts of systems that are not installed here, by stand-ins of these systems.

use super::pods::POD;
use crate::harness::Scene;
use dtrain_test_kit::process::Signal;
use dtrain_test_kit::programs;
use dtrain_test_kit::runs::gpt;
use dtrain_test_kit::systems::{Queue, codes};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Every worker asks once to be started again.
pub(super) const PROGRAM: &str =
    "mkdir again.$RANK 2>/dev/null || { echo rank $RANK of $WORLD_SIZE; exit 0; }
until [ -d again.0 ] && [ -d again.1 ]; do sleep 0.05; done
exit 75";

#[test]
fn jobs_of_two_nodes_start_again_after_code_75() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        let args = ["--nodes", "2", "--name", "two", "--max-requeues", "3", "--", "sh", "-c", PROGRAM];
        let submitted = queue.submit(&args);
        submitted.expect_code(0).expect_stderr("watch it with `");
        assert_eq!(submitted.stdout().trim(), queue.first_id());
        let done = queue.drive(None);
        let last = done.last().map_or("", |done| &done.stderr);
        assert_eq!(codes(&done), [Some(75), Some(0)], "{system}: {last}");
        done[0].expect_stderr("dtrain: requeue 1 of 3");
        for rank in ["rank 0 of 2", "rank 1 of 2"] {
            assert!(done[1].stdout().contains(rank), "{system} {rank}:\n{}", done[1].stdout());
        }
        assert!(!scene.path("runs/two/requeues.json").exists(), "{system}");
    }
}

#[test]
fn requeues_have_a_bound_and_other_codes_have_none() {
    for (system, last) in [("pbs", 75), ("lsf", 1), ("flux", 75)] {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        let args = ["--max-requeues", "2", "--name", "bound", "--", "sh", "-c", "exit 75"];
        queue.submit(&args).expect_code(0);
        let done = queue.drive(None);
        assert_eq!(codes(&done), [Some(75), Some(75), Some(last)], "{system}");
        done[2].expect_stderr("it was requeued 2 times");
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        queue.submit(&["--name", "wrong", "--", "sh", "-c", "exit 7"]).expect_code(0);
        assert_eq!(codes(&queue.drive(None)), [Some(7)], "{system}");
    }
}

/// A program that leaves a result, as a training has, and ends as a killed node.
fn killed(result: &str) -> String {
    format!(
        "[ $RANK = 0 ] || exec sleep 60; mkdir -p runs/own; echo '{{\"exit_code\":'{result}'}}' > runs/own/result.json; exit 137"
    )
}

#[test]
fn the_code_of_the_job_is_that_of_its_run() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        let program = killed("$(mkdir again 2>/dev/null && echo 75 || echo 0)");
        queue.submit(&["--name", "own", "--", "sh", "-c", &program]).expect_code(0);
        assert_eq!(codes(&queue.drive(None)), [Some(75), Some(0)], "{system}");
    }
    // A node was lost, and the run continued.
    let scene = Scene::new();
    let mut queue = Queue::new(&scene, "flux");
    let args = ["--nodes", "2", "--name", "own", "--max-requeues", "0", "--", "sh", "-c", &killed("0")];
    queue.submit(&args).expect_code(0);
    assert_eq!(codes(&queue.drive(None)), [Some(0)]);
}

#[test]
fn a_result_of_an_earlier_submission_starts_no_job_again() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        fs::create_dir_all(scene.path("runs/own")).unwrap();
        fs::write(scene.path("runs/own/result.json"), "{\"exit_code\":75}").unwrap();
        let result = fs::File::options().write(true).open(scene.path("runs/own/result.json")).unwrap();
        result.set_modified(SystemTime::now() - Duration::from_secs(60)).unwrap();
        let mut queue = Queue::new(&scene, system);
        queue.submit(&["--name", "own", "--", "sh", "-c", "exit 137"]).expect_code(0);
        assert_eq!(codes(&queue.drive(None)), [Some(137)], "{system}");
    }
}

/// Gives files of this folder mode 0660, whatever the umask is.
fn set_default_acl(folder: &Path) -> rustix::io::Result<()> {
    // Version 2; owner, group and mask may do all, and others nothing.
    let entries = [(1, 7), (4, 7), (16, 7), (32, 0)]
        .map(|(tag, right)| (u16::to_le_bytes(tag), u16::to_le_bytes(right)));
    let mut list = u32::to_le_bytes(2).to_vec();
    for (tag, right) in entries {
        list.extend([&tag[..], &right, &[0xff; 4]].concat());
    }
    rustix::fs::setxattr(folder, "system.posix_acl_default", &list, rustix::fs::XattrFlags::empty())
}

#[test]
fn the_secret_needs_no_umask_and_no_trap() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        if set_default_acl(&scene.path("")) == Err(rustix::io::Errno::OPNOTSUPP) {
            return;
        }
        fs::write(scene.path(".setup.sh"), "trap ': > own-trap' EXIT\n").unwrap();
        let mut queue = Queue::new(&scene, system);
        queue.submit(&["--nodes", "2", "--env-setup", ".setup.sh", "--", "true"]).expect_code(0);
        let done = queue.drive(None);
        assert_eq!(codes(&done), [Some(0)], "{system}: {}", done[0].stderr);
        assert!(scene.path("own-trap").exists(), "{system}");
        let names = fs::read_dir(scene.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        let secrets: Vec<_> = names.filter(|name| name.to_string_lossy().ends_with(".secret")).collect();
        assert_eq!(secrets, [""; 0], "{system}");
    }
}

#[test]
fn a_job_whose_setup_takes_all_its_time_starts_again() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        fs::write(scene.path(".setup.sh"), "sleep 3\n").unwrap();
        let mut queue = Queue::new(&scene, system);
        let program = "mkdir again 2>/dev/null || exit 0
            trap 'exit 75' TERM USR1; while :; do sleep 0.05; done";
        let limit = ["--time", "2 s", "--signal-before", "1 s", "--env-setup", ".setup.sh"];
        queue.submit(&[&limit[..], &["--", "sh", "-c", program]].concat()).expect_code(0);
        let done = queue.drive(None);
        assert_eq!(codes(&done), [Some(75), Some(0)], "{system}: {}", done[0].stderr);
    }
}

#[test]
fn a_job_that_starts_again_waits_for_no_other() {
    for (system, dependency, other) in
        [("pbs", "-W depend=afterok:71", "-m ea"), ("flux", "--dependency=afterok:f1", "--urgency=20")]
    {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        let options = [format!("--directive={dependency}"), format!("--directive={other}")];
        let program = "mkdir again 2>/dev/null && exit 75; exit 0";
        queue.submit(&[&options[0], &options[1], "--", "sh", "-c", program]).expect_code(0);
        assert_eq!(codes(&queue.drive(None)), [Some(75), Some(0)], "{system}");
        let has = |script: &str, option: &str| scene.read(script).lines().any(|line| line.ends_with(option));
        assert!(has(".spool/0.SC", dependency) && !has(".spool/1.SC", dependency), "{system}");
        assert!(has(".spool/1.SC", other), "{system}");
    }
}

#[test]
fn each_submission_counts_its_requeues() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        let program = "[ -e last ] && exit 0; exit 75";
        let args = ["--max-requeues", "1", "--name", "again", "--", "sh", "-c", program];
        let mut first = Queue::new(&scene, system);
        first.submit(&args).expect_code(0);
        // The first start is requeued, and its user deletes the job then.
        let launch = first.start(None).unwrap();
        first.wait(launch).expect_code(75).expect_stderr("dtrain: requeue 1 of 1");
        fs::remove_dir_all(scene.path(".spool")).unwrap();
        let mut second = Queue::new(&scene, system);
        second.submit(&args).expect_code(0);
        let launch = second.start(None).unwrap();
        second.wait(launch).expect_code(75).expect_stderr("dtrain: requeue 1 of 1");
        let done = second.drive(None);
        done[0].expect_stderr("it was requeued 1 times");
        assert_eq!(done.len(), 1, "{system}");
    }
}

#[test]
fn the_time_limit_counts_from_the_start_of_the_job() {
    for system in ["pbs", "lsf", "flux"] {
        // Flux may know of no end.
        let endless = (system == "flux").then_some((Some("infinity"), 3500, 3600));
        let known = [(Some("1200"), 2300, 2400), (None, 3500, 3600)];
        for (elapsed, least, most) in known.into_iter().chain(endless) {
            let scene = Scene::new();
            let mut queue = Queue::new(&scene, system);
            if let Some(elapsed) = elapsed {
                fs::write(scene.path(".spool/elapsed"), elapsed).unwrap();
            }
            fs::write(scene.path(".setup.sh"), "sleep 1\n").unwrap();
            let args = ["--time", "1 h", "--signal-before", "90 s", "--env-setup", ".setup.sh", "--", "true"];
            queue.submit(&args).expect_code(0);
            let done = queue.drive(None);
            assert_eq!(codes(&done), [Some(0)], "{system}: {}", done[0].stderr);
            let (_, limit) = done[0].stderr.split_once("and killed after ").unwrap();
            let limit = limit.split_once(" (--time-limit)").unwrap().0;
            let seconds = dtrain_common::time::parse_time(limit).unwrap().as_secs();
            assert!((least..most).contains(&seconds), "{system}: {}", done[0].stderr);
        }
    }
}

#[test]
fn a_launcher_that_does_not_end_does_not_hold_the_job() {
    for system in ["pbs", "lsf"] {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        queue.submit(&["--nodes", "2", "--max-requeues", "0", "--", "sh", "-c", "exit 7"]).expect_code(0);
        let script = scene.path(".spool/0.SC");
        let text = fs::read_to_string(&script).unwrap();
        assert!(text.contains("deadline=$((SECONDS + 60))"), "{text}");
        fs::write(&script, text.replace("SECONDS + 60", "SECONDS + 2")).unwrap();
        fs::write(scene.path(".spool/hangs"), "").unwrap();
        let launch = queue.start(None).unwrap();
        let done = launch.wait_leaving_processes();
        done.expect_code(7).expect_stderr("dtrain: the launcher on node1 did not end within 60 s");
        queue.signal(Signal::KILL);
    }
}

#[test]
fn a_run_of_an_array_starts_again_alone() {
    for system in ["pbs", "lsf"] {
        let scene = Scene::new();
        let mut queue = Queue::new(&scene, system);
        let program = "mkdir again 2>/dev/null && exit 75; exit 0";
        queue.submit(&["--array", "3", "--name", "runs", "--", "sh", "-c", program]).expect_code(0);
        assert_eq!(codes(&queue.drive(Some(2))), [Some(75), Some(0)], "{system}");
        assert!(scene.path("runs/runs/2").is_dir(), "{system}");
        assert!(!scene.path("runs/runs/0").exists(), "{system}");
    }
}

#[test]
fn each_run_of_an_array_has_its_own_recipe() {
    // The trainer's stand-in writes the path of its recipe and its number of steps.
    let worker = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/kit/fixtures/dtrain-worker");
    let setup = format!(
        "export DTRAIN_WORKER={} RESOLVER={} FAKE_WORKER='grep -H ^steps \"$1\" > steps.$RANK'\n",
        worker.canonicalize().unwrap().display(),
        programs::resolver().display()
    );
    for (system, index) in [("pbs", 0), ("pbs", 1), ("lsf", 1)] {
        let scene = Scene::new();
        for (name, steps) in [("small.toml", 10), ("large.toml", 11)] {
            fs::write(scene.path(name), gpt(steps, "")).unwrap();
        }
        fs::write(scene.path(".setup.sh"), &setup).unwrap();
        let mut queue = Queue::new(&scene, system);
        let args = ["small.toml", "large.toml", "--nodes", "2", "--env-setup", ".setup.sh"];
        queue.submit(&args).expect_code(0);
        let done = queue.drive(Some(index));
        assert_eq!(codes(&done), [Some(0)], "{system}:\n{}", done[0].stderr);
        let expected = format!("runs/small/{index}/recipe.toml:steps = {}\n", 10 + index);
        for rank in 0..2 {
            assert_eq!(scene.read(&format!("steps.{rank}")), expected, "{system} {rank}");
        }
    }
}

#[test]
fn a_refusal_has_the_words_of_the_system() {
    for system in ["pbs", "lsf", "flux"] {
        let scene = Scene::new();
        let args = ["demo", "--queue", "none"];
        let refused = Queue::new(&scene, system).submit_with(&args, &[("REFUSE", "Unknown queue")]);
        refused.expect_code(2).expect_stderr("refused the job: ").expect_stderr("Unknown queue");
    }
    let scene = Scene::new();
    let args = [&POD[..], &["demo", "--run-dir", "/mnt/demo"]].concat();
    let reason = "jobs.batch \"demo\" is forbidden: exceeded quota";
    let refused = Queue::new(&scene, "k8s").submit_with(&args, &[("REFUSE", reason)]);
    refused.expect_code(2).expect_stderr(&format!(
        "kubectl refused the job: Error from server (Forbidden): error when creating \"STDIN\": {reason}"
    ));
}
