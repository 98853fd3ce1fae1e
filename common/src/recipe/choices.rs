//! The settings of the general sections that are one of a few words.

use crate::choices;

choices! {
    /// Whether backward recomputes segments of the model instead of keeping their activations.
    Recompute {
        Off = "off": "Never.",
        On = "on": "All segments.",
        Auto = "auto": "The fewest segments with which the step fits in memory.",
    }

    /// The use of the samples that do not fill the last step of an epoch.
    LastBatch {
        Keep = "keep": "They make a shorter step.",
        Drop = "drop": "They are left out of this epoch.",
    }

    /// The optimizer.
    OptimName {
        AdamW = "adamw": "Adam with decoupled weight decay.",
        Adam = "adam": "Adam; weight decay is added to the gradient.",
        Sgd = "sgd": "Stochastic gradient descent.",
        RmsProp = "rmsprop": "RMSprop.",
        Lion = "lion": "The sign of a mean gradient, with decoupled weight decay (Chen et al. 2023, arXiv 2302.06675).",
        Muon = "muon": "Orthogonalized momentum for the weight matrices of hidden layers (Jordan et al. 2024), AdamW for the rest.",
    }

    /// How Muon's learning rate depends on the shape of a matrix of `rows` outputs and `columns` inputs.
    AdjustLr {
        Original = "original": "Times the root of rows / columns, if that is above 1 (Jordan et al. 2024).",
        MatchRmsAdamW = "match_rms_adamw": "Times 0.2 times the root of the larger side, for updates as large as AdamW's (Liu et al. 2025, arXiv 2502.16982).",
    }

    /// The precision of the products that orthogonalize a matrix.
    NewtonSchulz {
        Bf16 = "bf16": "bfloat16, as in PyTorch.",
        Full = "full": "That of the parameters.",
    }

    /// The rule to scale a learning rate from one batch size to another.
    Scaling {
        None = "none": "The learning rate is used as stated.",
        Linear = "linear": "In proportion to the batch (Goyal et al. 2017, arXiv 1706.02677).",
        Sqrt = "sqrt": "In proportion to the square root of the batch (Malladi et al. 2022, arXiv 2205.10287).",
    }

    /// The parameters with weight decay.
    Decay {
        All = "all": "All.",
        Weights = "weights": "Tensors of two or more dimensions, so neither biases nor norms.",
    }

    /// How often a schedule changes the learning rate.
    Per {
        Step = "step": "With every optimizer step.",
        Epoch = "epoch": "Between epochs only.",
    }

    /// Whether a schedule, average or comparison continues at the start of a stage.
    AtStageStart {
        Continue = "continue": "It continues.",
        Restart = "restart": "It starts anew.",
    }

    /// The weights for the final test.
    TestWeights {
        Best = "best": "The weights of the best checkpoint.",
        Last = "last": "The last weights.",
    }

    /// Reaction of the run if a checkpoint cannot be written.
    OnFailure {
        Stop = "stop": "The run stops.",
        Continue = "continue": "A warning; the run writes the next checkpoint as usual.",
    }

    /// The better one of two figures.
    Goal {
        Max = "max": "The larger one.",
        Min = "min": "The smaller one.",
    }

    /// Automatic mixed precision.
    Amp {
        Auto = "auto": "If the device is faster with it; never on a CPU.",
        Off = "off": "Everything in float32.",
        Bf16 = "bf16": "bfloat16 for the operations that PyTorch's autocast selects.",
        Fp16 = "fp16": "float16 for the same operations, with a scaled loss.",
    }

    /// The data type of gradients between ranks.
    Compress {
        None = "none": "Their own type.",
        Bf16 = "bf16": "bfloat16.",
        Fp16 = "fp16": "float16.",
    }
}
