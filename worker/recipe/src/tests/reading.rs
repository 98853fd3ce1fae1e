//! Reading of recipes: defaults, and every setting of a classification.

use super::*;

#[test]
fn the_smallest_recipe_has_the_documented_defaults() {
    let recipe = small(&[]);
    assert_eq!((recipe.data.image_size, recipe.data.classes), (224, 10));
    assert_eq!((recipe.data.train_samples, recipe.data.test_samples), (2000, 400));
    assert_eq!(recipe.data.mean, IMAGENET_MEAN);
    assert_eq!(recipe.data.std, IMAGENET_STD);
    assert_eq!((recipe.data.workers, recipe.data.augment), (Workers::Auto, Augment::None));
    assert_eq!((recipe.data.train.as_str(), recipe.data.test.as_str()), ("train", "test"));
    assert_eq!(recipe.model, Model { name: Some(ModelName::Resnet18), ..Model::default() });
    assert_eq!((recipe.train.effective_batch, recipe.train.seed), (128, 1));
    assert_eq!(recipe.train.last_batch, LastBatch::Keep);
    assert_eq!((recipe.optim.name, recipe.optim.lr), (OptimName::AdamW, 1e-3));
    assert_eq!((recipe.optim.weight_decay, recipe.optim.betas), (Some(0.01), Some([0.9, 0.999])));
    assert_eq!((recipe.optim.eps, recipe.optim.momentum, recipe.optim.clip), (Some(1e-8), None, None));
    assert_eq!(recipe.optim.schedule, Schedule::default());
    assert_eq!((recipe.optim.decay, &recipe.optim.group[..]), (Decay::All, &[][..]));
    assert_eq!((recipe.precision.amp, recipe.precision.loss_scale), (Amp::Auto, Some(65536.0)));
    assert_eq!((recipe.precision.tf32, recipe.model.cudnn_benchmark), (Switch::Auto, Switch::Auto));
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
    assert_eq!(recipe.memory.micro_batch.value(), None);
    assert_eq!((recipe.checkpoint.every, recipe.checkpoint.keep), (Every::Span(Span::Epochs(1.0)), 3));
    assert_eq!(recipe.log.every_steps, 10);
}

#[test]
fn sgd_has_its_own_defaults() {
    let recipe = small(&["optim.name=sgd", "optim.lr=0.1"]);
    assert_eq!((recipe.optim.weight_decay, recipe.optim.momentum), (Some(0.0), Some(0.0)));
    assert_eq!((recipe.optim.nesterov, recipe.optim.betas, recipe.optim.eps), (Some(false), None, None));
}

/// Every setting of a folder recipe, none at its default.
pub(super) const FULL: &str = r#"
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
weights_mode = "partial"
weights_rename = [['^module\.', ""], ["gamma$", "weight"]]
freeze = ["conv1.*", "bn1.*"]
batchnorm = "synced"
memory_format = "channels-last"
cudnn_benchmark = false

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
keep_every = "2000 steps"
in_memory = true
on_failure = "continue"
best = "max accuracy"

[test]
weights = "best"

[log]
every_steps = 1
trace = "10-12"
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
        workers: Workers::Value(3),
        resize: Resize::Stretch,
        mean: vec![0.0, 0.5, 1.5],
        std: vec![1.0, 0.5, 0.25],
        cache: Cache::Size(ByteSize(4 << 30)),
        augment: Augment::Flip,
        ..Data::default()
    };
    assert_eq!(recipe.data, data);
    assert_eq!(recipe.model.weights, Some(PathBuf::from("/w/resnet.safetensors")));
    assert_eq!(recipe.model.weights_mode, WeightsMode::Partial);
    assert_eq!(recipe.model.weights_rename[0], (r"^module\.".to_owned(), String::new()));
    assert_eq!(recipe.test.map(|test| test.weights), Some(TestWeights::Best));
    assert_eq!((recipe.train.epochs, recipe.train.steps, recipe.train.seed), (Some(10), Some(1000), 7));
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
        betas: None,
        eps: None,
        muon: None,
        clip_adaptive: None,
    };
    assert_eq!(
        recipe.optim.group,
        [group(&["fc.*"], 10.0, None), group(&["layer1.*", "layer2.*"], 0.1, Some(0.0)),]
    );
    assert_eq!(recipe.model.freeze, ["conv1.*", "bn1.*"]);
    assert_eq!(
        (recipe.model.batchnorm, recipe.model.memory_format),
        (BatchNorm::Synced, MemoryFormat::ChannelsLast)
    );
    assert_eq!(recipe.model.cudnn_benchmark, Switch::Value(false));
    assert_eq!(recipe.precision.loss_scale, Some(1024.0));
    assert_eq!(recipe.memory.micro_batch.value(), Some(16));
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
    assert_eq!(recipe.ema, Some(Ema { decay: 0.999, warmup: false }));
    assert_eq!(
        recipe.checkpoint,
        Checkpoint {
            every: Every::Span(Span::Steps(500)),
            keep: 1,
            keep_every: Some(Span::Steps(2000)),
            in_memory: true,
            on_failure: OnFailure::Continue,
            best: Some("max accuracy".parse().unwrap()),
        }
    );
    assert!((recipe.learning_rate() - 2e-4).abs() < 1e-18, "sqrt(256 / 64) x 1e-4");
}
