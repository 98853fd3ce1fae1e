//! Odd file systems, each with a checkpoint, a resume, a rollback and a prune: right, or refused before the first step.

mod machines;

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dtrain_test_kit::thorough;
use dtrain_tests::process::{expect_exit_code, output_text, wait_until};
use dtrain_tests::runs::{Sandbox, gpt};
use serde_json::Value;

pub(crate) use self::machines::compile;
use self::machines::{FuseFault, Machine};
use super::bad_input::folder_recipe;

/// A checkpoint at every second step, the first of which is the best.
const RECIPE: &str = "[checkpoint]\nevery = \"2 steps\"\nkeep = 9\nbest = \"max loss\"\n";

/// What a run meets on a file system.
enum Expect {
    /// All works. The notes contain these words.
    Right(&'static str),
    /// The start is an error with these words, and nothing was trained.
    Refused(&'static [&'static str]),
}
use Expect::{Refused, Right};

/// The state of a run's checkpoints, by the program itself: the test may not see the file system.
struct Listed {
    steps: Vec<u64>,
    latest: Option<u64>,
    best: Option<u64>,
}

#[track_caller]
fn list(machine: &Machine) -> Listed {
    let output = machine.dtrain(&["ckpt", "ls", "run", "--json"]).output().unwrap();
    expect_exit_code(&output, 0);
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = json["checkpoints"].as_array().unwrap();
    let marked = |mark: &str| all.iter().find(|one| one[mark] == true).and_then(|one| one["step"].as_u64());
    assert!(all.iter().all(|one| one["whole"] == true), "{json}");
    Listed {
        steps: all.iter().map(|one| one["step"].as_u64().unwrap()).collect(),
        latest: marked("latest"),
        best: marked("best"),
    }
}

#[track_caller]
fn launch(machine: &Machine, args: &[&str], code: i32) -> String {
    let all = [&["launch", "--nproc", "2", "--run-dir", "run"], args, &["../recipe.toml"]].concat();
    let text = expect_exit_code(&machine.dtrain(&all).output().unwrap(), code);
    println!("{text}");
    text
}

/// Trains, resumes, rolls back and prunes, and compares the weights with those of a run on an ordinary disk.
#[track_caller]
fn all_is_right(machine: &Machine, words: &str) {
    let text = launch(machine, &["--set", "train.steps=4"], 0);
    assert!(text.contains(words), "{words} in {text}");
    let now = list(machine);
    assert_eq!((&now.steps[..], now.latest, now.best), (&[2, 4][..], Some(4), Some(2)));

    let text = launch(machine, &["--set", "train.steps=8"], 0);
    assert!(text.contains("after step 4"), "{text}");
    assert_eq!(list(machine).latest, Some(8));
    assert_eq!(machine.read("run/checkpoints/step-00000008/model.safetensors"), reference());

    let text = launch(machine, &["--resume", "run/checkpoints/best", "--set", "train.steps=6"], 0);
    assert!(text.contains("after step 2") && text.contains("set aside 3 later checkpoints"), "{text}");
    let now = list(machine);
    assert_eq!((&now.steps[..], now.latest, now.best), (&[2, 4, 6][..], Some(6), Some(2)));
    launch(machine, &["--set", "train.steps=8"], 0);
    assert_eq!(machine.read("run/checkpoints/step-00000008/model.safetensors"), reference());

    let args = ["ckpt", "prune", "run", "--keep", "1", "--keep-every", "0", "--rollbacks"];
    let text = expect_exit_code(&machine.dtrain(&args).output().unwrap(), 0);
    assert!(text.contains("removed rollback-1") && text.contains("kept step-00000002: `best`"), "{text}");
    let now = list(machine);
    assert_eq!((&now.steps[..], now.latest, now.best), (&[2, 8][..], Some(8), Some(2)));
    expect_exit_code(
        &machine.dtrain(&["ckpt", "verify", "run/checkpoints/latest", "run"]).output().unwrap(),
        0,
    );
    // `latest` may be a file.
    let args = ["eval", "../recipe.toml", "--checkpoint", "run/checkpoints/latest"];
    expect_exit_code(&machine.dtrain(&args).output().unwrap(), 0);
    let text = output_text(&machine.dtrain(&["doctor", "--run-dir", "run"]).output().unwrap());
    assert!(!text.contains("FAIL  file system") && !text.contains("FAIL  run directory"), "{text}");
}

