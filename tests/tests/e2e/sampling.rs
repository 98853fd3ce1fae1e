//! Orders of the training samples, and partners.

use dtrain_test_kit::{forks, thorough};
use dtrain_tests::runs::Sandbox;

use crate::bad_input::refused_by;
use crate::checkpoints::assert_same;
use crate::exported::{IMAGES, imported, same_in_every_cut};

#[test]
fn a_program_of_pairs_trains_alike_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let data = format!("{IMAGES}\npairs = true\naugment = \"crop-flip\"");
    let sandbox = imported(&python, "pair_loss", "program", &data, "");
    same_in_every_cut(&sandbox);
    // With itself as its partner, each difference would be 0.
    let figures = sandbox.run("whole").result().final_metrics;
    assert!(figures["difference"] > 0.01, "{figures:?}");
}

#[test]
fn episodes_train_alike_in_every_cut() {
    let Ok(python) = forks::pytorch() else { return };
    let data = "image_size = 16\nclasses = 4\ntrain_samples = 40\ntest_samples = 24\naugment = \"crop-flip\"\n\
                episodes = { n_way = 3, k_shot = 2, n_query = 2, train = 20, test = 9 }";
    let sandbox = imported(&python, "prototypes", "program", data, "figures = [{ name = \"interval\" }]");
    same_in_every_cut(&sandbox);
    let run = sandbox.run("whole");
    // Three epochs of 20 episodes in steps of 8: two steps and half a step.
    let samples = run.per_step("samples");
    assert_eq!(samples[..4], [8.0, 16.0, 20.0, 28.0]);
    let figures = run.result().final_metrics;
    assert!(figures["accuracy"] > 0.4, "chance is a third: {figures:?}");
    assert!(figures["accuracy_95"] > 0.0 && figures["accuracy_95"] < 1.0, "{figures:?}");
    let mut command = sandbox.command(1, "small", &["data.episodes.n_query=5"], &[]);
    refused_by(
        &mut command,
        &[
            "images of the class 0 in the generated data (data.test_samples): 6, fewer than the 7 that an episode takes",
        ],
    );
}

#[test]
fn balanced_classes_and_dropout_are_the_same_on_any_ranks() {
    let recipe = "task = \"classify\"\n[data]\nkind = \"generated\"\nimage_size = 16\nclasses = 3\ntrain_samples = 20\n\
                  test_samples = 4\nsampler = \"balanced\"\n[model]\nname = \"vit\"\nwidth = 16\ndepth = 2\nheads = 2\npatch = 8\ndropout = 0.2\ndrop_path = 0.3\n\
                  [train]\neffective_batch = 6\nepochs = 2\n[log]\nevery_steps = 1\n";
    let sandbox = Sandbox::new(recipe);
    let one = sandbox.train(1, "one", &[]);
    for &ranks in thorough::cases(&[2, 3], 1) {
        let other = sandbox.train(ranks, &format!("ranks-{ranks}"), &["memory.micro_batch=1"]);
        for (one, other) in one.per_step("loss").iter().zip(other.per_step("loss")) {
            assert!((one - other).abs() < 1e-6, "{one} {other}");
        }
    }
    for (name, set) in [
        ("shuffled", "data.sampler=shuffled"),
        ("without-dropout", "model.dropout=0"),
        ("without-drop-path", "model.drop_path=0"),
    ] {
        assert_ne!(sandbox.train(1, name, &[set]).per_step("loss"), one.per_step("loss"), "{name}");
    }
    let again = sandbox.train(1, "again", &[]);
    let [one, again] = [one, again].map(|run| run.0.checkpoint(8));
    assert_same(&one, &again, &["model.safetensors"]);
}
