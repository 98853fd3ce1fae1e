//! `[model]`: the network.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dtrain_common::recipe::Switch;
use dtrain_common::recipe::kinds::{
    AUTO_OR_FLAG, FLAG, GLOBS, Kind, NAME, NAMES, PATH, PATHS, Range, WEIGHTS, choice,
};
use dtrain_common::recipe::one_or_many;
use dtrain_common::section;

use super::figures::FIGURES;
use super::kinds::{BATCH_NORM, JOINS, RENAMES};
use super::lora::{Frozen, Lora};
use super::loss::LOSS;
use super::losses::STEP_LOSSES;
use super::{BatchNorm, Compile, Figure, Join, Loss, MemoryFormat, ModelName, StepLoss, WeightsMode};

/// Larger than any real network; keeps the arithmetic of sizes far from overflow.
const MAX_SIZE: i64 = 1 << 16;

section! {
    /// `[model]`
    Model "model" {
        /// The network; filled in for classify, segment and lm without a file, else none.
        name: Option<ModelName> = None, choice(ModelName::NAMES), experiment;
        /// The absolute path of the network: an exported program.
        file: Option<PathBuf> = None, PATH;
        /// Programs: the field of the data for inputs, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        inputs: BTreeMap<String, String> = BTreeMap::new(), NAMES, experiment;
        /// Programs: the name of the main output.
        output: Option<String> = None, NAME, experiment;
        /// Programs: further outputs that have the same loss, and their weights in the sum.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        auxiliary: BTreeMap<String, f64> = BTreeMap::new(), WEIGHTS, experiment;
        /// Programs: absolute paths of shared libraries with operations, which are loaded before the file.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        libraries: Vec<PathBuf> = Vec::new(), PATHS;
        /// Classify, segment and regress: the loss, or a table of losses that are added; filled in (cross-entropy, binary, mse).
        loss: Loss = Loss::default(), LOSS, experiment;
        /// Program: losses over all samples of a step, which are added to the program's own, if it returns one.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        losses: Vec<StepLoss> = Vec::new(), STEP_LOSSES, experiment;
        /// Classify and program: further figures of evaluations.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        figures: Vec<Figure> = Vec::new(), FIGURES;
        /// Size of a token's vector (vit, gpt) or channels of the first level (unet); filled in (192, 384, 32).
        width: Option<usize> = None, Kind::Whole(1, MAX_SIZE), experiment;
        /// Blocks (vit, gpt) or times that a unet halves the image; filled in (12, 6, 4).
        depth: Option<usize> = None, Kind::Whole(1, 1024), experiment;
        /// Heads of the attention (vit, gpt), a divisor of `width`; filled in (3, 6).
        heads: Option<usize> = None, Kind::Whole(1, 1024), experiment;
        /// Width and height of a vit's patch in pixels, a divisor of the image's; filled in (16).
        patch: Option<usize> = None, Kind::Whole(1, 4096), experiment;
        /// The probability with which an element is dropped in training (vit, gpt), as by torch.nn.Dropout; filled in (0).
        dropout: Option<f64> = None, Kind::Number(Range::BELOW_ONE), experiment;
        /// The probability with which the last block's branches of a sample are dropped (vit); filled in (0).
        drop_path: Option<f64> = None, Kind::Number(Range::BELOW_ONE), experiment;
        /// Tokens of a sample: the context of a gpt, filled in (256), or the length of a program's input.
        context: Option<usize> = None, Kind::Whole(1, 1 << 20), experiment;
        /// The absolute path of a safetensors file with initial weights under their usual PyTorch names.
        weights: Option<PathBuf> = None, PATH;
        /// The tensors that this file must have.
        weights_mode: WeightsMode = WeightsMode::FineTune, choice(WeightsMode::NAMES);
        /// Pairs of a regular expression and its replacement, which turn names in that file into names of the model.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        weights_rename: Vec<(String, String)> = Vec::new(), RENAMES;
        /// Globs of the model's tensors that this file may lack, or have in another shape; all others must be there.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        #[serde(deserialize_with = "one_or_many")]
        weights_new: Vec<String> = Vec::new(), GLOBS;
        /// Whether to train although the file has no weights, from zeros: for measurements of memory and speed.
        zero_weights: bool = false, FLAG, experiment;
        /// Programs and own trainers: how a step joins the values that its micro-batches give to a buffer, by name.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        state: BTreeMap<String, Join> = BTreeMap::new(), JOINS, experiment;
        /// Globs of the parameters that are not trained.
        #[serde(deserialize_with = "one_or_many")]
        freeze: Vec<String> = Vec::new(), GLOBS, experiment;
        /// Adapters of weights: the model's own parameters are frozen, and checkpoints lack them.
        #[serde(skip_serializing_if = "Option::is_none")]
        lora: Option<Lora> = None, Kind::Section(Lora::KEYS), experiment;
        /// Weights that are never trained and take less memory; checkpoints lack them.
        #[serde(skip_serializing_if = "Option::is_none")]
        frozen: Option<Frozen> = None, Kind::Section(Frozen::KEYS), experiment;
        /// The samples that BatchNorm normalises together in training.
        batchnorm: BatchNorm = BatchNorm::Local, BATCH_NORM, experiment;
        /// The memory layout of images and convolution weights.
        memory_format: MemoryFormat = MemoryFormat::Contiguous, choice(MemoryFormat::NAMES);
        /// Whether cuDNN measures its algorithms for each convolution and takes the fastest.
        cudnn_benchmark: Switch = Switch::Auto, AUTO_OR_FLAG;
        /// How a micro-step is submitted to a GPU.
        compile: Compile = Compile::Off, choice(Compile::NAMES);
    }
}