#[track_caller]
fn is_refused(machine: &Machine, words: &[&str]) {
    let text = launch(machine, &[], 2);
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
    assert!(!text.contains("step 1/8"), "{text}");
    assert!(!machine.exists("run/metrics.jsonl") && !machine.exists("run/checkpoints/step-00000002"));
    let text = output_text(&machine.dtrain(&["doctor", "--run-dir", "run"]).output().unwrap());
    assert!(text.contains("FAIL  file system") || text.contains("FAIL  run directory"), "{text}");
}

fn time<T>(action: impl FnOnce() -> T) -> Duration {
    let start = Instant::now();
    let _ = action();
    start.elapsed()
}

/// Returns the weights after 8 steps on an ordinary disk.
fn reference() -> Vec<u8> {
    static ONCE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
    ONCE.get_or_init(|| Sandbox::new(&gpt(8, RECIPE)).train(2, "run", &[]).weights()).clone()
}

#[track_caller]
fn expect(machine: &Machine, expected: &Expect) {
    match expected {
        Right(words) => all_is_right(machine, words),
        Refused(words) => is_refused(machine, words),
    }
}

const NO_LINKS: &str = "has no symbolic links: `latest` and `best` there are files";

/// File systems by LD_PRELOAD: they need a C compiler alone, as the build does.
#[test]
fn refused_calls_are_survived_or_refused_before_the_first_step() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    // EPERM 1, EIO 5, EXDEV 18, EINVAL 22, EROFS 30, ENOLCK 37, ENOSYS 38, EOPNOTSUPP 95.
    let all = [
        ("symlink=95,sync_folder=22,lock=37", Right(NO_LINKS)),
        (
            "rename_folder=18",
            Refused(&["cannot rename a folder: Invalid cross-device link", "on another disk"]),
        ),
        (
            "place=95",
            Refused(&[
                "cannot write at any place of a file: Operation not supported",
                "as the ranks write their parts",
            ]),
        ),
        ("symlink=1", Right(NO_LINKS)),
        ("sync_folder=95", Right("does not write through to the disk")),
        ("sync_folder=22,sync_file=38", Right("does not write through to the disk")),
        ("lock=37,sync_file=22", Right("does not write through to the disk")),
        ("slow=20", Right("")),
        ("rename_folder=1", Refused(&["cannot rename a folder: Operation not permitted", "on another disk"])),
        // The launcher appends to its logs.
        ("append=95", Refused(&["Operation not supported", "stdout.log; choose another --run-dir"])),
        ("sync_file=5", Refused(&["cannot write run/recipe.toml: Input/output error"])),
    ];
    for &(faults, ref expected) in thorough::cases(&all, 3) {
        println!("{faults}");
        let machine = Machine::with_preload(&library, faults, &gpt(8, RECIPE));
        expect(&machine, expected);
        if faults == "slow=20" {
            let fastest = (0..5).map(|_| time(|| machine.read("run/recipe.toml"))).min();
            assert!(fastest >= Some(Duration::from_millis(20)), "the calls are not slow: {fastest:?}");
        }
    }
}

