//! Stages, imported programs, modules and evaluations on fake GPUs.

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::gpt;

use super::{LIMIT, Machine};
use crate::exported::{IMAGES, imported};
use crate::lora;

/// Two stages, the first with frozen embeddings.
const STAGES: &str = r#"
[memory]
shard_optimizer = true
[ema]
decay = 0.9
[checkpoint]
every = "2 steps"
[[stage]]
name = "blocks"
steps = 3
freeze = ["transformer.wte.*", "transformer.wpe.*"]
[[stage]]
name = "all"
steps = 3
lr_factor = 0.5
"#;

#[test]
fn stages_and_evaluations_run_on_their_own_gpus() {
    let recipe = gpt(6, STAGES).replacen("steps = 6\n", "", 1);
    let gpus = 2 * thorough::ranks();
    let Ok(machine) = Machine::new(gpus, &recipe) else { return };
    let number = gpus.to_string();
    let (run, text) = machine.train("run", &["--nproc", &number, "--set", "model.dropout=0.1"]);
    assert!(text.contains(&format!(" on {gpus} x GPU in ")), "{text}");
    assert_eq!(run.result().steps, Some(6), "{text}");
    let counts = machine.expect_own_gpus("run", &text);
    // NVRTC's kernel.
    assert!(counts.iter().all(|rank| rank["kernel_names"].to_string().contains("dtrain_draw_float")));

    let words = ["eval", "recipe.toml", "--checkpoint", "run", "--nproc", &number, "--json"];
    let mut command = machine.command(&words);
    let text =
        expect_exit_code(&finish(command.env("FAKE_GPU_COUNTS", machine.counts_path("eval")), LIMIT), 0);
    machine.expect_own_gpus("eval", &text);
    assert!(text.contains("\"samples\":4"), "{text}");
}

/// Adapters of a GPT, whose other weights have fewer bytes: the memory of the plan.
#[test]
fn adapters_and_frozen_weights_take_the_memory_of_the_plan() {
    let Ok(python) = forks::pytorch() else { return };
    let Ok(machine) = Machine::of(2, lora::sandbox(&python, "gpt", lora::GPT)) else { return };
    let int8 = "model.frozen.int8=[\"*c_attn.weight\", \"*fc.weight\", \"lm_head.weight\"]";
    let bf16 = "model.frozen.bf16=[\"*c_attn.weight\", \"*fc.weight\", \"lm_head.weight\"]";
    let runs = [("int8", [int8, "precision.amp=bf16"]), ("bf16", [bf16, "precision.amp=fp16"])];
    for (name, sets) in thorough::cases(&runs, 1) {
        let sets = [&lora::FILES[..], sets].concat();
        let sets: Vec<&str> = sets.into_iter().flat_map(|set| ["--set", set]).collect();
        let (run, text) = machine.train(name, &[&["--nproc", "2"], &sets[..]].concat());
        assert_eq!(run.result().steps, Some(10), "{text}");
        machine.expect_own_gpus(name, &text);
        let predicted = run.plan()["predictions"][0]["peak"].as_f64().unwrap();
        let peak = run.result().peak_memory_bytes[0] as f64;
        assert!((predicted / peak - 1.0).abs() < 0.01, "{predicted} predicted, {peak} measured");
    }
}

#[test]
fn an_imported_program_trains_on_its_own_gpus() {
    let Ok(python) = forks::pytorch() else { return };
    let Ok(machine) = Machine::of(2, imported(&python, "vit", "classify", IMAGES, "")) else { return };
    let runs = [("graphs", "model.compile=graph"), ("run", "precision.amp=bf16")];
    for &(name, set) in thorough::cases(&runs, 1) {
        let args = ["--nproc", "2", "--set", "train.steps=6", "--set", set];
        let (run, text) = machine.train(name, &args);
        assert!(text.contains(" on 2 x GPU in "), "{text}");
        assert_eq!(run.result().steps, Some(6), "{text}");
        machine.expect_own_gpus(name, &text);
    }
    assert!(machine.sandbox.run("graphs").result().graph_replays > Some(0));
}
