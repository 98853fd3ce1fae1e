//! Agents that are killed, and disks that do not answer.

use crate::harness::{Cluster, ENDPOINT, Launch, WORK};
use dtrain_test_kit::need::{Need, require};
use dtrain_test_kit::process::{Signal, kill, output_text, signal, wait_until};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

/// A lease of 20 s: nobody waits for its end.
const LONG: [&str; 4] = ["--max-restarts", "3", "--rdzv-conf", "keep_alive_max_attempt=100"];

/// Starts two launchers with a temporary folder each; `flags` follow those of all.
fn start<'a>(cluster: &'a Cluster, nnodes: &str, flags: &[&str]) -> Vec<Launch<'a>> {
    let start = |node: usize| {
        let before = ["--nnodes", nnodes, "--rdzv-endpoint", ENDPOINT, "--rdzv-secret", "secret"];
        let mut command = cluster.scene.command(&[&before[..], flags, &["--", "sh", "-c", WORK]].concat());
        let temporary = cluster.scene.path(&format!("tmp{node}"));
        fs::create_dir_all(&temporary).unwrap();
        command.env("TMPDIR", temporary);
        cluster.scene.start_as(&format!(".n{node}"), cluster.network[node].enter(&command))
    };
    let launches = vec![start(0), start(1)];
    cluster.wait_for_workers(0..2, 0);
    launches
}

fn entries(folder: &Path) -> Vec<std::path::PathBuf> {
    fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn nobody_waits_for_the_lease_of_a_launcher_or_guardian_that_was_killed_and_nothing_is_left() {
    for victim in ["launcher", "guardian"] {
        let Ok(cluster) = Cluster::new(2) else { return };
        let mut launches = start(&cluster, "1:2", &LONG);
        let killed = launches.remove(1);
        let pid = if victim == "launcher" { cluster.launcher(1) } else { killed.child.id() };
        let begun = Instant::now();
        signal(pid, Signal::KILL);
        cluster.wait_for_workers([0], 1);
        assert!(begun.elapsed() < Duration::from_secs(15), "{victim}: {:?}", begun.elapsed());
        assert_ne!(killed.wait_leaving_processes().code, Some(0));
        cluster.finish(launches);
        cluster.expect_one_writer();
        for node in 0..2 {
            let left = entries(&cluster.scene.path(&format!("tmp{node}")));
            assert!(left.is_empty(), "{victim}: {left:?}");
        }
    }
}

#[test]
fn a_later_launch_removes_the_folder_of_an_agent_that_was_killed_with_its_guardian() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let mut launches =
        start(&cluster, "1:2", &["--max-restarts", "3", "--rdzv-conf", "keep_alive_max_attempt=5"]);
    let killed = launches.remove(1);
    for pid in [cluster.launcher(1), killed.child.id()] {
        kill(pid, Signal::KILL);
    }
    cluster.wait_for_workers([0], 1);
    let folder = cluster.scene.path("tmp1");
    let [left] = &entries(&folder)[..] else { panic!("{:?}", entries(&folder)) };
    // One that is used, and just as old.
    let [used] = &entries(&cluster.scene.path("tmp0"))[..] else { panic!() };
    for folder in [left, used] {
        let old = SystemTime::now() - Duration::from_secs(120);
        File::open(folder).unwrap().set_modified(old).unwrap();
    }
    for node in 0..2 {
        let mut command = cluster.scene.command(&["--", "sleep", "1"]);
        command.env("TMPDIR", cluster.scene.path(&format!("tmp{node}")));
        cluster.scene.start_as(".later", command).wait_leaving_processes().expect_code(0);
    }
    wait_until("the folder of the killed agent to go", || !left.exists());
    assert!(used.exists());
    cluster.finish(launches);
}

/// A separate file system on a node, as its `TMPDIR`, whose writes can be stopped. Drop lets them continue.
struct Disk<'a> {
    cluster: &'a Cluster,
}

impl Disk<'_> {
    /// Runs a shell command on node 1, with the folder as `$1` and the file behind it as `$2`.
    fn sh(&self, script: &str) -> Command {
        let [folder, image] = ["tmp1", "image"].map(|name| self.cluster.scene.path(name));
        self.cluster.network[1].enter(Command::new("sh").args(["-ec", script, "sh"]).args([folder, image]))
    }
}

impl Drop for Disk<'_> {
    fn drop(&mut self) {
        let _ = self.sh("fsfreeze -u \"$1\" 2>/dev/null").status();
    }
}

#[test]
fn a_temporary_folder_that_does_not_answer_costs_no_lease() {
    let Ok(cluster) = Cluster::new(2) else { return };
    let disk = Disk { cluster: &cluster };
    let script =
        r#"mkdir "$1"; truncate -s 8M "$2"; mkfs.ext4 -q "$2"; mount -o loop "$2" "$1"; fsfreeze --version"#;
    let made = disk.sh(script).output().unwrap();
    let found = made.status.success().then_some(()).ok_or_else(|| output_text(&made));
    let Ok(()) = require(Need::Mount, found) else { return };
    let launches = start(&cluster, "2", &["--rdzv-conf", "keep_alive_max_attempt=5"]);
    assert!(disk.sh("fsfreeze -f \"$1\"").status().unwrap().success());
    // The lease is 1 s.
    std::thread::sleep(Duration::from_secs(3));
    let lost = launches.iter().map(Launch::stderr).find(|text| text.contains("lost"));
    assert_eq!(lost, None);
    assert!(disk.sh("fsfreeze -u \"$1\"").status().unwrap().success());
    cluster.finish(launches);
}
