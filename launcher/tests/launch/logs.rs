//! Logs of bounded size, and logs that cannot be written.

use crate::harness::Scene;
use dtrain_test_kit::need::{self, Need};
use std::collections::BTreeMap;
use std::fs;
use std::process::{Command, Stdio};

/// Returns the numbers of the lines `RANK:NUMBER`, by rank; every line must be whole.
fn numbers(text: &str, prefix: impl Fn(&str) -> &str) -> BTreeMap<String, Vec<u32>> {
    let mut numbers: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        let (rank, number) = prefix(line).split_once(':').unwrap();
        let number = number.strip_suffix(" end").unwrap_or_else(|| panic!("torn: {line:?}"));
        numbers.entry(rank.to_owned()).or_default().push(number.parse().unwrap());
    }
    numbers
}

const LINES: u32 = 100_000;
/// Prints as fast as possible.
const COUNT: &str =
    r#"exec awk -v r=$RANK -v n=100000 'BEGIN { for (i = 0; i < n; i++) print r ":" i " end" }'"#;

#[test]
fn no_line_is_lost_or_torn_while_logs_are_begun_anew() {
    let scene = Scene::new();
    // About 1.2 MB for each rank: the larger bound rotates once, the smaller one many times.
    for (folder, size) in [("once", "1 MiB"), ("often", "64 KiB")] {
        let flags = ["--log-dir", folder, "-t", "3", "--log-max-size", size];
        let done = scene.sh(2, &flags, COUNT);
        done.expect_code(0);
        let shown = numbers(&done.stdout(), |line| line.split_once("] ").unwrap().1);
        let all: Vec<u32> = (0..LINES).collect();
        for rank in ["0", "1"] {
            assert!(shown[rank] == all, "rank {rank} on the screen");
            let path = format!("{folder}/attempt_0/rank_{rank}/stdout.log");
            let (old, new) = (scene.read(&format!("{path}.1")), scene.read(&path));
            let most = if folder == "once" { 1 << 20 } else { 64 << 10 };
            assert!(old.len() <= most && new.len() <= most, "{} and {}", old.len(), new.len());
            assert!(old.len() > most - 32, "the old file was full: {}", old.len());
            let kept = numbers(&format!("{old}{new}"), |line| line)[rank].clone();
            let first = if folder == "once" { 0 } else { *kept.first().unwrap() };
            assert!(first == 0 || folder == "often");
            assert!(kept.iter().copied().eq(first..LINES), "rank {rank} in {folder}");
        }
    }
}

/// Runs `shell` and then the launcher with these arguments, with output through pipes, which a limit of file
/// sizes does not affect.
fn through_pipes(scene: &Scene, shell: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let shell = format!("{shell}; exec \"$0\" launch \"$@\"");
    let child = scene
        .adapt(Command::new("sh"), &["-c", &shell, env!("CARGO_BIN_EXE_dtrain")])
        .into_command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    scene.wait_until_gone("every process", Scene::alive);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_log_that_cannot_grow_is_told_twice_and_the_run_goes_on() {
    let scene = Scene::new();
    let args = ["--log-dir", "logs", "--nproc", "2", "--", "sh", "-c", COUNT];
    // Blocks have 512 bytes in some shells and 1024 in others.
    let (code, out, said) = through_pipes(&scene, "ulimit -f 64", &args);
    assert_eq!(code, Some(0), "{said}");
    let shown = numbers(&out, |line| line.split_once("] ").unwrap().1);
    assert!(shown.values().all(|numbers| numbers.len() == LINES as usize));
    for rank in ["0", "1"] {
        let path = format!("logs/attempt_0/rank_{rank}/stdout.log");
        let told = format!(
            "cannot write {path}: File too large (os error 27); this output is shown but no longer logged"
        );
        assert_eq!(said.matches(&told).count(), 1, "{said}");
        let kept = numbers(&scene.read(&path), |line| line)[rank].clone();
        assert!(kept.len() > 1000 && kept.iter().copied().eq(0..kept.len() as u32));
        let last = said.lines().last().unwrap();
        assert!(last.starts_with("dtrain: incomplete logs: ") && last.contains(&path), "{said}");
    }
}

#[test]
fn output_that_is_only_kept_is_told_to_be_lost() {
    let scene = Scene::new();
    let script = format!("({COUNT}); exit 3");
    let args = ["--log-dir", "logs", "-r", "1", "--nproc", "1", "--", "sh", "-c", &script];
    let (code, out, said) = through_pipes(&scene, "ulimit -f 64", &args);
    assert_eq!((code, out.as_str()), (Some(3), ""), "{said}");
    assert!(said.contains("the rest of this output is lost"), "{said}");
    let report = "\ndtrain: incomplete log: logs/attempt_0/rank_0/stdout.log (File too large";
    assert!(said.contains(report), "{said}");
    assert!(said.lines().last().unwrap().starts_with("dtrain: exit code 3"), "{said}");
}

#[test]
fn a_worker_dies_of_the_file_size_limit_as_it_would_alone() {
    let scene = Scene::new();
    let script = r#"exec head -c 1000000 /dev/zero > "$TEST_DIR/large""#;
    let args = ["--nproc", "1", "--", "sh", "-c", script];
    let (code, _, said) = through_pipes(&scene, "ulimit -f 64", &args);
    assert_eq!(code, Some(128 + rustix::process::Signal::XFSZ.as_raw()), "{said}");
}

#[test]
fn a_full_disk_is_told_and_the_run_goes_on() {
    let scene = Scene::new();
    fs::create_dir(scene.path("small")).unwrap();
    let args = ["--log-dir", "small/logs", "--nproc", "2", "--", "sh", "-c", COUNT];
    // Mounting a file system needs a new namespace, which not every machine allows.
    let inside = r#"mount -t tmpfs -o size=256k none small && "$0" launch "$@" || exit 99
        cat small/logs/attempt_0/rank_0/stdout.log"#;
    let mut command = scene
        .adapt(
            Command::new("unshare"),
            &["--user", "--map-root-user", "--mount", "sh", "-c", inside, env!("CARGO_BIN_EXE_dtrain")],
        )
        .into_command(&args);
    let Ok(output) = need::output(Need::Mount, &mut command) else { return };
    let said = String::from_utf8_lossy(&output.stderr);
    let mounted = said.contains("dtrain: 2 workers").then_some(()).ok_or(&said);
    let Ok(()) = need::require(Need::Mount, mounted) else { return };
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(
        said.contains("No space left on device (os error 28); this output is shown but no longer logged"),
        "{said}"
    );
    assert!(said.contains("dtrain: incomplete logs: small/logs/attempt_0/rank_"), "{said}");
    let out = String::from_utf8(output.stdout).unwrap();
    let (on_screen, in_log): (Vec<&str>, Vec<&str>) =
        out.lines().partition(|line| line.starts_with("[rank "));
    assert_eq!(on_screen.len(), 2 * LINES as usize);
    assert!(!in_log.is_empty());
    for (number, line) in in_log.iter().enumerate() {
        assert_eq!(*line, format!("0:{number} end"), "the log ends with a whole line");
    }
}
