//! The commands about GPUs, on machines with processes and with GPUs of two kinds.

use std::fs;

use dtrain_tests::process::{doctor, expect_exit_code, finish, output_text};
use dtrain_tests::runs::gpt;
use serde_json::Value;

use super::{LIMIT, Machine};

/// Two kinds of GPUs, used by a process that is not visible from here.
const BUSY: &str = r#"
[[gpu]]
name = "NVIDIA A100-SXM4-40GB"
memory = "40GiB"
others = [{ pid = 4194304, memory = "2GiB" }]
[[gpu]]
name = "Tesla T4"
compute-capability = "7.5"
multiprocessors = 40
memory = "15GiB"
others = [{ pid = 4194304, memory = "1GiB" }]
"#;

impl Machine {
    /// Runs `dtrain WORDS`, which must end with `code`; returns its output.
    #[track_caller]
    fn dtrain(&self, code: i32, words: &[&str]) -> String {
        let output = finish(&mut self.command(words), LIMIT);
        assert_eq!(output.status.code(), Some(code), "{words:?}: {}", output_text(&output));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Returns the answer of `dtrain WORDS`.
    #[track_caller]
    fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.dtrain(0, words)).unwrap()
    }

    /// Returns the processes on each GPU and their memory in MiB.
    fn processes(&self) -> Vec<Vec<(u64, u64)>> {
        let info = self.json(&["gpu", "info", "--json"]);
        let of = |process: &Value| {
            (process["pid"].as_u64().unwrap(), process["used_bytes"].as_u64().unwrap() >> 20)
        };
        let gpus = info["gpus"].as_array().unwrap().iter();
        gpus.map(|gpu| gpu["processes"].as_array().unwrap().iter().map(of).collect()).collect()
    }
}

#[track_caller]
fn expect_parts(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}

/// A training on one of two GPUs is shown, asked to free memory, and ended.
#[test]
fn the_commands_show_free_and_end_a_training() {
    const HIDDEN: u64 = 4_194_304;
    let Ok(machine) = Machine::new(2, &gpt(1_000_000, "")) else { return };
    machine.describe(BUSY);
    assert_eq!(machine.processes(), [[(HIDDEN, 2048)], [(HIDDEN, 1024)]]);
    let words = ["launch", "--run-dir", "run", "--gpu-ids", "1", "recipe.toml"];
    let launched = machine.sandbox.scene().start(machine.command(&words));
    machine.sandbox.run("run").wait_for_lines(4);

    let during = machine.processes();
    assert_eq!(during[0], [(HIDDEN, 2048)]);
    let [(HIDDEN, 1024), (worker, used)] = during[1][..] else { panic!("{during:?}") };
    // A context, and a training of some MiB.
    assert!((450..600).contains(&used), "{used}");
    let table = machine.dtrain(0, &["gpu", "info"]);
    let command = fs::read_to_string(format!("/proc/{worker}/cmdline")).unwrap();
    assert!(command.contains("dtrain-worker"), "{command}");
    expect_parts(
        &table,
        &[
            "NVIDIA driver 580.82.07, CUDA up to 13.0",
            "NVIDIA A100-SXM4-40GB  2.00 GiB  38.00 GiB  40.00 GiB",
        ],
    );
    let rows: Vec<&str> = table.lines().filter(|line| line.contains("(not visible from here)")).collect();
    assert!(rows.len() == 2 && rows[0].contains("2.00 GiB") && rows[1].contains("1.00 GiB"), "{table}");
    assert!(table.lines().any(|line| line.contains(&worker.to_string()) && line.contains("MiB")), "{table}");

    let lines = machine.dtrain(0, &["gpu", "monitor", "--count", "2", "--interval", "0.1", "--json"]);
    let lines: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let seen = lines.iter().map(|line| (line["index"].as_u64(), line["processes"].as_array().unwrap().len()));
    let seen: Vec<_> = seen.collect();
    assert_eq!(seen, [(Some(0), 1), (Some(1), 2), (Some(0), 1), (Some(1), 2)]);
    let lines = machine.dtrain(0, &["gpu", "monitor", "--count", "1"]);
    expect_parts(
        &lines,
        &["GPU 0 (NVIDIA A100-SXM4-40GB): 2.00 GiB of 40.00 GiB used, busy 50%, 1 process\n"],
    );
    expect_parts(&lines, &["GPU 1 (Tesla T4): 1.4", "of 15.00 GiB used, busy 50%, 2 processes\n"]);

    let freed = machine.dtrain(0, &["gpu", "clear"]);
    expect_parts(&freed, &[&format!("pid {worker} (rank 0, GPU 0): freed "), " allocated | ", " reserved\n"]);

    let other = machine.dtrain(0, &["gpu", "kill", "--yes", "--gpu-ids", "0"]);
    assert_eq!(
        other,
        "1 other process is left alone: of another user, or not visible from here.\nNo process of yours uses GPU 0.\n"
    );
    // Two GPUs have it.
    let ended = machine.dtrain(0, &["gpu", "kill", "--yes"]);
    expect_parts(&ended, &["1 other process is left alone", &format!("pid {worker} ended on SIGTERM")]);
    let launched = launched.wait();
    launched.expect_code(75).expect_stderr("a checkpoint written");
    assert_eq!(machine.processes(), [[(HIDDEN, 2048)], [(HIDDEN, 1024)]]);
}

/// Plans, profiles and checks of a machine name its GPUs and respect the smaller.
#[test]
fn plans_and_profiles_respect_the_smaller_gpu() {
    let Ok(machine) = Machine::new(2, &gpt(2, "")) else { return };
    machine.describe(BUSY);
    let suggested = machine.json(&["gpu", "suggest-batch-size", "recipe.toml", "--json"]);
    let suggested = suggested.to_string();
    expect_parts(&suggested, &["A100-SXM4-40GB", "T4"]);

    let profile = machine.json(&["profile", "recipe.toml", "--nproc", "2", "--stage", "all", "--json"]);
    assert_eq!(profile["device"], "GPU 0");
    assert!(profile["stages"][0]["measured"]["peak"].as_u64() > Some(1 << 20), "{profile}");
    let (run, text) = machine.train("run", &["--nproc", "2"]);
    expect_parts(
        &text,
        &[
            "the GPUs are of 2 kinds, NVIDIA A100-SXM4-40GB with 40.00 GiB and Tesla T4 with 15.00 GiB: the smallest \
             memory (Tesla T4, 15.00 GiB) limits the micro-batch",
            "2 workers, 2 GPUs (NVIDIA A100-SXM4-40GB, Tesla T4) visible",
            "gpt on 2 x GPU in fp16 with a loss scale",
        ],
    );
    // The T4, of which another process uses 1 GiB, less a context and a margin.
    let budget = run.plan()["budget_bytes"].as_u64().unwrap() >> 20;
    assert!((12_000..14 * 1024).contains(&budget), "{budget} MiB");

    let text = expect_exit_code(&doctor(|| finish(&mut machine.command(&["doctor"]), LIMIT)), 0);
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    expect_parts(
        &text,
        &[
            "ok GPUs 1 x NVIDIA A100-SXM4-40GB (40.00 GiB, compute capability 8.0), 1 x Tesla T4 (15.00 GiB, compute \
             capability 7.5)",
            "ok NVIDIA driver 580.82.07, up to CUDA 13.0; libtorch needs CUDA 13",
            "libtorch 2.11.0 for CUDA 13.0",
        ],
    );
}
