//! The built-in networks: what a recipe's settings depend on, declared once for each.

use dtrain_common::choices;

use super::Target;

choices! {
    /// The network. Names and layout of parameters are those of its usual PyTorch implementation.
    ModelName {
        Resnet18 = "resnet18": "ResNet-18.",
        Resnet34 = "resnet34": "ResNet-34.",
        Resnet50 = "resnet50": "ResNet-50.",
        Resnet101 = "resnet101": "ResNet-101.",
        Resnet152 = "resnet152": "ResNet-152.",
        Vit = "vit": "A vision transformer.",
        Unet = "unet": "A U-Net.",
        Gpt = "gpt": "A GPT-2-style decoder.",
    }
}

/// The kinds of networks. A size is the default of its setting, or `None` if the network has no such setting.
#[derive(Debug, Clone, Copy)]
pub struct NetworkFacts {
    /// The network in words, such as "a U-Net".
    pub words: &'static str,
    /// The learning target that its output fits.
    pub target: Target,
    /// `model.width`
    pub width: Option<usize>,
    /// `model.depth`
    pub depth: Option<usize>,
    /// `model.heads`, a divisor of the width.
    pub heads: Option<usize>,
    /// `model.patch`, a divisor of the image's size.
    pub patch: Option<usize>,
    /// `model.context`
    pub context: Option<usize>,
    /// Whether it has dropout (`model.dropout`).
    pub drops: bool,
    /// Whether it has stochastic depth (`model.drop_path`).
    pub drops_paths: bool,
    /// Whether each unit of depth halves the image and doubles the width.
    pub halves: bool,
    /// Whether it has convolutions.
    pub convolves: bool,
    /// Whether it has BatchNorm.
    pub has_batch_norm: bool,
    /// A network of the same kind that is smaller.
    pub smaller: Option<ModelName>,
    /// The part that a progressive unfreezing trains first.
    pub last_part: LastPart,
}

/// The last part of a network.
#[derive(Debug, Clone, Copy)]
pub struct LastPart {
    /// The part in words.
    pub words: &'static str,
    /// Globs of the parameters before it, besides those of its blocks.
    pub before: &'static [&'static str],
    /// The prefix of the network's blocks, if the last quarter of them belongs to the part.
    pub blocks: Option<&'static str>,
}

/// The networks that have BatchNorm, for messages. Of the networks with convolutions only these gain from
/// `model.memory_format`.
pub(super) const WITH_BATCH_NORM: &str = "the ResNets and \"unet\"";

const fn resnet(smaller: Option<ModelName>) -> NetworkFacts {
    let before = &["conv1.*", "bn1.*", "layer[1-3].*"];
    let last_part = LastPart { words: "layer4 and fc", before, blocks: None };
    NetworkFacts {
        convolves: true,
        has_batch_norm: true,
        smaller,
        ..NetworkFacts::new("a ResNet", Target::Class, last_part)
    }
}

const VIT: NetworkFacts = NetworkFacts {
    width: Some(192),
    depth: Some(12),
    heads: Some(3),
    patch: Some(16),
    drops: true,
    drops_paths: true,
    convolves: true,
    ..NetworkFacts::new(
        "a vision transformer",
        Target::Class,
        LastPart {
            words: "the last quarter of the blocks",
            before: &["cls_token", "pos_embed", "patch_embed.*"],
            blocks: Some("blocks"),
        },
    )
};

const UNET: NetworkFacts = NetworkFacts {
    width: Some(32),
    depth: Some(4),
    halves: true,
    convolves: true,
    has_batch_norm: true,
    ..NetworkFacts::new(
        "a U-Net",
        Target::Mask,
        LastPart { words: "the decoder", before: &["inc.*", "down*"], blocks: None },
    )
};

const GPT: NetworkFacts = NetworkFacts {
    width: Some(384),
    depth: Some(6),
    heads: Some(6),
    context: Some(256),
    drops: true,
    ..NetworkFacts::new(
        "a GPT",
        Target::Tokens,
        LastPart {
            // The embedding of tokens is also the head.
            words: "the last quarter of the blocks and the head",
            before: &["transformer.wpe.*"],
            blocks: Some("transformer.h"),
        },
    )
};

impl NetworkFacts {
    /// Returns whether the network has a setting of this key.
    pub(super) fn takes(&self, key: &str) -> bool {
        match key {
            "model.width" => self.width.is_some(),
            "model.depth" => self.depth.is_some(),
            "model.heads" => self.heads.is_some(),
            "model.patch" => self.patch.is_some(),
            "model.context" => self.context.is_some(),
            "model.dropout" => self.drops,
            "model.drop_path" => self.drops_paths,
            _ => false,
        }
    }

    /// A network without sizes.
    const fn new(words: &'static str, target: Target, last_part: LastPart) -> Self {
        Self {
            words,
            target,
            width: None,
            depth: None,
            heads: None,
            patch: None,
            context: None,
            drops: false,
            drops_paths: false,
            halves: false,
            convolves: false,
            has_batch_norm: false,
            smaller: None,
            last_part,
        }
    }
}

impl ModelName {
    /// Returns what the network is.
    pub fn facts(self) -> NetworkFacts {
        match self {
            Self::Resnet18 => resnet(None),
            Self::Resnet34 => resnet(Some(Self::Resnet18)),
            Self::Resnet50 => resnet(Some(Self::Resnet34)),
            Self::Resnet101 => resnet(Some(Self::Resnet50)),
            Self::Resnet152 => resnet(Some(Self::Resnet101)),
            Self::Vit => VIT,
            Self::Unet => UNET,
            Self::Gpt => GPT,
        }
    }

    /// Returns the networks of which a fact is true, in the order in which messages list them.
    pub(super) fn all(is_one: impl Fn(&NetworkFacts) -> bool) -> Vec<&'static str> {
        Self::ALL.iter().filter(|name| is_one(&name.facts())).map(|name| name.as_str()).collect()
    }
}
