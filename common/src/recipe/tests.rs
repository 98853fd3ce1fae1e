#![allow(clippy::unwrap_used)]

mod checks;
mod errors;
mod keys;
mod samples;

use std::path::PathBuf;

use super::*;
use samples::samples;

/// The smallest recipe that is valid.
const SMALL: &str = "task = \"classify\"\n[data]\nkind = \"generated\"\n[train]\nepochs = 1\n";

fn parse(text: &str, overrides: &[&str]) -> Result<Recipe, RecipeError> {
    let overrides: Vec<String> = overrides.iter().map(|set| set.to_string()).collect();
    Recipe::parse("a.toml", text, &overrides)
}

fn small(overrides: &[&str]) -> Recipe {
    parse(SMALL, overrides).unwrap()
}

#[test]
fn the_smallest_recipe_has_the_documented_defaults() {
    let recipe = small(&[]);
    assert_eq!((recipe.data.image_size, recipe.data.classes), (224, 10));
    assert_eq!((recipe.data.train_samples, recipe.data.test_samples), (2000, 400));
    assert_eq!(recipe.data.mean, IMAGENET_MEAN);
    assert_eq!(recipe.data.std, IMAGENET_STD);
    assert_eq!(
        (recipe.data.workers, recipe.data.augment),
        (Workers::Auto, Augment::None)
    );
    assert_eq!(
        (recipe.data.train.as_str(), recipe.data.test.as_str()),
        ("train", "test")
    );
    assert_eq!(
        recipe.model,
        Model {
            name: Some(ModelName::Resnet18),
            ..Model::default()
        }
    );
    assert_eq!((recipe.train.effective_batch, recipe.train.seed), (128, 1));
    assert_eq!(recipe.train.last_batch, LastBatch::Keep);
    assert_eq!((recipe.optim.name, recipe.optim.lr), (OptimName::AdamW, 1e-3));
    assert_eq!(
        (recipe.optim.weight_decay, recipe.optim.betas),
        (Some(0.01), Some([0.9, 0.999]))
    );
    assert_eq!(
        (recipe.optim.eps, recipe.optim.momentum, recipe.optim.clip),
        (Some(1e-8), None, None)
    );
    assert_eq!(recipe.optim.schedule, Schedule::default());
    assert_eq!(
        (recipe.optim.decay, &recipe.optim.group[..]),
        (Decay::All, &[][..])
    );
    assert_eq!(
        (recipe.precision.amp, recipe.precision.loss_scale),
        (Amp::Auto, Some(65536.0))
    );
    assert!(!recipe.memory.shard_optimizer);
    assert_eq!(
        recipe.reduce,
        Reduce {
            bucket: ByteSize(25 << 20),
            first_bucket: ByteSize(1 << 20),
            overlap: true,
            compress: Compress::None,
        }
    );
    assert_eq!((recipe.ema, recipe.custom.len()), (None, 0));
    assert_eq!(recipe.memory.micro_batch.limit(), None);
    assert_eq!(
        (recipe.checkpoint.every, recipe.checkpoint.keep),
        (Span::Epochs(1.0), 3)
    );
    assert_eq!(recipe.log.every_steps, 10);
}

#[test]
fn sgd_has_its_own_defaults() {
    let recipe = small(&["optim.name=sgd", "optim.lr=0.1"]);
    assert_eq!(
        (recipe.optim.weight_decay, recipe.optim.momentum),
        (Some(0.0), Some(0.0))
    );
    assert_eq!(
        (recipe.optim.nesterov, recipe.optim.betas, recipe.optim.eps),
        (Some(false), None, None)
    );
}

/// Every setting that a folder recipe takes, none at its default.
const FULL: &str = r#"
task = "classify"

[data]
kind = "folder"
root = "/data/x"
train = "a/b"
test = "c"
image_size = 64
resize = "stretch"
channels = 3
workers = 3
cache = "4 GiB"
mean = [0, 0.5, 1.5]
std = [1, 0.5, 0.25]
augment = "flip"

[model]
name = "resnet34"
weights = "/w/resnet.safetensors"
freeze = ["conv1.*", "bn1.*"]
batchnorm = "synced"
memory_format = "channels-last"

[train]
effective_batch = 256
epochs = 10
steps = 1000
seed = 7
last_batch = "drop"

