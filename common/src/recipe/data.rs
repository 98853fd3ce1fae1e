//! `[data]`: the samples.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Augment, Cache, DataKind, Masks, Resize, Tokenizer, Workers};

/// `[data]`. Which field means something depends on the task and on `kind`; see docs/recipe.md. The others are at their
/// defaults.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Folder, generated or text; text for a language model and folder for the rest unless said otherwise.
    pub kind: DataKind,
    /// Folder that holds the folders below; for text a file, or a folder of files. Absolute, and given for `folder` and
    /// `text` unless the task is the user's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<PathBuf>,
    /// Name of the folder of training images below `root`.
    pub train: String,
    /// Name of the folder of test images below `root`.
    pub test: String,
    /// Name of the folder of the training images' masks below `root`.
    pub train_masks: String,
    /// Name of the folder of the test images' masks below `root`.
    pub test_masks: String,
    /// What a mask's values mean.
    pub masks: Masks,
    /// The value of mask pixels that are not learnt from.
    pub ignore: u16,
    /// Width and height of the network's input in pixels. Means nothing for a folder with `resize = "none"`.
    pub image_size: usize,
    /// How a folder's images come to that size.
    pub resize: Resize,
    /// Channels of an image; as many numbers are in `mean` and `std`.
    pub channels: usize,
    /// Mean of each channel (values run from 0 to 1), subtracted from the input.
    pub mean: Vec<f64>,
    /// Standard deviation of each channel, by which the input is divided.
    pub std: Vec<f64>,
    /// Random changes to training samples.
    pub augment: Augment,
    /// Loader threads of each rank.
    pub workers: Workers,
    /// Memory for a folder's decoded images, for each rank.
    pub cache: Cache,
    /// Number of classes of generated images, or of masks. Classification takes the classes of a folder from its
    /// sub-folders; this field then means nothing.
    pub classes: usize,
    /// Training samples of generated data.
    pub train_samples: usize,
    /// Test samples of generated data.
    pub test_samples: usize,
    /// What a token of a text is.
    pub tokenizer: Tokenizer,
    /// The part of a text, at its end, that is tested on; above 0 and below 1.
    pub test_fraction: f64,
}

/// Mean of ImageNet's training images by channel.
pub const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
/// Standard deviation of ImageNet's training images by channel.
pub const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];

impl Default for Data {
    fn default() -> Self {
        Self {
            kind: DataKind::Folder,
            root: None,
            train: "train".into(),
            test: "test".into(),
            train_masks: "train_masks".into(),
            test_masks: "test_masks".into(),
            masks: Masks::Index,
            ignore: 255,
            image_size: 224,
            resize: Resize::Crop,
            channels: 3,
            mean: IMAGENET_MEAN.into(),
            std: IMAGENET_STD.into(),
            augment: Augment::None,
            workers: Workers::Auto,
            cache: Cache::Auto,
            classes: 10,
            train_samples: 2000,
            test_samples: 400,
            tokenizer: Tokenizer::Chars,
            test_fraction: 0.1,
        }
    }
}
