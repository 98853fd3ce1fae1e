//! The settings of a recipe that are one of a few words. Each list of words is the single source for reading, writing
//! and error messages.

use serde::{Deserialize, Serialize};

macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$variant_doc])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            /// Every value as a recipe spells it.
            pub const NAMES: &'static [&'static str] = &[$($text),+];

            /// The value as a recipe spells it.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

choice! {
    /// What the model learns to do.
    Task {
        /// One class for each image.
        Classify = "classify",
        /// One class for each pixel.
        Segment = "segment",
        /// The next token of a text.
        Lm = "lm",
        /// What a module saved by `torch.jit.script` makes of an image and its class.
        Torchscript = "torchscript",
        /// What a trainer of the user's own makes of it.
        Custom = "custom",
    }
}

choice! {
    /// How a GPU is given the work of a micro-step.
    Compile {
        /// Kernel by kernel.
        Off = "off",
        /// As one graph, captured once and then replayed.
        Graph = "graph",
    }
}

choice! {
    /// Whether segments of the model are computed again in backward instead of keeping what they computed.
    Recompute {
        /// Never.
        Off = "off",
        /// All segments.
        On = "on",
        /// The fewest segments with which the run fits.
        Auto = "auto",
    }
}

choice! {
    /// Where the samples come from.
    DataKind {
        /// A folder of images.
        Folder = "folder",
        /// Samples made by dtrain itself, for trying things out; nothing to download.
        Generated = "generated",
        /// A text file, or a folder of them.
        Text = "text",
    }
}

choice! {
    /// What a mask's values mean.
    Masks {
        /// The value of a pixel is its class; of a palette image, the palette's index.
        Index = "index",
        /// Zero is class 0 and everything else class 1.
        Binary = "binary",
    }
}

choice! {
    /// How images come to the network's size.
    Resize {
        /// The shorter side is scaled to it and the middle square cut out.
        Crop = "crop",
        /// Both sides are scaled to it.
        Stretch = "stretch",
        /// Not at all: all images have the same size, and the network takes it.
        None = "none",
    }
}

choice! {
    /// Random changes to training samples.
    Augment {
        /// None.
        None = "none",
        /// Half of the images are mirrored left to right.
        Flip = "flip",
        /// Moved by up to an eighth of the side, with a black margin, then mirrored as by `flip`.
        CropFlip = "crop-flip",
        /// A random part of another shape and size, scaled to the network's size, then mirrored as by `flip`.
        ResizedCropFlip = "resized-crop-flip",
        /// Windows of text begin at a random place.
        Shift = "shift",
    }
}

choice! {
    /// What a token of a text is.
    Tokenizer {
        /// A character; the vocabulary is the set of characters that occur.
        Chars = "chars",
        /// A byte; the vocabulary has 256.
        Bytes = "bytes",
    }
}

choice! {
    /// The network. Names and layout of parameters are those of its usual PyTorch implementation.
    ModelName {
        /// ResNet-18.
        Resnet18 = "resnet18",
        /// ResNet-34.
        Resnet34 = "resnet34",
        /// ResNet-50.
        Resnet50 = "resnet50",
        /// ResNet-101.
        Resnet101 = "resnet101",
        /// ResNet-152.
        Resnet152 = "resnet152",
        /// A vision transformer.
        Vit = "vit",
        /// A U-Net.
        Unet = "unet",
        /// A GPT-2-style decoder.
        Gpt = "gpt",
    }
}

choice! {
    /// What is made of a TorchScript module's output.
    Loss {
        /// Cross-entropy of the output, one logit per class, against the class.
        CrossEntropy = "cross-entropy",
        /// Mean squared difference of the output to the target.
        Mse = "mse",
        /// The module takes sample and target and returns the loss of each sample itself.
        Module = "module",
    }
}

choice! {
    /// Over what BatchNorm takes its statistics in training.
    BatchNorm {
        /// Over the micro-batch of one rank.
        Local = "local",
        /// Over the micro-batches of all ranks together.
        Synced = "synced",
    }
}

choice! {
    /// How the values of images and convolution weights lie in memory.
    MemoryFormat {
        /// Channel by channel.
        Contiguous = "contiguous",
        /// Pixel by pixel.
        ChannelsLast = "channels-last",
    }
}

choice! {
    /// What happens to the samples that do not fill the last step of an epoch.
    LastBatch {
        /// They make a shorter step.
        Keep = "keep",
        /// They are left out of this epoch.
        Drop = "drop",
    }
}

choice! {
    /// The optimizer.
    OptimName {
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Adam; weight decay is added to the gradient.
        Adam = "adam",
        /// Stochastic gradient descent.
        Sgd = "sgd",
    }
}

choice! {
    /// Which parameters are decayed.
    Decay {
        /// All.
        All = "all",
        /// Weights only: neither biases nor the scales of norms, which have fewer than two dimensions.
        Weights = "weights",
    }
}

choice! {
    /// The course of the learning rate after the warm-up.
    ScheduleName {
        /// Stays.
        Constant = "constant",
        /// Falls in a straight line to `min_lr` at the end of the run.
        Linear = "linear",
        /// Falls along half a cosine to `min_lr` at the end of the run.
        Cosine = "cosine",
        /// Is multiplied by `gamma` at certain times.
        Step = "step",
        /// Is multiplied by `gamma` in every step or epoch.
        Exponential = "exponential",
        /// Rises along half a cosine, then falls along another to almost nothing.
        OneCycle = "onecycle",
    }
}

choice! {
    /// How often a schedule moves the learning rate.
    Per {
        /// With every optimizer step.
        Step = "step",
        /// Between epochs only.
        Epoch = "epoch",
    }
}

choice! {
    /// What becomes of something that runs on, where a stage begins.
    Passage {
        /// It goes on.
        Continue = "continue",
        /// It begins again.
        Restart = "restart",
    }
}

choice! {
    /// How closely a file of weights to start from must fit the model.
    WeightsMode {
        /// Every tensor, but for the head of another number of classes.
        FineTune = "fine-tune",
        /// Every tensor.
        Strict = "strict",
        /// Whatever fits by name and shape.
        Partial = "partial",
    }
}

choice! {
    /// Which weights of a run are tested at its end.
    TestWeights {
        /// Those of the best checkpoint.
        Best = "best",
        /// The last.
        Last = "last",
    }
}

choice! {
    /// What a checkpoint that cannot be written means for the run.
    OnFailure {
        /// Its end.
        Stop = "stop",
        /// A warning; the next one is tried when its time comes.
        Continue = "continue",
    }
}

choice! {
    /// Which of two figures is the better one.
    Goal {
        /// The larger.
        Max = "max",
        /// The smaller.
        Min = "min",
    }
}

choice! {
    /// Automatic mixed precision.
    Amp {
        /// Where the device is faster with it; never on a CPU.
        Auto = "auto",
        /// Everything in float32.
        Off = "off",
        /// bfloat16 where it is safe.
        Bf16 = "bf16",
        /// float16 where it is safe, with a scaled loss.
        Fp16 = "fp16",
    }
}

choice! {
    /// In what form gradients travel between ranks.
    Compress {
        /// As they are.
        None = "none",
        /// As bfloat16.
        Bf16 = "bf16",
        /// As float16.
        Fp16 = "fp16",
    }
}