[optim]
name = "adamw"
lr = 1e-4
reference_batch = 64
scaling = "sqrt"
weight_decay = 0.05
decay = "weights"
betas = [0.8, 0.9]
eps = 1e-6
clip = 1
schedule = { name = "cosine", warmup = "0.5 epochs", per = "epoch", min_lr = 1e-6 }

[[optim.group]]
match = "fc.*"
lr_factor = 10

[[optim.group]]
match = ["layer1.*", "layer2.*"]
lr_factor = 0.1
weight_decay = 0

[precision]
amp = "fp16"
loss_scale = 1024

[memory]
micro_batch = 16
shard_optimizer = true

[reduce]
bucket = "1 MiB"
first_bucket = 2048
overlap = false
compress = "bf16"

[ema]
decay = 0.999
warmup = false

[checkpoint]
every = "500 steps"
keep = 1

[log]
every_steps = 1
"#;

#[test]
fn every_setting_reads() {
    let recipe = parse(FULL, &[]).unwrap();
    let data = Data {
        kind: DataKind::Folder,
        root: Some("/data/x".into()),
        train: "a/b".into(),
        test: "c".into(),
        image_size: 64,
        workers: Workers::Count(3),
        resize: Resize::Stretch,
        mean: vec![0.0, 0.5, 1.5],
        std: vec![1.0, 0.5, 0.25],
        cache: Cache::Size(ByteSize(4 << 30)),
        augment: Augment::Flip,
        ..Data::default()
    };
    assert_eq!(recipe.data, data);
    assert_eq!(recipe.model.weights, Some(PathBuf::from("/w/resnet.safetensors")));
    assert_eq!(
        (recipe.train.epochs, recipe.train.steps, recipe.train.seed),
        (Some(10), Some(1000), 7)
    );
    assert_eq!(recipe.optim.betas, Some([0.8, 0.9]));
    assert_eq!(recipe.optim.clip, Some(1.0));
    let schedule = Schedule {
        name: ScheduleName::Cosine,
        warmup: Some(Span::Epochs(0.5)),
        per: Per::Epoch,
        min_lr: Some(1e-6),
        ..Schedule::default()
    };
    assert_eq!(recipe.optim.schedule, schedule);
    let group = |patterns: &[&str], lr_factor, weight_decay| OptimGroup {
        patterns: patterns.iter().map(|pattern| pattern.to_string()).collect(),
        lr_factor,
        weight_decay,
    };
    assert_eq!(
        recipe.optim.group,
        [
            group(&["fc.*"], 10.0, None),
            group(&["layer1.*", "layer2.*"], 0.1, Some(0.0)),
        ]
    );
    assert_eq!(recipe.model.freeze, ["conv1.*", "bn1.*"]);
    assert_eq!(
        (recipe.model.batchnorm, recipe.model.memory_format),
        (BatchNorm::Synced, MemoryFormat::ChannelsLast)
    );
    assert_eq!(recipe.precision.loss_scale, Some(1024.0));
    assert_eq!(recipe.memory.micro_batch.limit(), Some(16));
    assert!(recipe.memory.shard_optimizer);
    assert_eq!(
        recipe.reduce,
        Reduce {
            bucket: ByteSize(1 << 20),
            first_bucket: ByteSize(2048),
            overlap: false,
            compress: Compress::Bf16,
        }
    );
    assert_eq!(
        recipe.ema,
        Some(Ema {
            decay: 0.999,
            warmup: false
        })
    );
    assert_eq!(
        recipe.checkpoint,
        Checkpoint {
            every: Span::Steps(500),
            keep: 1
        }
    );
    assert!(
        (recipe.learning_rate() - 2e-4).abs() < 1e-18,
        "sqrt(256 / 64) x 1e-4"
    );
}

fn round_trip(recipe: &Recipe) {
    let text = recipe.to_toml().unwrap();
    let back = Recipe::parse("back.toml", &text, &[]).unwrap_or_else(|error| panic!("{error}\n{text}"));
    assert_eq!(&back, recipe, "{text}");
    assert!(recipe.differences(&back).is_empty());
    let json = serde_json::to_string(recipe).unwrap();
    assert_eq!(&serde_json::from_str::<Recipe>(&json).unwrap(), recipe, "{json}");
}

