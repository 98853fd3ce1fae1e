#![allow(clippy::unwrap_used)]

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::os::unix::fs::symlink;

use super::super::report::Outcome;
use super::*;
use crate::process::Signals;

const CASE: Case = Case {
    network: Network::Resnet50,
    batch: 10,
    steps: Steps {
        skipped: 1,
        counted: 2,
    },
    is_small: true,
};

/// A dtrain of ten images in 10 ms; where a word of `--set` says graphs, in 5 ms.
const DTRAIN: &str = r#"
ms=10
while [ $# -gt 0 ]; do
    case "$1" in
        --run-dir) run=$2 ;;
        'model.compile="graph"') ms=5 ;;
    esac
    shift
done
mkdir -p "$run/checkpoints/step-00000003"
for step in 1 2 3; do
    echo "{\"step\":$step,\"samples\":${step}0,\"step_ms\":$ms,\"elapsed_s\":$((step * ms))e-3,\"wait_ms\":{\"data\":0},\"memory\":{\"reserved\":4,\"peak\":2}}"
done > "$run/metrics.jsonl"
echo '{"parameters":25,"grad_accum_steps":1}' > "$run/plan.json"
echo '{}' > "$run/result.json"
"#;

/// A PyTorch of ten images in 20 ms; by torch.compile it cannot.
const PYTORCH: &str = r#"
while [ $# -gt 0 ]; do
    case "$1" in
        --out) out=$2 ;;
        --way) way=$2 ;;
    esac
    shift
done
if [ "$way" = compile ]; then
    echo "no compiler" >&2
    exit 1
fi
echo '{"batch":10,"per_sample":1,"steps":2,"total_ms":40,"parameters":25,"gpu":"NVIDIA H200",
"peak_allocated_bytes":3,"peak_reserved_bytes":4}' > "$out"
"#;

/// Runs the case where gpu.py is that shell script. The shell plays the part of both programs: as `python gpu.py`, and as
/// `dtrain launch`, of which `launch` is a script in the folder where it runs.
fn run(gpu_py: &str, rounds: usize) -> (Finding, Vec<String>, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let (programs, bench, work) = (place("programs"), place("bench"), place("work"));
    symlink("/bin/sh", programs.join("dtrain")).unwrap();
    fs::write(work.join("launch"), DTRAIN).unwrap();
    fs::write(bench.join("gpu.py"), gpu_py).unwrap();
    fs::write(bench.join("gpu-resnet50.toml"), "").unwrap();
    let signals = Signals::watch().unwrap();
    let site = Site {
        signals: &signals,
        programs,
        bench,
        reference: folder.path().to_path_buf(),
        libraries: None,
        python: Some("/bin/sh".into()),
        work,
        gpus: 1,
        devices: vec!["0".to_owned()],
        rehearses: false,
        rounds,
        deadline: None,
        commands: RefCell::default(),
    };
    let finding = CASE.run(&site).unwrap();
    let commands = site.commands.take();
    (finding, commands, folder)
}

#[test]
fn a_case_runs_every_way_in_every_round() {
    let (finding, commands, folder) = run(PYTORCH, 2);
    assert_eq!(finding.outcome, Outcome::Passed, "{}", finding.note);
    assert!(
        finding.note.starts_with(
            "images/s: DDP 500, eager PyTorch 500, dtrain 1000, dtrain with graphs 2000, torch.compile with graphs 500; "
        ),
        "{}",
        finding.note
    );
    assert!(finding.note.contains("torch.compile did not run: exit code 1"));
    assert!(finding.note.contains("no compiler"));
    for (ratio, expected) in [("dtrain_to_ddp", 2.0), ("best_to_compile_graphs", 4.0)] {
        assert!((finding.figures[ratio] - expected).abs() < 1e-9, "{ratio}");
    }
    // What has failed once is not tried again.
    assert_eq!(commands.len(), 5 + 6);
    assert!(
        commands[0].contains("--way ddp --batch 10 --steps 2 --skip 1"),
        "{}",
        commands[0]
    );
    let dtrain = commands
        .iter()
        .find(|words| words.starts_with("dtrain launch"))
        .unwrap();
    for set in [
        "train.effective_batch=10",
        "memory.micro_batch=10",
        "train.steps=3",
        "bench-images",
    ] {
        assert!(dtrain.contains(set), "{dtrain}");
    }
    let run = folder.path().join("work/bench-resnet50-10-dtrain-1");
    assert!(run.join("metrics.jsonl").exists() && !run.join("checkpoints").exists());
}

#[test]
fn nothing_is_compared_where_pytorch_cannot_run() {
    let (finding, commands, _folder) = run("echo warning >&2\necho 'PyTorch finds no GPU' >&2\nexit 3", 2);
    assert_eq!(finding.outcome, Outcome::Skipped);
    assert!(
        finding
            .note
            .starts_with("PyTorch finds no GPU; give --python a Python with"),
        "{}",
        finding.note
    );
    assert_eq!(commands.len(), 1);
}

#[test]
fn cases_have_names_of_their_own_and_each_network_a_small_one() {
    let all = cases();
    let names: BTreeSet<String> = all.iter().map(Case::name).collect();
    assert_eq!(names.len(), all.len());
    assert!(names.contains("resnet50, batch 64") && names.contains("gpt2, batch 1"));
    for network in [Network::Resnet50, Network::VitB16, Network::Gpt2] {
        let of_network = all.iter().filter(|case| case.network == network);
        assert_eq!(of_network.filter(|case| case.is_small).count(), 1);
    }
}
