//! Recipes of every task, which together state every setting.

use super::*;

/// A mask folder, resized, in four channels, with a learning rate that falls in steps.
pub(super) const SEGMENT: &str = r#"
task = "segment"
[data]
root = "/data/s"
train = "image"
test = "image_test"
train_masks = "label"
test_masks = "label_test"
val = "image_val"
val_masks = "label_val"
tests = { night = "image_night" }
masks = "index"
ignore = 0
image_size = 128
resize = "stretch"
channels = 4
mean = [0, 0, 0, 0]
std = [2, 2, 2, 2]
augment = "crop-flip"
cache = "off"
nodata = "file"
fill = 0
classes = 7
[model]
name = "unet"
width = 16
depth = 3
[train]
steps = 100
stop_early = { patience = 3, figure = "max mean_iou", min_delta = 0.01 }
[evaluate]
every = "10 steps"
batch = 4
figures = ["mean_iou"]
share = 0.2
samples = 40
[optim]
name = "adam"
schedule = { name = "step", milestones = ["50 steps", "70 steps"], gamma = 0.5 }
[precision]
amp = "bf16"
[test]
samples = 100
[log]
command = "cat"
on_end = "cat"
"#;

/// Binary masks in their own size.
pub(super) const BINARY: &str = r#"
task = "segment"
[data]
root = "/data/s"
masks = "binary"
resize = "none"
[train]
epochs = 3
overfit = 4
[optim]
name = "rmsprop"
lr = 0.01
alpha = 0.9
centered = true
clip_value = 0.5
schedule = { name = "cosine-restarts", every = "2 epochs", stretch = 2, per = "epoch" }
"#;

pub(super) const LM: &str = r#"
task = "lm"
[data]
root = "/data/text.txt"
tokenizer = "bytes"
test_fraction = 0.2
[model]
name = "gpt"
width = 64
depth = 2
heads = 2
context = 32
dropout = 0.1
[train]
steps = 50
[optim]
name = "sgd"
lr = 0.1
momentum = 0.9
nesterov = true
schedule = { name = "onecycle", rise = 0.2, start_factor = 10, final_factor = 100 }
"#;

pub(super) const LM_GENERATED: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 100
test_samples = 10
augment = "none"
[train]
epochs = 1
[optim]
amsgrad = true
schedule = { name = "inverse-sqrt", timescale = "2 epochs", per = "epoch" }
"#;

pub(super) const VIT: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 5
train_samples = 64
test_samples = 16
image_size = 32
augment = "resized-crop-flip"
[model]
name = "vit"
width = 48
depth = 2
heads = 4
patch = 8
drop_path = 0.1
[train]
epochs = 1
[optim]
name = "lion"
lr = 1e-4
layer_decay = 0.75
schedule = { name = "wsd", warmup = "1 step", fall = 0.3, shape = "sqrt" }
"#;

/// An exported program in place of a built-in network.
pub(super) const EXPORTED: &str = r#"
task = "segment"
[data]
root = "/data/s"
classes = 7
[model]
file = "/m/deeplab.pt2"
inputs = { pixel_values = "image" }
output = "out"
auxiliary = { aux = 0.4 }
libraries = ["/m/operations.so"]
[train]
steps = 100
"#;

pub(super) const REGRESS: &str = r#"
task = "regress"
[data]
root = "/data/heights"
target = "map"
train_masks = "lab"
ignore = 0
target_scale = 100
normalize_targets = true
[model]
file = "/m/height.pt2"
loss = "huber"
[[stage]]
name = "first"
steps = 100
loss = "l1"
"#;

/// A program that returns its loss on a text.
pub(super) const PROGRAM: &str = r#"
task = "program"
[data]
target = "tokens"
root = "/data/text.txt"
[model]
file = "/m/gpt.PT2"
inputs = { labels = "targets" }
context = 64
[train]
steps = 100
"#;

pub(super) const CUSTOM: &str = r#"
task = "custom"
[data]
train_masks = "m"
resize = "none"
image_size = 7
mean = [0.5]
test_fraction = 0.5
augment = "shift"
[model]
name = "vit"
file = "x"
patch = 5
heads = 7
[train]
steps = 5
[custom]
noise = 0.5
seen = 2024-02-29
words = ["a", "b"]
inner = { deep = { flag = true }, list = [{ a = 1 }, { b = 2.0 }] }
"#;

/// Two stages, which together state every setting of a stage, in a recipe that takes them all.
pub(super) const STAGES: &str = r#"
task = "regress"
[data]
root = "/data/x"
[model]
file = "/m/net.pt2"
[train]
effective_batch = 16
[optim]
name = "muon"
lr = 1e-3
adjust_lr = "match_rms_adamw"
newton_schulz = "full"
clip_adaptive = 0.01
schedule = { name = "polynomial", power = 0.9, warmup = "2 steps", min_lr = 1e-5 }
group = [{ match = "*.bias", weight_decay = 0, betas = [0.9, 0.99], eps = 1e-6 }]
[ema]
decay = 0.99
[checkpoint]
best = "min loss"
[[stage]]
name = "decoder"
epochs = 30
freeze = ["backbone.*"]
loss = "l1"
[[stage]]
name = "full"
steps = 90
freeze = ["backbone.*", "stem.*"]
unfreeze = [{ at = 0, match = "backbone.3.*" }, { at = 0.5, match = ["backbone.2.*", "stem.*"] }]
effective_batch = 8
micro_batch = 1
lr = 5e-4
lr_factor = 0.5
group = [{ match = "backbone.*", lr_factor = 0.1, weight_decay = 0.05, betas = [0.9, 0.95], eps = 1e-7, muon = false, clip_adaptive = false }]
recompute = "on"
schedule = "continue"
ema = "restart"
best = "restart"
"#;

