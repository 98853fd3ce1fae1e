#![allow(clippy::unwrap_used)]

mod changes;
mod checks;
mod columns;
mod course;
mod custom;
mod differences;
mod documents;
mod errors;
mod exported;
mod figures;
mod fuzz;
mod groups;
mod losses;
mod masks;
mod mixes;
mod model;
mod overrides;
mod reading;
mod reference;
mod sample_losses;
mod samples;
mod schema;
mod sections;
mod sets;
mod sources;
mod stages;
mod tasks;
mod texts;

use std::path::PathBuf;

use dtrain_common::recipe::Source;
use dtrain_common::recipe::kinds;

use super::*;
use reading::FULL;
use samples::samples;

/// The smallest valid recipe.
const SMALL: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\n[train]\nepochs = 1\n";

fn parse(text: &str, overrides: &[&str]) -> Result<Recipe, RecipeError> {
    let overrides: Vec<String> = overrides.iter().map(|set| set.to_string()).collect();
    Recipe::parse("a.toml", text, &overrides)
}

fn small(overrides: &[&str]) -> Recipe {
    parse(SMALL, overrides).unwrap()
}

/// Checks that a recipe is an error for this key, with `part` in the message.
fn expect_error(text: &str, overrides: &[&str], key: &str, part: &str) {
    let Err(error) = parse(text, overrides) else { panic!("{overrides:?} is taken") };
    assert_eq!(error.key(), Some(key), "{overrides:?}: {error}");
    assert!(error.message().contains(part), "{overrides:?}: {error}");
}

/// Checks that a recipe with this setting is an error for the setting's key, with `part` in the message.
fn expect_set_error(text: &str, set: &str, part: &str) {
    expect_error(text, &[set], set.split_once('=').unwrap().0, part);
}

impl Recipe {
    fn differences(&self, other: &Self) -> Vec<(String, String, String)> {
        self.resolved().unwrap().differences(&other.plain().unwrap())
    }
}

