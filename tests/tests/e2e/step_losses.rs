//! Losses over all samples of a step (`model.losses`), and buffers that a step joins (`model.state`).

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::process::{expect_exit_code, finish};
use dtrain_tests::runs::{Run, Sandbox};
use dtrain_tests::trainings::{distance, tensors};

use crate::bad_input;
use crate::exported::{IMAGES, imported};
use crate::import::LIMIT;

/// The losses and the state of fixtures/import/trained.py's towers.
pub(crate) const TOWERS: &str = r#"
losses = [
    { name = "clip" },
    { name = "supcon", vectors = "image_embeds", weight = 0.5, temperature = 0.5 },
    { name = "balance", weight = 0.2 },
]
state = { queue = "append", centre = "mean" }
"#;
const MODEL: &str = "model.safetensors";

/// Ranks, and samples of a micro-batch. The first has ranks with unequal numbers, the second keeps its graphs.
const CUTS: [(usize, usize); 6] = [(3, 1), (2, 4), (1, 3), (2, 1), (3, 3), (1, 1)];

/// A program that computes the same losses over the samples that it gets, which are the whole step on one rank.
#[test]
fn losses_and_queues_of_a_step_are_those_of_one_large_batch_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let whole = imported(&python, "towers_with_losses", "program", IMAGES, "");
    let steps = "train.steps=8";
    let expected = whole.train(1, "whole", &[steps]);
    let text = expect_exit_code(&whole.launch(2, "refused", &[]), 2);
    assert!(
        text.contains("`queue`, `centre`") && text.contains("say in model.state how to join them"),
        "{text}"
    );

    let sandbox = imported(&python, "towers", "program", IMAGES, TOWERS);
    for &(ranks, micro_batch) in thorough::cases(&CUTS, 2) {
        let name = format!("{ranks}-{micro_batch}");
        let found = sandbox.train(ranks, &name, &[steps, &format!("memory.micro_batch={micro_batch}")]);
        let (weights, expected_weights) = (tensors(&found, MODEL), tensors(&expected, MODEL));
        assert!(weights.contains_key("queue") && weights.contains_key("centre"));
        let distance = distance(&weights, &expected_weights);
        assert!(distance < 1e-6, "{name}: {distance}");
        assert_eq!(found.per_step("loss").len(), 8);
        for (one, other) in found.per_step("loss").iter().zip(expected.per_step("loss")) {
            assert!((one - other).abs() < 1e-5, "{name}: {one} {other}");
        }
    }
    // A rank dies, and the run resumes.
    let sets = [steps, "memory.micro_batch=1", "checkpoint.every=4 steps"];
    let mut killed = sandbox.command(3, "killed", &sets, &[]);
    let output = finish(killed.env("DTRAIN_FAULT", "crash:rank=1,step=7,phase=backward"), LIMIT);
    assert!(!output.status.success(), "a rank was to die");
    let found = sandbox.train(3, "killed", &sets);
    assert!(found.weights() == sandbox.run("3-1").weights(), "the weights differ after a resume");
    for (name, state, words) in [
        (
            "no-queue",
            "queue = \"append\", centre = \"append\"",
            "model.state.centre: \"append\" is for a queue that gets one row",
        ),
        (
            "no-buffer",
            "queue = \"append\", centre = \"mean\", center = \"mean\"",
            "model.state names `center`, which is no buffer of the model",
        ),
    ] {
        let set = format!("model.state={{{state}}}");
        let text = expect_exit_code(&sandbox.launch(1, name, &[&set, "memory.micro_batch=4"]), 2);
        assert!(text.contains(words), "{text}");
    }
}

/// Statistics move once in a step, although micro-batches run forward twice.
#[test]
fn batch_norm_over_ranks_or_groups_counts_one_of_two_passes() {
    let Ok(python) = forks::pytorch() else { return };
    if thorough::leaves_out(
        "state::buffers::tests; losses_and_queues_of_a_step_are_those_of_one_large_batch_in_every_cut",
    ) {
        return;
    }
    let sandbox = imported(&python, "normed_towers", "program", IMAGES, TOWERS);
    let train = |ranks: usize, name: &str, norm: &str, micro_batch: usize| {
        // In more steps, rounding may change which expert is chosen.
        let sets = ["train.steps=3".to_owned(), format!("model.batchnorm={norm}")];
        let micro_batch = format!("memory.micro_batch={micro_batch}");
        tensors(&sandbox.train(ranks, name, &[&sets[0], &sets[1], &micro_batch]), MODEL)
    };
    let whole = train(1, "whole", "local", 8);
    assert!(distance(&train(2, "synced", "synced", 4), &whole) < 1e-6);
    let groups = train(1, "groups", "group:4", 8);
    assert!(distance(&train(1, "groups-4", "group:4", 4), &groups) < 1e-6);
    assert!(distance(&groups, &whole) > 1e-4, "groups of four are not the whole step");
}

/// A sample that cannot be read adds nothing, whatever the other samples of the step are.
#[test]
fn unreadable_samples_are_left_out_of_losses_over_a_step() {
    let Ok(python) = forks::pytorch() else { return };
    let generated = imported(&python, "towers", "program", IMAGES, TOWERS);
    let text = std::fs::read_to_string(generated.path("recipe.toml")).unwrap();
    let files = text.replace(&format!("kind = \"generated\"\n{IMAGES}"), "root = \"data\"\nimage_size = 16");
    let sandbox = Sandbox::new(&files);
    // More than are decoded before the run.
    bad_input::equal_images(&sandbox, 5050, 505);
    bad_input::cut_off(&sandbox, "train", 60);
    bad_input::cut_off(&sandbox, "test", 5);
    let train = |ranks: usize, name: &str, micro_batch: usize| {
        let sets =
            ["train.steps=2", "train.effective_batch=505", &format!("memory.micro_batch={micro_batch}")];
        expect_exit_code(&sandbox.launch(ranks, name, &sets), 0);
        sandbox.run(name)
    };
    let (whole, cut) = (train(1, "whole", 505), train(2, "cut", 19));
    assert!(whole.result().skipped_images > Some(0), "no bad image is in two steps");
    let distance = distance(&tensors(&cut, MODEL), &tensors(&whole, MODEL));
    // Sums of 505 samples in another order.
    assert!(distance < 1e-5, "{distance}");
    let losses = |run: &Run| run.evaluations()[0]["loss"].as_f64().unwrap();
    assert!((losses(&cut) - losses(&whole)).abs() < 1e-5);
    // Of 505 candidates, a guess has CLIP's loss ln 505 = 6.2; the samples' own losses are below 1.
    assert!(losses(&whole) > 3.0, "{}", losses(&whole));
}
