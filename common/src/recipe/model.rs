//! `[model]`: the network.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{BatchNorm, Compile, Loss, MemoryFormat, ModelName, Switch, WeightsMode};

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Model {
    /// The network; always given after [`Recipe::load`] for the tasks classify, segment and lm, never for torchscript,
    /// and as the user has it for a custom task.
    ///
    /// [`Recipe::load`]: super::Recipe::load
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<ModelName>,
    /// Torchscript: the file of the module; absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// Torchscript: what is made of the module's output.
    pub loss: Loss,
    /// Size of a token's vector (vit, gpt) or channels of the first level (unet); filled in (192, 384, 32).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<usize>,
    /// Blocks (vit, gpt) or times that a unet halves the image; filled in (12, 6, 4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub depth: Option<usize>,
    /// Heads of the attention (vit, gpt), a divisor of `width`; filled in (3, 6).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heads: Option<usize>,
    /// Width and height of a vit's patch in pixels, a divisor of the image's; filled in (16).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub patch: Option<usize>,
    /// Tokens that a gpt sees at once; filled in (256).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
    /// A safetensors file with the usual PyTorch names to start from; absolute. Without it the weights are drawn from the
    /// seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<PathBuf>,
    /// How closely that file must fit the model.
    pub weights_mode: WeightsMode,
    /// Pairs of a regular expression and what takes the place of its matches, which make the names in that file those of the model.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub weights_rename: Vec<(String, String)>,
    /// Globs of the parameters that are not trained.
    pub freeze: Vec<String>,
    /// Over what BatchNorm takes its statistics in training.
    pub batchnorm: BatchNorm,
    /// How images and convolution weights lie in memory.
    pub memory_format: MemoryFormat,
    /// Whether cuDNN tries which of its algorithms is the fastest for each convolution.
    pub cudnn_benchmark: Switch,
    /// How a GPU is given the work of a micro-step.
    pub compile: Compile,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            name: None,
            file: None,
            loss: Loss::CrossEntropy,
            width: None,
            depth: None,
            heads: None,
            patch: None,
            context: None,
            weights: None,
            weights_mode: WeightsMode::FineTune,
            weights_rename: Vec::new(),
            freeze: Vec::new(),
            batchnorm: BatchNorm::Local,
            memory_format: MemoryFormat::Contiguous,
            cudnn_benchmark: Switch::Auto,
            compile: Compile::Off,
        }
    }
}

impl ModelName {
    /// Whether it is one of the ResNets.
    pub fn is_resnet(self) -> bool {
        matches!(
            self,
            Self::Resnet18 | Self::Resnet34 | Self::Resnet50 | Self::Resnet101 | Self::Resnet152
        )
    }
}