fn round_trip(recipe: &Recipe) {
    let text = recipe.to_toml().unwrap();
    let back = Recipe::parse("back.toml", &text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(&back, recipe, "{text}");
    assert!(recipe.differences(&back).is_empty());
    let plain = recipe.plain().unwrap();
    let json = serde_json::to_string(&plain).unwrap();
    assert_eq!(serde_json::from_str::<AnyRecipe>(&json).unwrap(), plain, "{json}");
    assert_eq!(AnyRecipe::parse(&Source { name: "any.toml".into(), text }, &[]).unwrap(), plain);
}

#[test]
fn a_resolved_recipe_round_trips() {
    let seed = format!("train.seed={}", i64::MAX);
    round_trip(&small(&[&seed, "optim.name=sgd", "optim.lr=1", "optim.momentum=0.9", "optim.nesterov=true"]));
    for (name, _) in Source::embedded() {
        round_trip(&Recipe::load(name, &[]).unwrap());
    }
}

proptest::proptest! {
    #[test]
    fn any_learning_rate_round_trips(lr in 0f64..1e3, decay in 0f64..1.0, mean in -1e3f64..1e3) {
        let mut recipe = small(&[]);
        (recipe.optim.lr, recipe.optim.weight_decay, recipe.data.mean[1]) = (lr, Some(decay), mean);
        round_trip(&recipe);
    }
}

#[test]
fn a_number_that_toml_lacks_is_an_error_not_a_panic() {
    let mut recipe = small(&[]);
    recipe.train.seed = u64::MAX;
    assert!(recipe.to_toml().is_err());
}

#[test]
fn paths_become_absolute() {
    let text = "task = \"classify\"\n[data]\nroot = \"data/x\"\n[model]\nweights = \"w.safetensors\"\n[train]\nsteps = 1\n";
    let recipe = parse(text, &[]).unwrap();
    let here = std::env::current_dir().unwrap();
    assert_eq!(recipe.data.root, Some(here.join("data/x")));
    assert_eq!(recipe.model.weights, Some(here.join("w.safetensors")));
    let saved = recipe.to_toml().unwrap();
    assert!(saved.contains(&format!("root = \"{}\"", here.join("data/x").display())), "{saved}");
}

#[test]
fn overrides_apply_in_order_and_make_sections() {
    let recipe = small(&[
        "optim.schedule.name=cosine",
        "optim.schedule.warmup=3 steps",
        " train.seed = 2 ",
        "train.seed=3",
        "data.mean=[0, 0, 0]",
        "model.name=\"resnet34\"",
        "memory={ micro_batch = 4 }",
        "memory.micro_batch=auto",
        "optim.lr=5e-4",
        "data.workers=2",
    ]);
    assert_eq!(recipe.optim.schedule.name, ScheduleName::Cosine);
    assert_eq!(recipe.optim.schedule.min_lr, Some(0.0), "cosine falls to 0 unless told otherwise");
    assert_eq!(recipe.optim.schedule.warmup, Some(Span::Steps(3)));
    assert_eq!(recipe.train.seed, 3);
    assert_eq!(recipe.data.mean, [0.0; 3]);
    assert_eq!(recipe.model.name, Some(ModelName::Resnet34));
    assert_eq!(recipe.memory.micro_batch, MicroBatch::Auto);
    assert_eq!(recipe.optim.lr, 5e-4);
    assert_eq!(recipe.data.workers.value(), Some(2));
}

#[test]
fn a_byte_order_mark_and_crlf_are_no_matter() {
    let text = format!("\u{feff}{}", SMALL.replace('\n', "\r\n"));
    assert_eq!(parse(&text, &[]).unwrap(), small(&[]));
}

#[test]
fn steps_follow_from_samples() {
    let mut train = Train { effective_batch: 100, epochs: Some(3), ..Train::default() };
    assert_eq!((train.steps_per_epoch(250), train.total_steps(3)), (3, 9));
    train.last_batch = LastBatch::Drop;
    assert_eq!((train.steps_per_epoch(250), train.steps_per_epoch(99)), (2, 0));
    train.steps = Some(4);
    assert_eq!((train.total_steps(2), train.total_steps(1)), (4, 3), "the shorter one counts");
    train.epochs = None;
    assert_eq!(train.total_steps(2), 4);
}

#[test]
fn the_demo_is_generated_and_quick() {
    let recipe = Recipe::load("demo", &[]).unwrap();
    assert_eq!(
        (recipe.data.kind, recipe.data.classes, recipe.data.image_size),
        (DataKind::Generated, 10, 32)
    );
    assert_eq!(recipe.model.name, Some(ModelName::Resnet18));
    assert_eq!(recipe.train.effective_batch, 64);
    assert_eq!(recipe.optim.schedule.name, ScheduleName::Cosine);
    assert!(recipe.optim.schedule.warmup.is_some());
    // About 300 images a second on each of two cores: within 45 s.
    let images = recipe.train.epochs.unwrap() * (recipe.data.train_samples + recipe.data.test_samples) as u64;
    assert!(images <= 45 * 600, "{images} images");
    recipe.check_paths().unwrap();
}

#[test]
fn cifar100_is_a_folder_of_32_pixel_images() {
    let recipe = Recipe::load("cifar100", &[]).unwrap();
    assert_eq!((recipe.data.kind, recipe.data.image_size), (DataKind::Folder, 32));
    assert!(recipe.data.root.as_ref().unwrap().ends_with("data/cifar100"));
    assert_eq!((recipe.train.effective_batch, recipe.data.augment), (128, Augment::Flip));
}

#[test]
fn camvid_is_a_folder_of_scenes_and_masks() {
    let recipe = Recipe::load("camvid", &[]).unwrap();
    assert_eq!((recipe.task.as_str(), recipe.data.kind), ("segment", DataKind::Folder));
    assert_eq!(recipe.model.name, Some(ModelName::Unet));
    // Masks hold 0 to 11; class 11 means no class.
    assert_eq!((recipe.data.classes, recipe.data.ignore), (11, Some(11)));
    assert_eq!((recipe.data.image_size, recipe.train.effective_batch), (160, 8));
    assert_eq!([&recipe.data.train_masks, &recipe.data.test_masks], ["trainannot", "valannot"]);
}

#[test]
fn shakespeare_is_a_text_for_a_small_gpt() {
    let recipe = Recipe::load("shakespeare", &[]).unwrap();
    assert_eq!((recipe.task.as_str(), recipe.data.kind), ("lm", DataKind::Text));
    assert!(recipe.data.root.as_ref().unwrap().ends_with("data/shakespeare"));
    assert_eq!((recipe.data.tokenizer.clone(), recipe.data.augment), (Tokenizer::Chars, Augment::Shift));
    assert_eq!(recipe.model.name, Some(ModelName::Gpt));
    assert_eq!(recipe.optim.decay, Decay::Weights);
}

#[test]
fn networks_are_named_in_files_and_messages() {
    for (recipe, name) in [
        (small(&[]), "resnet18"),
        (parse(samples::EXPORTED, &[]).unwrap(), "deeplab.pt2"),
        (parse(samples::CUSTOM, &[]).unwrap(), "vit"),
        (parse("task = \"custom\"\ntrain.steps = 1", &[]).unwrap(), "custom"),
    ] {
        assert_eq!(recipe.model_name(), name);
    }
}

#[test]
fn a_file_wins_over_an_embedded_name_and_a_folder_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, SMALL).unwrap();
    assert_eq!(Recipe::load(path.to_str().unwrap(), &[]).unwrap(), small(&[]));
    let error = Recipe::load(folder.path().to_str().unwrap(), &[]).unwrap_err();
    assert!(error.to_string().contains("is a folder, not a recipe file"), "{error}");
}
