//! The clocks and processes of a test's nodes. Tests of the launcher see that their network fails as told.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use dtrain_test_kit::network::{Addresses, Network};
use dtrain_test_kit::process::{Signal, signal, wait_until};

fn output(network: &Network, node: usize, script: &str) -> String {
    let output = network[node].enter(Command::new("sh").args(["-c", script])).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn monotonic_clocks_differ_as_told() {
    let Ok(network) = Network::with(Addresses::V4, &[0, 1_000_000]) else { return };
    let uptime = |node| -> f64 {
        let text = output(&network, node, "cat /proc/uptime");
        text.split_whitespace().next().unwrap().parse().unwrap()
    };
    let difference = uptime(1) - uptime(0);
    assert!((999_999.0..1_000_100.0).contains(&difference), "{difference}");
}

#[test]
fn a_command_keeps_its_process_folder_and_variables_and_dies_with_the_node() {
    let folder = tempfile::tempdir().unwrap();
    let Ok(network) = Network::new(1) else { return };
    let mut command = Command::new("sh");
    let script = "echo \"$$ $PWD $A ${HOME-unset}\"; sleep 1000 & wait";
    command.args(["-c", script]).env("A", "a b").env_remove("HOME").current_dir(folder.path());
    let begun = Instant::now();
    let mut child = network[0].enter(&command).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    assert_eq!(line, format!("{} {} a b unset\n", child.id(), folder.path().display()));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    wait_until("the shell's child to run", || network[0].processes().len() == 2);
    let pids = network[0].processes();
    assert!(pids.contains(&child.id()));

    signal(child.id(), Signal::TERM);
    assert!(!child.wait().unwrap().success());
    assert_eq!(network[0].processes().len(), 1, "the orphan is still seen");
    drop(network);
    let remaining = pids.iter().find(|pid| std::path::Path::new(&format!("/proc/{pid}/exe")).exists());
    assert_eq!(remaining, None);
}
