//! Configurations whose memory is predicted and measured.

/// A configuration.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    base: Base,
    pub(crate) nproc: usize,
    pub(crate) sets: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Base {
    /// Architecture, image side.
    Classify(&'static str, usize),
    /// Image side.
    Segment(usize),
    Text,
}

impl Case {
    /// Returns whether a step counts pixels, which a kernel computes: without one, steps are skipped.
    pub(crate) fn counts_pixels(&self) -> bool {
        matches!(self.base, Base::Segment(_))
    }

    /// Returns whether a prediction assumes copies by cuDNN, which chooses its workspaces: of images that are not channels-last.
    pub(crate) fn assumes_copies(&self) -> bool {
        let has_images =
            matches!(self.base, Base::Classify(name, _) if name != "vit") || self.counts_pixels();
        has_images && !self.sets.contains(&"model.memory_format=channels-last")
    }

    /// Returns its recipe without `sets`.
    pub(crate) fn recipe(&self) -> String {
        let (task, data, model) = match self.base {
            Base::Classify(name, side) => {
                ("classify", format!("image_size = {side}\nclasses = 10\n"), format!("name = \"{name}\"\n"))
            }
            Base::Segment(side) => (
                "segment",
                format!("image_size = {side}\nclasses = 10\n"),
                "name = \"unet\"\nwidth = 16\n".to_owned(),
            ),
            Base::Text => (
                "lm",
                String::new(),
                "name = \"gpt\"\nwidth = 256\ndepth = 6\nheads = 8\ncontext = 128\n".to_owned(),
            ),
        };
        format!(
            "task = \"{task}\"\n[data]\nkind = \"generated\"\ntrain_samples = 64\ntest_samples = 16\n{data}[model]\n{model}[train]\n\
             effective_batch = 8\nsteps = 4\n[optim]\nname = \"adamw\"\nlr = 1e-3\n[precision]\namp = \"off\"\n"
        )
    }
}

const fn case(name: &'static str, base: Base, nproc: usize, sets: &'static [&'static str]) -> Case {
    Case { name, base, nproc, sets }
}

const R18: Base = Base::Classify("resnet18", 96);
const R50: Base = Base::Classify("resnet50", 96);
const VIT: Base = Base::Classify("vit", 128);
const UNET: Base = Base::Segment(128);

pub(crate) const CASES: &[Case] = &[
    case("ResNet-18", R18, 1, &[]),
    case("ResNet-18, micro-batches of 4", R18, 1, &["memory.micro_batch=4"]),
    case("ResNet-18, micro-batches of 2", R18, 1, &["memory.micro_batch=2"]),
    case("ResNet-18, bf16", R18, 1, &["precision.amp=bf16"]),
    case("ResNet-18, recompute", R18, 1, &["memory.recompute=on"]),
    case("ResNet-18, channels-last", R18, 1, &["model.memory_format=channels-last"]),
    case("ResNet-18, SGD with momentum", R18, 1, &["optim.name=sgd", "optim.momentum=0.9"]),
    case("ResNet-18, layers 1 to 3 frozen", R18, 1, &["model.freeze=[\"layer[123].*\"]"]),
    case("ResNet-50", R50, 1, &[]),
    case("ResNet-50, moving average", R50, 1, &["ema.decay=0.99", "memory.micro_batch=4"]),
    case("ResNet-50, recompute, bf16", R50, 1, &["memory.recompute=on", "precision.amp=bf16"]),
    case("ResNet-50, 2 ranks, sharded", R50, 2, &["memory.shard_optimizer=true"]),
    case("ViT", VIT, 1, &[]),
    case("ViT, micro-batches of 2", VIT, 1, &["memory.micro_batch=2"]),
    case("ViT, bf16", VIT, 1, &["precision.amp=bf16"]),
    case("ViT, recompute", VIT, 1, &["memory.recompute=on"]),
    case("U-Net", UNET, 1, &[]),
    case("U-Net, micro-batches of 2", UNET, 1, &["memory.micro_batch=2"]),
    case("U-Net, bf16", UNET, 1, &["precision.amp=bf16"]),
    case("U-Net, recompute", UNET, 1, &["memory.recompute=on"]),
    case("GPT", Base::Text, 1, &[]),
    case("GPT, micro-batches of 1", Base::Text, 1, &["memory.micro_batch=1"]),
    case("GPT, recompute", Base::Text, 1, &["memory.recompute=on"]),
    case("GPT, bf16", Base::Text, 1, &["precision.amp=bf16"]),
    case("GPT, plain SGD", Base::Text, 1, &["optim.name=sgd"]),
    case("GPT, half of its blocks frozen", Base::Text, 1, &["model.freeze=[\"transformer.h.[012].*\"]"]),
    case("GPT, 2 ranks", Base::Text, 2, &[]),
    case("GPT, 4 ranks, sharded", Base::Text, 4, &["memory.shard_optimizer=true"]),
];

/// Sizes that no rule was made for or tested with.
pub(crate) const UNTUNED: &[Case] = &[
    case("U-Net, images of 100 pixels", Base::Segment(100), 1, &[]),
    case("ResNet-18, images of 75 pixels", Base::Classify("resnet18", 75), 1, &[]),
];