const CUSTOM_ALONE: &str = "task = \"custom\"\n[[stage]]\nname = \"a\"\nepochs = 2\n";

pub(super) const TABLE: &str =
    "task = \"classify\"\n[data]\nkind = \"table\"\nroot = \"/t.csv\"\n[train]\nepochs = 1\n";

/// Few-shot learning.
const EPISODES: &str = r#"
task = "program"
[data]
root = "/data/b"
val = "novel"
lists = { test = "novel.txt" }
episodes = { n_way = 3, n_query = 5, train = 100, test = 50, val = 20 }
[model]
file = "/m/prototypes.pt2"
[train]
epochs = 2
"#;

/// Two texts.
pub(super) const LM_SOURCES: &str = r#"
task = "lm"
[data]
[[data.source]]
root = "/data/a"
[[data.source]]
root = "/data/b.txt"
[train]
epochs = 1
"#;

/// Any number of classes of an image, in a CSV file with semicolons.
pub(super) const CLASSES: &str = r#"
task = "classify"
[data]
target = "classes"
root = "/data/c"
separator = "semicolon"
[train]
epochs = 1
"#;

/// Texts and images in JSON lines.
pub(super) const CAPTIONS: &str = r#"
task = "program"
[data]
kind = "table"
root = "/data/c.jsonl"
fields = { image = "image:photo", caption = "text:meta.caption" }
tokenizer = "bytes"
[model]
file = "/m/clip.pt2"
context = 64
[train]
epochs = 1
"#;

/// Masks of colours that pair with images by a pattern.
pub(super) const COLORS: &str = r##"
task = "segment"
[data]
root = "/data/s"
train = "Train/Image"
train_masks = "Train/GT"
pair = "{id}_training -> {id}_manual1"
mask_colors = { sky = "#80C0FF", road = [128, 64, 128], void = ["#000000", "#FFFFFF"] }
mask_tolerance = 8
ignore_classes = ["void"]
[train]
epochs = 1
"##;

/// Masks with a threshold.
pub(super) const THRESHOLD: &str = r#"
task = "segment"
[data]
root = "/data/s"
masks = "threshold"
mask_threshold = 100
[train]
epochs = 1
"#;

/// Annotations in COCO's format.
pub(super) const COCO: &str = r#"
task = "segment"
[data]
kind = "coco"
root = "/data/coco"
train = "train2017"
train_masks = "annotations/instances_train2017.json"
test = "val2017"
test_masks = "annotations/instances_val2017.json"
ignore_classes = ["person"]
unannotated = "leave-out"
[train]
epochs = 1
"#;

/// The texts of recipes of every task.
/// Images that are mixed, several times in an epoch.
pub(super) const MIXED: &str = r#"
task = "classify"
[data]
root = "/data/c"
sampler = "repeated"
copies = 2
augment = "flip"
mix = [{ name = "mixup", alpha = 0.8 }, { name = "cutmix", share = 0.25 }]
mix_by = "step"
[train]
epochs = 3
"#;

/// Adapters and frozen weights.
const ADAPTERS: &str = r#"
task = "classify"
[data]
root = "/data"
[model]
name = "vit"
weights = "/weights.safetensors"
weights_new = "head.*"
[model.lora]
match = "*.weight"
rank = 4
[model.frozen]
int8 = ["blocks.*"]
[train]
epochs = 1
"#;

pub(super) const TEXTS: [&str; 30] = [
    ADAPTERS,
    MIXED,
    super::texts::TOKENS,
    super::texts::CHATS,
    CLASSES,
    CAPTIONS,
    COLORS,
    THRESHOLD,
    COCO,
    super::sources::SOURCES,
    LM_SOURCES,
    EPISODES,
    super::documents::DOCUMENTS,
    super::figures::FIGURES,
    super::changes::CHANGES,
    super::losses::LOSSES,
    SMALL,
    TABLE,
    FULL,
    SEGMENT,
    BINARY,
    LM,
    LM_GENERATED,
    VIT,
    EXPORTED,
    REGRESS,
    PROGRAM,
    STAGES,
    CUSTOM,
    CUSTOM_ALONE,
];

pub(super) fn samples() -> Vec<Recipe> {
    TEXTS.iter().map(|text| parse(text, &[]).unwrap()).collect()
}

#[test]
fn every_sample_round_trips() {
    for recipe in samples() {
        round_trip(&recipe);
    }
}