/// A disk that is full for a while costs no step and no line.
#[test]
fn a_full_disk_of_the_metrics_is_a_warning_if_the_run_continues() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    let machine = Machine::with_preload(&library, "full=28", &gpt(8, RECIPE));
    machine.switch(true);
    let text = launch(&machine, &[], 4);
    assert!(text.contains("cannot write metrics.jsonl: No space left on device"), "{text}");
    assert!(text.contains("set checkpoint.on_failure = \"continue\""), "{text}");
    assert!(
        !String::from_utf8(machine.read("run/metrics.jsonl")).unwrap().contains('{'),
        "the half line is cut"
    );

    let text = launch(&machine, &["--set", "checkpoint.on_failure=continue"], 0);
    assert_eq!(
        text.matches("on_failure = \"continue\": training continues, and its lines").count(),
        1,
        "{text}"
    );
    assert!(text.contains(" lines of ") && text.contains("are lost: No space left on device"), "{text}");
    assert_eq!(list(&machine).latest, Some(8));

    // Space returns during the run: all lines are there, in order.
    let sets = [
        "--set",
        "checkpoint.on_failure=continue",
        "--set",
        "train.steps=4000",
        "--set",
        "log.every_steps=1",
    ];
    let mut child = machine
        .start(&[&["launch", "--nproc", "1", "--run-dir", "run"], &sets[..], &["../recipe.toml"]].concat());
    machine.wait_for_text(&mut child, "step 40/");
    machine.switch(false);
    machine.wait_for_text(&mut child, "has the lines that the disk refused");
    machine.stop(child, 75);
    let text = String::from_utf8(machine.read("run/metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line"));
    let steps: Vec<u64> =
        lines.filter(|line| line.get("loss").is_some()).map(|line| line["step"].as_u64().unwrap()).collect();
    assert!(steps.last() >= Some(&40), "{steps:?}");
    assert!(steps.iter().copied().eq(9..9 + steps.len() as u64), "{steps:?}");
}

/// Checkpoints by time, and a crash at any moment, where nothing is written through to the disk.
#[test]
fn a_killed_run_resumes_without_a_sync_of_files() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    let recipe = gpt(100_000, "[checkpoint]\nevery = \"1 s\"\nkeep = 2\n");
    let machine = Machine::with_preload(&library, "sync_folder=22,sync_file=38", &recipe);
    let args = ["launch", "--nproc", "1", "--run-dir", "run", "../recipe.toml"];
    let mut done = 0;
    for _ in 0..2 {
        let mut child = machine.start(&args);
        wait_until("two checkpoints", || {
            // Each look starts processes.
            sleep(Duration::from_millis(100));
            assert!(child.try_wait().unwrap().is_none(), "it ended: {}", machine.printed());
            machine.exists("run/checkpoints") && list(&machine).latest.is_some_and(|latest| latest > done + 1)
        });
        child.kill().unwrap();
        child.wait().unwrap();
        done = list(&machine).latest.unwrap();
    }
    let mut child = machine.start(&args);
    machine.wait_for_text(&mut child, "does not write through to the disk");
    machine.wait_for_text(&mut child, "after step ");
    machine.stop(child, 75);
    let now = list(&machine);
    assert!(now.latest >= Some(done), "{:?}", now.steps);
    let text = String::from_utf8(machine.read("run/metrics.jsonl")).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a whole line"));
    let steps = lines.filter(|line| line.get("loss").is_some()).map(|line| line["step"].as_u64().unwrap());
    assert!(steps.eq(1..=now.latest.unwrap()), "each step once");
}

/// The server of the files is away for a moment: nothing that may be whole is removed or replaced.
#[test]
fn stale_checkpoints_are_kept() {
    let library = compile("preload.c", &["-shared", "-fPIC"]);
    let machine = Machine::with_preload(&library, "stale=116", &gpt(8, RECIPE));
    launch(&machine, &[], 0);
    machine.switch(true);
    let args = ["ckpt", "prune", "run", "--keep", "1", "--keep-every", "0", "--damaged"];
    let text = expect_exit_code(&machine.dtrain(&args).output().unwrap(), 0);
    assert!(text.contains("kept step-00000004: it may be whole, but could not be checked"), "{text}");
    assert!(text.contains("nothing to remove"), "{text}");
    let text = launch(&machine, &["--set", "train.steps=10"], 2);
    assert!(text.contains("Stale file handle"), "{text}");
    machine.switch(false);
    assert_eq!(list(&machine).steps, [2, 4, 6, 8]);
    launch(&machine, &["--set", "train.steps=10"], 0);
    assert_eq!(list(&machine).latest, Some(10));
}