#[test]
fn a_resolved_recipe_round_trips() {
    round_trip(&parse(FULL, &[]).unwrap());
    round_trip(&small(&[]));
    let seed = format!("train.seed={}", i64::MAX);
    round_trip(&small(&[
        &seed,
        "optim.name=sgd",
        "optim.lr=1",
        "optim.momentum=0.9",
        "optim.nesterov=true",
    ]));
    for (name, _) in Recipe::embedded() {
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
    assert!(
        saved.contains(&format!("root = \"{}\"", here.join("data/x").display())),
        "{saved}"
    );
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
    assert_eq!(
        recipe.optim.schedule.min_lr,
        Some(0.0),
        "cosine falls to 0 unless told otherwise"
    );
    assert_eq!(recipe.optim.schedule.warmup, Some(Span::Steps(3)));
    assert_eq!(recipe.train.seed, 3);
    assert_eq!(recipe.data.mean, [0.0; 3]);
    assert_eq!(recipe.model.name, Some(ModelName::Resnet34));
    assert_eq!(recipe.memory.micro_batch, MicroBatch::Auto);
    assert_eq!(recipe.optim.lr, 5e-4);
    assert_eq!(recipe.data.workers.count(), Some(2));
}

#[test]
fn a_byte_order_mark_and_crlf_are_no_matter() {
    let text = format!("\u{feff}{}", SMALL.replace('\n', "\r\n"));
    assert_eq!(parse(&text, &[]).unwrap(), small(&[]));
}

#[test]
fn steps_follow_from_samples() {
    let mut train = Train {
        effective_batch: 100,
        epochs: Some(3),
        ..Train::default()
    };
    assert_eq!((train.steps_per_epoch(250), train.total_steps(3)), (3, 9));
    train.last_batch = LastBatch::Drop;
    assert_eq!((train.steps_per_epoch(250), train.steps_per_epoch(99)), (2, 0));
    train.steps = Some(4);
    assert_eq!(
        (train.total_steps(2), train.total_steps(1)),
        (4, 3),
        "the shorter one counts"
    );
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
    assert_eq!(
        (recipe.train.effective_batch, recipe.data.augment),
        (128, Augment::Flip)
    );
}

#[test]
fn a_file_wins_over_an_embedded_name_and_a_folder_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.toml");
    std::fs::write(&path, SMALL).unwrap();
    assert_eq!(Recipe::load(path.to_str().unwrap(), &[]).unwrap(), small(&[]));
    let error = Recipe::load(folder.path().to_str().unwrap(), &[]).unwrap_err();
    assert!(
        error.to_string().contains("is a folder, not a recipe file"),
        "{error}"
    );
}

#[test]
fn differences_are_those_of_the_experiment() {
    let recipe = small(&[]);
    let free = [
        "train.epochs=9",
        "train.steps=9",
        "data.workers=7",
        "model.weights=/w",
        "memory.micro_batch=2",
        "checkpoint.every=7 steps",
        "checkpoint.keep=9",
        "log.every_steps=3",
        "precision.amp=off",
    ];
    assert_eq!(recipe.differences(&small(&free)), []);
    // Stating a default changes nothing.
    assert_eq!(
        recipe.differences(&small(&["optim.weight_decay=0.01", "optim.betas=[0.9, 0.999]"])),
        []
    );

    let other = small(&["train.effective_batch=64", "optim.clip=1", "model.name=resnet34"]);
    let expected = [
        ("model.name", "\"resnet18\"", "\"resnet34\""),
        ("train.effective_batch", "128", "64"),
    ];
    let mut expected: Vec<_> = expected.map(|(k, a, b)| (k.into(), a.into(), b.into())).into();
    expected.push(("optim.clip".to_string(), "not set".to_string(), "1.0".to_string()));
    assert_eq!(recipe.differences(&other), expected);
}

#[test]
fn where_the_data_lies_is_no_difference() {
    let at = |root: &str| parse(FULL, &[&format!("data.root={root}")]).unwrap();
    assert_eq!(at("/a").differences(&at("/b")), []);
    assert_eq!(
        at("/a")
            .differences(&parse(FULL, &["data.train=other"]).unwrap())
            .len(),
        1
    );
}
