//! The settings of a recipe that are one of a few words.

use crate::choice::choices;

choices! {
    /// What the model learns to do.
    Task {
        Classify = "classify": "One class for each image.",
        Segment = "segment": "One class for each pixel.",
        Lm = "lm": "The next token of a text.",
        Torchscript = "torchscript": "What a module of `torch.jit.script` makes of an image and its class.",
        Custom = "custom": "What a trainer of the user's own makes of it.",
    }

    /// How a GPU is given the work of a micro-step.
    Compile {
        Off = "off": "Kernel by kernel.",
        Graph = "graph": "As one graph, captured once and then replayed.",
    }

    /// Whether segments of the model are computed again in backward instead of keeping what they computed.
    Recompute {
        Off = "off": "Never.",
        On = "on": "All segments.",
        Auto = "auto": "The fewest segments with which the run fits.",
    }

    /// Where the samples come from.
    DataKind {
        Folder = "folder": "A folder of images.",
        Generated = "generated": "Samples made by dtrain itself, for trying things out; nothing to download.",
        Text = "text": "A text file, or a folder of them.",
    }

    /// What a mask's values mean.
    Masks {
        Index = "index": "The value of a pixel is its class; of a palette image, the palette's index.",
        Binary = "binary": "Zero is class 0 and everything else class 1.",
    }

    /// How images come to the network's size.
    Resize {
        Crop = "crop": "The shorter side is scaled to it and the middle square cut out.",
        Stretch = "stretch": "Both sides are scaled to it.",
        None = "none": "Not at all: all images have the same size, and the network takes it.",
    }

    /// Random changes to training samples.
    Augment {
        None = "none": "None.",
        Flip = "flip": "Half of the images are mirrored left to right.",
        CropFlip = "crop-flip": "Moved by up to an eighth of the side over black, then mirrored as by `flip`.",
        ResizedCropFlip = "resized-crop-flip": "A random part, scaled to the network's size, then mirrored as by `flip`.",
        Shift = "shift": "Windows of text begin at a random place.",
    }

    /// What a token of a text is.
    Tokenizer {
        Chars = "chars": "A character; the vocabulary is the set of characters that occur.",
        Bytes = "bytes": "A byte; the vocabulary has 256.",
    }

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

    /// What is made of a TorchScript module's output.
    Loss {
        CrossEntropy = "cross-entropy": "Cross-entropy of the output, one logit per class.",
        Mse = "mse": "Mean squared difference of the output to the target.",
        Module = "module": "The module takes sample and target and returns the loss of each sample itself.",
    }

    /// How the values of images and convolution weights lie in memory.
    MemoryFormat {
        Contiguous = "contiguous": "Channel by channel.",
        ChannelsLast = "channels-last": "Pixel by pixel.",
    }

    /// What happens to the samples that do not fill the last step of an epoch.
    LastBatch {
        Keep = "keep": "They make a shorter step.",
        Drop = "drop": "They are left out of this epoch.",
    }

    /// The optimizer.
    OptimName {
        AdamW = "adamw": "Adam with decoupled weight decay.",
        Adam = "adam": "Adam; weight decay is added to the gradient.",
        Sgd = "sgd": "Stochastic gradient descent.",
    }

    /// The rule by which a learning rate stated for one batch follows another.
    Scaling {
        None = "none": "The learning rate is used as stated.",
        Linear = "linear": "In proportion to the batch (Goyal et al. 2017, arXiv 1706.02677).",
        Sqrt = "sqrt": "In proportion to the square root of the batch (Malladi et al. 2022, arXiv 2205.10287).",
    }

    /// Which parameters are decayed.
    Decay {
        All = "all": "All.",
        Weights = "weights": "Weights only: what has two dimensions or more, so neither biases nor norms.",
    }

    /// The course of the learning rate after the warm-up.
    ScheduleName {
        Constant = "constant": "Stays.",
        Linear = "linear": "Falls in a straight line to `min_lr` at the end of the run.",
        Cosine = "cosine": "Falls along half a cosine to `min_lr` at the end of the run.",
        Step = "step": "Is multiplied by `gamma` at certain times.",
        Exponential = "exponential": "Is multiplied by `gamma` in every step or epoch.",
        OneCycle = "onecycle": "Rises along half a cosine, then falls along another to almost nothing.",
    }

    /// How often a schedule moves the learning rate.
    Per {
        Step = "step": "With every optimizer step.",
        Epoch = "epoch": "Between epochs only.",
    }

    /// What becomes of something that runs on, where a stage begins.
    AtStageStart {
        Continue = "continue": "It goes on.",
        Restart = "restart": "It begins again.",
    }

    /// How closely a file of weights to start from must fit the model.
    WeightsMode {
        FineTune = "fine-tune": "Every tensor, but for the head of another number of classes.",
        Strict = "strict": "Every tensor.",
        Partial = "partial": "Whatever fits by name and shape.",
    }

    /// Which weights of a run are tested at its end.
    TestWeights {
        Best = "best": "Those of the best checkpoint.",
        Last = "last": "The last.",
    }

    /// What a checkpoint that cannot be written means for the run.
    OnFailure {
        Stop = "stop": "Its end.",
        Continue = "continue": "A warning; the next one is tried when its time comes.",
    }

    /// Which of two figures is the better one.
    Goal {
        Max = "max": "The larger.",
        Min = "min": "The smaller.",
    }

    /// Automatic mixed precision.
    Amp {
        Auto = "auto": "Where the device is faster with it; never on a CPU.",
        Off = "off": "Everything in float32.",
        Bf16 = "bf16": "bfloat16 where it is safe.",
        Fp16 = "fp16": "float16 where it is safe, with a scaled loss.",
    }

    /// In what form gradients travel between ranks.
    Compress {
        None = "none": "As they are.",
        Bf16 = "bf16": "As bfloat16.",
        Fp16 = "fp16": "As float16.",
    }
}
