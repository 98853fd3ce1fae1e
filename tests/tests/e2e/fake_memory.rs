//! Predictions of memory against libtorch's allocator on fake GPUs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use dtrain_test_kit::{forks, thorough};
use serde_json::Value;

use crate::fake_gpus::{Machine, need_cuda};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::programs::{dtrain, program, without_outer_run};

/// On a T4, RTX 3090, A100, H100 and B200 in turn. A thorough check compares 28 networks and settings, and 8 imported programs; a
/// normal one six of the networks, with one rank and with more.
#[test]
fn predictions_for_gpus_are_the_allocator_s_peaks() {
    let Ok(()) = need_cuda() else { return };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut command = Command::new(program("lab"));
    without_outer_run(&mut command);
    command.args(["memory", "fake-gpus", "--dtrain"]).arg(dtrain());
    if !thorough::is_wanted() {
        let some = [
            "18, channels-last",
            "ViT, recompute",
            "GPT, bf16",
            "GPT, recompute",
            "GPT, 2 ranks",
            "GPT, 4 ranks",
        ];
        command.args(some.iter().flat_map(|case| ["--only", case]));
    } else if let Ok(python) = forks::pytorch() {
        forks::connect(&mut command);
        command.args(["--programs", "tests/lab/programs.toml", "--python"]).arg(python);
    }
    command
        .env("CARGO_MANIFEST_DIR", root.join("tests/lab"))
        .current_dir(root)
        .env_remove("CUDA_VISIBLE_DEVICES");
    expect_exit_code(&finish(&mut command, Duration::from_secs(900)), 0);
}

/// A plan for a GPU by its name is that of a training on such a GPU.
#[test]
fn plans_for_named_gpus_are_those_of_the_gpus() {
    let recipe = "task = \"lm\"\n[data]\nkind = \"generated\"\n[model]\nname = \"gpt\"\nwidth = 256\ndepth = 2\nheads = 4\n\
                  context = 512\n[train]\neffective_batch = 16\nsteps = 1\n[optim]\nname = \"adamw\"\nlr = 1e-4\n[memory]\n\
                  micro_batch = 16\n";
    let Ok(machine) = Machine::new(1, recipe) else { return };
    let gpus = [("t4", "7.5", 40), ("h100", "9.0", 132), ("rtx3090", "8.6", 82), ("b200", "10.0", 148)];
    for &(name, capability, multiprocessors) in thorough::cases(&gpus, 2) {
        machine.describe(&format!(
            "[[gpu]]\nname = \"{name}\"\nmemory = \"24GiB\"\ncompute-capability = \"{capability}\"\n\
             multiprocessors = {multiprocessors}\n"
        ));
        let peak = |gpus: &[&str]| {
            let words = [&["plan", "recipe.toml", "--json"], gpus].concat();
            let output = finish(&mut machine.command(&words), Duration::from_secs(60));
            expect_exit_code(&output, 0);
            let plan: Value = serde_json::from_slice(&output.stdout).unwrap();
            plan["rows"][0]["fit"]["prediction"]["peak"].as_u64().unwrap()
        };
        let (named, found) = (peak(&["--gpu", name]), peak(&[]));
        let (run, _) = machine.train(name, &["--nproc", "1"]);
        let trained = run.plan()["predictions"][0]["peak"].as_u64();
        assert_eq!((Some(named), Some(found)), (trained, trained), "{name}");
    }
}