/// File systems of the kernel: full, read-only, and FUSE with a server of the test.
#[test]
fn mounted_file_systems_work_or_are_refused_before_the_first_step() {
    let recipe = gpt(8, RECIPE);
    let all = [
        // Room for the recipe, and not for a checkpoint.
        ("size=64k,nr_inodes=6", Refused(&["No space left on device", "choose another --run-dir"])),
        ("size=2g,ro", Refused(&["Read-only file system", "mount the file system writable"])),
        ("size=2g", Right("")),
    ];
    for &(options, ref expected) in thorough::cases(&all, 1) {
        println!("tmpfs {options}");
        let Ok(machine) = Machine::with_tmpfs(options, &recipe) else { continue };
        expect(&machine, expected);
    }
    let server = compile("fuse.c", &[]);
    let all = [
        (FuseFault::IgnoresCase, Right("")),
        (FuseFault::NoLinks, Right(NO_LINKS)),
        (FuseFault::None, Right("")),
        (FuseFault::NoFolderRename, Refused(&["cannot rename a folder", "on another disk"])),
    ];
    for &(fault, ref expected) in thorough::cases(&all, 1) {
        println!("{fault:?}");
        let Ok(machine) = Machine::with_fuse(&server, fault, &recipe) else { continue };
        expect(&machine, expected);
        // The run that `expect` left is this one, if the case of its name is ignored.
        if fault == FuseFault::IgnoresCase {
            let args =
                ["launch", "--nproc", "2", "--run-dir", "RUN", "--set", "train.steps=10", "../recipe.toml"];
            let text = expect_exit_code(&machine.dtrain(&args).output().unwrap(), 0);
            assert!(text.contains("after step 8"), "{text}");
            assert_eq!(list(&machine).latest, Some(10));
        }
    }
}

/// `cp -rL` makes folders of `latest` and `best`.
#[test]
fn a_copy_that_followed_links_resumes() {
    let sandbox = Sandbox::new(&gpt(8, RECIPE));
    let run = sandbox.train(1, "run", &["train.steps=4"]);
    let copied =
        std::process::Command::new("cp").arg("-rL").arg(run.0.root()).arg(sandbox.path("copy")).status();
    assert!(copied.unwrap().success());
    let copy = sandbox.run("copy");
    fs::remove_file(copy.0.checkpoint(4).join("model.safetensors")).unwrap();
    let text = expect_exit_code(&sandbox.launch(1, "copy", &[]), 0);
    assert!(text.contains("after step 4") && text.contains("it replaces"), "{text}");
    let whole = sandbox.train(1, "whole", &[]);
    assert_eq!(copy.weights(), whole.weights());
    assert!(copy.0.latest().is_symlink() && copy.0.best().is_symlink());
    assert_eq!(copy.0.steps().unwrap(), [2, 4, 6, 8]);
}

/// 11,417 classes whose names have 250 characters, most of which JSON writes as six.
#[test]
fn a_manifest_that_no_resume_would_read_is_an_error_before_the_first_step() {
    let sandbox = Sandbox::new(&folder_recipe());
    let path = sandbox.path("picture.png");
    image::RgbImage::from_pixel(8, 8, image::Rgb([90, 10, 200])).save(&path).unwrap();
    let picture = fs::read(path).unwrap();
    for number in 0..11_417 {
        let name = format!("{number:\u{1}>250}");
        for part in if number < 2 { &["train", "test"][..] } else { &["train"] } {
            let folder = sandbox.path("data").join(part).join(&name);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("a.png"), &picture).unwrap();
        }
    }
    let output = sandbox.launch(1, "run", &[]);
    let text = String::from_utf8_lossy(&output.stderr);
    let error = text.lines().find(|line| line.contains("a checkpoint's manifest would have 1"));
    let error = error.unwrap_or_else(|| panic!("{}", text.chars().take(3000).collect::<String>()));
    assert!(error.contains("more than the 16.00 MiB that a resume reads: class names 16.1"), "{error}");
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(sandbox.run("run").metrics().is_empty());
}
