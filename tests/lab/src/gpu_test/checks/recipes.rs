//! Recipes of the checks: small trainings that take seconds.

/// A GPT: its results do not depend on the micro-batch.
pub(super) const LM: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 256
test_samples = 16
workers = 1
[model]
name = "gpt"
width = 64
depth = 2
heads = 2
context = 32
[train]
effective_batch = 24
steps = 20
seed = 3
[optim]
name = "adamw"
lr = 0.003
schedule = { name = "constant" }
[precision]
amp = "off"
tf32 = false
[memory]
micro_batch = 24
recompute = "off"
[log]
every_steps = 1
"#;

/// A ResNet with normalisation over all ranks.
pub(super) const RESNET: &str = r#"
task = "classify"
[data]
kind = "generated"
classes = 4
train_samples = 128
test_samples = 32
image_size = 32
workers = 1
[model]
name = "resnet18"
cudnn_benchmark = false
[train]
effective_batch = 16
steps = 8
seed = 3
[optim]
name = "sgd"
lr = 0.001
momentum = 0.9
schedule = { name = "constant" }
[precision]
amp = "off"
tf32 = false
[memory]
micro_batch = 16
recompute = "off"
[log]
every_steps = 1
"#;

/// A GPT with a gigabyte or more of activations.
pub(super) const LARGE: &str = r#"
task = "lm"
[data]
kind = "generated"
train_samples = 512
test_samples = 16
workers = 1
[model]
name = "gpt"
width = 384
depth = 6
heads = 6
context = 256
[train]
effective_batch = 64
steps = 6
seed = 3
[optim]
name = "adamw"
lr = 0.0003
schedule = { name = "constant" }
[precision]
amp = "off"
tf32 = false
[memory]
micro_batch = 64
recompute = "off"
[log]
every_steps = 1
"#;

/// Settings of a training that runs until it is stopped.
pub(super) const LONG: &[&str] = &["train.steps=1000000"];
