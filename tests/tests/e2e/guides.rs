//! The launch lines of the memory guides, and dtrain's replacements in docs/clusters.md, as far as a CPU can run them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

use dtrain_test_kit::{need, thorough};
use dtrain_tests::process::{expect_exit_code, finish, output_text};
use dtrain_tests::programs::{dtrain, without_outer_run, worker};
use dtrain_tests::runs::{Sandbox, gpt};

const LIMIT: Duration = Duration::from_secs(120);

/// A part of a line, and what replaces it here.
type Change = (&'static str, &'static str);

/// The replacements as the page has them, with the changes for a machine of two cores without GPUs, and a part of
/// the expected output.
const LINES: [(&str, &[Change], &str); 7] = [
    (
        "dtrain launch --nproc 4 train_prs_med.py --data_root D --batch_size 2",
        &[("--nproc 4", "--nproc 2")],
        "rank 1 of 2: --data_root D --batch_size 2",
    ),
    ("dtrain launch --nproc 4 recipe.toml", &[("--nproc 4", "--nproc 2")], "effective batch 8 = 2 ranks"),
    (
        "dtrain launch --gpu-ids 0,1 recipe.toml",
        &[("--gpu-ids 0,1", "--gpu-ids none --nproc 2")],
        "effective batch 8 = 2 ranks",
    ),
    ("dtrain launch recipe.toml", &[], "stage 2 of 2, \"full\""),
    ("dtrain profile recipe.toml --find-optimal", &[], "The largest micro-batch within"),
    ("dtrain launch recipe.toml --set precision.amp=auto", &[], "step 4/4"),
    ("dtrain batch slurm recipe.toml --gpus-per-node 4 --submit", &[("--submit", "--dry-run")], "4 GPUs"),
];

/// Lines that only a thorough check runs. `fake_gpus` has `--gpu-ids`, and trains with `precision.amp=auto`, the default.
const THOROUGH: [&str; 2] =
    ["dtrain launch --gpu-ids 0,1 recipe.toml", "dtrain launch recipe.toml --set precision.amp=auto"];

/// Two stages, as the guide trains the decoder before the whole model.
const STAGES: &str = r#"
[[stage]]
name = "head"
epochs = 1
freeze = ["transformer.h.*"]
[[stage]]
name = "full"
epochs = 1
"#;

/// A stand-in for the guide's script, which prints what a launcher gives it.
const SCRIPT: &str = r#"
import os, sys
line = " ".join(["rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"] + ":", *sys.argv[1:]])
os.write(1, (line + "\n").encode()) # In one piece: torchrun's Python has no buffer, and its workers share the pipe.
"#;

fn sandbox() -> Sandbox {
    let recipe =
        gpt(4, STAGES).replace("steps = 4\n", "").replace("train_samples = 32", "train_samples = 16");
    let sandbox = Sandbox::new(&recipe);
    fs::write(sandbox.path("train_prs_med.py"), SCRIPT).unwrap();
    sandbox
}

fn run(sandbox: &Sandbox, mut command: Command) -> Output {
    without_outer_run(&mut command);
    command.env("OMP_NUM_THREADS", "1").env("DTRAIN_WORKER", worker()).current_dir(sandbox.path(""));
    finish(&mut command, LIMIT)
}

#[test]
fn the_replacements_of_launch_lines_run() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/clusters.md");
    let page = fs::read_to_string(page).unwrap();
    let table = page.split_once("## Launch lines of the guides").unwrap().1;
    let shown: Vec<&str> = table.split('`').filter(|code| code.starts_with("dtrain ")).collect();
    assert_eq!(shown, LINES.map(|(line, ..)| line), "test each line of the page");
    let sandbox = sandbox();
    for (line, changes, expected) in LINES {
        if THOROUGH.contains(&line) && !thorough::is_wanted() {
            continue;
        }
        let line = changes.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
        let mut command = Command::new(dtrain());
        command.args(line.split(' ').skip(1));
        let text = expect_exit_code(&run(&sandbox, command), 0);
        assert!(text.contains(expected), "{line}: no {expected:?} in:\n{text}");
    }
}

#[test]
fn torchruns_line_and_dtrains_start_the_same_processes() {
    let Ok(python) = need::pytorch() else { return };
    let sandbox = sandbox();
    let lines = |output: &Output| {
        let text = String::from_utf8_lossy(&output.stdout);
        let mut lines: Vec<String> =
            text.lines().map(|line| line.split("] ").last().unwrap_or(line).to_owned()).collect();
        lines.sort();
        assert!(output.status.success(), "{}", output_text(output));
        lines
    };
    let args = ["--nproc_per_node=2", "train_prs_med.py", "--data_root", "D", "--batch_size", "2"];
    let mut ours = Command::new(dtrain());
    ours.arg("launch").args(args).env("PYTHON_EXEC", &python);
    let ours = lines(&run(&sandbox, ours));
    // A start of torchrun takes seconds, and what it prints is stated below.
    if thorough::is_wanted() {
        let mut torchrun = Command::new(&python);
        torchrun.args(["-m", "torch.distributed.run"]).args(args);
        assert_eq!(ours, lines(&run(&sandbox, torchrun)));
    }
    assert_eq!(
        ours,
        ["rank 0 of 2: --data_root D --batch_size 2", "rank 1 of 2: --data_root D --batch_size 2"]
    );
}
