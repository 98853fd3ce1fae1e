//! `data.mix`, and samples that stand several times in an epoch.

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::runs::Sandbox;
use dtrain_tests::trainings::{distance, tensors};

use crate::bad_input::refused_by;
use crate::exported::{IMAGES, imported, same_in_every_cut};

/// 23 samples: two steps of 10 and one of 3 in an epoch.
const MIXED: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
image_size = 16
train_samples = 23
test_samples = 9
augment = "crop-flip"
sampler = "repeated"
copies = 2
mix = [{ name = "mixup", alpha = 0.8, share = 0.4 }, { name = "cutmix", share = 0.4 }]
[model]
name = "vit"
width = 16
depth = 1
heads = 2
patch = 8
loss = { cross-entropy = { smoothing = 0.1, class_weights = [0.5, 1, 2, 1] } }
[train]
effective_batch = 10
steps = 7
[optim]
name = "sgd"
lr = 0.1
[checkpoint]
every = "4 steps"
[log]
every_steps = 1
"#;

/// Ranks, and samples of a micro-batch. The first has ranks with unequal numbers.
const CUTS: [(usize, usize); 4] = [(3, 2), (1, 3), (2, 5), (2, 1)];

#[test]
fn mixed_samples_train_alike_in_every_cut_and_after_a_resume() {
    let sandbox = Sandbox::new(MIXED);
    let whole = sandbox.train(1, "whole", &["memory.micro_batch=10"]);
    for &(ranks, micro_batch) in thorough::cases(&CUTS, 2) {
        let name = format!("{ranks}-{micro_batch}");
        let cut = format!("memory.micro_batch={micro_batch}");
        let found = sandbox.train(ranks, &name, &[&cut, "data.workers=2"]);
        for (one, other) in whole.per_step("loss").iter().zip(found.per_step("loss")) {
            assert!((one - other).abs() < 1e-6, "{name}: {one} {other}");
        }
        let [one, other] = [&whole, &found].map(|run| tensors(run, "model.safetensors"));
        let distance = distance(&one, &other);
        assert!(distance < 1e-6, "{name}: {distance}");
        let accuracy = |run: &dtrain_tests::runs::Run| run.result().final_metrics["accuracy"];
        assert_eq!(accuracy(&whole), accuracy(&found));
    }
    // In the middle of the second epoch.
    let cut = "memory.micro_batch=3";
    sandbox.train(2, "resumed", &[cut, "train.steps=4"]);
    let resumed = sandbox.train(3, "resumed", &[cut]);
    let losses = resumed.per_step("loss");
    assert_eq!(losses.len(), 7);
    assert!(whole.per_step("loss").iter().zip(losses).all(|(one, other)| (one - other).abs() < 1e-6));
    for (name, set) in [
        ("plain", "data.mix=[]"),
        ("cutmix", "data.mix=[{ name = \"cutmix\" }]"),
        ("by-step", "data.mix_by=step"),
        ("three", "data.copies=3"),
    ] {
        let sets = ["train.steps=2", set];
        assert_ne!(sandbox.train(1, name, &sets).per_step("loss"), whole.per_step("loss")[..2], "{name}");
    }
}

#[test]
fn what_cannot_be_mixed_is_an_error() {
    let sandbox = Sandbox::new(MIXED);
    for (set, words) in [
        ("train.effective_batch=1", &["data.mix: a step of one sample has no other to mix with it"][..]),
        (
            "data.train_samples=21",
            &["a step of one sample has no partner for it", "train.last_batch = \"drop\""],
        ),
        ("data.mix=[{ name = \"mixup\", alpha = 0 }]", &["data.mix[0].alpha: expected a number above 0"]),
    ] {
        refused_by(&mut sandbox.command(1, "refused", &[set], &[]), words);
        let _ = std::fs::remove_dir_all(sandbox.path("refused"));
    }
}

#[test]
fn a_program_mixes_the_losses_of_both_targets() {
    let Ok(python) = forks::pytorch() else { return };
    let data = format!("{IMAGES}\nmix = [{{ name = \"mixup\", alpha = 1 }}, {{ name = \"cutmix\" }}]");
    let sandbox = imported(&python, "mixed_loss", "program", &data, "");
    same_in_every_cut(&sandbox);
    // Its loss would read beyond its logits.
    let words = "the output `logits` has the shape N x 4 for N samples, but the field `label` has 7 classes; import the model again";
    refused_by(&mut sandbox.command(1, "refused", &["data.classes=7"], &[]), &[words]);
    let sandbox = imported(&python, "own_loss", "program", &data, "");
    let words = "data.mix mixes images and their targets, but the program returns its loss and has no input for `mix_label`";
    refused_by(&mut sandbox.command(1, "refused", &[], &[]), &[words]);
}
