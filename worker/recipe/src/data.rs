//! `[data]`: the samples.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dtrain_common::recipe::kinds::{CACHE, COUNT, FLAG, Kind, PART, PATH, Range, choice};
use dtrain_common::recipe::{Cache, Workers};
use dtrain_common::section;

use super::changes::CHANGES;
use super::kinds::{CLASS_NAMES, COLORS, FIELDS, FOLDER_NAME, LISTS, PAIR, REPEATS, TOKENIZER};
use super::mixes::MIXES;
use super::no_data::{NO_DATA, NoData};
use super::sets::{TEST, TESTS, VAL, part_of_train};
use super::sources::SOURCES;
use super::{
    Augment, Change, DataKind, Decode, Documents, Episodes, Interpolation, MaskColors, Masks, Mix, MixBy,
    Orientation, Pair, Resize, Sampler, Separator, Source, Target, TokenType, Tokenizer, Unannotated, Val,
};

/// Mean of ImageNet's training images by channel.
pub const IMAGENET_MEAN: [f64; 3] = [0.485, 0.456, 0.406];
/// Standard deviation of ImageNet's training images by channel.
pub const IMAGENET_STD: [f64; 3] = [0.229, 0.224, 0.225];

section! {
    /// `[data]`. Settings without effect keep their defaults; see docs/recipe.md.
    Data "data" {
        /// Source of the samples. The default is text for tokens, else folder.
        kind: DataKind = DataKind::Folder, choice(DataKind::NAMES), experiment;
        /// Classify, regress and program: the learning target of a sample; filled in (class, vector, or tokens of a text).
        target: Option<Target> = None, choice(Target::NAMES), experiment;
        /// Folder that holds the folders or lists below; for text a file or a folder of files; for a table its file. Absolute when
        /// loaded.
        root: Option<PathBuf> = None, PATH;
        /// Several sources of samples, in place of `root`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        source: Vec<Source> = Vec::new(), SOURCES;
        /// Tables, shards and Parquet: the fields of a sample, each `KIND` or `KIND:COLUMN,COLUMN`; filled in with those of the task.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<String, String> = BTreeMap::new(), FIELDS, experiment;
        /// What ends the cells of tables.
        separator: Separator = Separator::Auto, choice(Separator::NAMES), experiment;
        /// Name of the folder of training images below `root`, or of the training samples in a table's column `split`; the files of the training samples, such as `train-{000..009}.tar`.
        train: String = "train".into(), FOLDER_NAME, experiment;
        /// Name of the folder of test images below `root`, or of the test samples in a table's column `split`; the files of the test samples; or `train:PART`, a part of the training samples.
        test: String = "test".into(), TEST, experiment;
        /// Validation samples: a folder or set by name, a part of the training samples, `test:PART` of the test samples, or `column:NAME` of a table.
        #[serde(skip_serializing_if = "Option::is_none")]
        val: Option<Val> = None, VAL, experiment;
        /// More test sets: for each name a folder or set, as `test`.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        tests: BTreeMap<String, String> = BTreeMap::new(), TESTS;
        /// Folders: the file below `root` that lists the images of a set with their classes, by the name of the set.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        lists: BTreeMap<String, String> = BTreeMap::new(), LISTS, experiment;
        /// Name of the folder of the training images' masks or maps below `root`, or of the file of their annotations.
        train_masks: String = "train_masks".into(), FOLDER_NAME, experiment;
        /// Name of the folder of the test images' masks or maps below `root`, or of the file of their annotations.
        test_masks: String = "test_masks".into(), FOLDER_NAME, experiment;
        /// Name of the folder of the validation images' masks or maps below `root`.
        val_masks: String = "val_masks".into(), FOLDER_NAME, experiment;
        /// Which names of images and of their masks or maps belong together; without it, equal names do.
        pair: Option<Pair> = None, PAIR, experiment;
        /// The meaning of a mask's values.
        masks: Masks = Masks::Index, choice(Masks::NAMES), experiment;
        /// The brightness above which a pixel is class 1, as in the file, with `masks = "threshold"`.
        mask_threshold: u16 = 128, Kind::Whole(0, u16::MAX as i64), experiment;
        /// The colours of classes in masks: a table, or a file with a name and three numbers in each line. Sets `masks = "colors"`.
        mask_colors: Option<MaskColors> = None, COLORS, experiment;
        /// The most levels by which each channel of a pixel may differ from the nearest colour of a class.
        mask_tolerance: u8 = 0, Kind::Whole(0, u8::MAX as i64), experiment;
        /// The classes, by name, whose pixels do not count.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        ignore_classes: Vec<String> = Vec::new(), CLASS_NAMES, experiment;
        /// What becomes of images without annotations.
        unannotated: Unannotated = Unannotated::Background, choice(Unannotated::NAMES), experiment;
        /// The value, as in the file, of pixels that do not count: of the target's, else of masks, else of maps. Filled in for masks (255).
        ignore: Option<u16> = None, Kind::Whole(0, u16::MAX as i64), experiment;
        /// A map's unit: the number of a white pixel of 8 or 16 bits, or the factor of floating-point values.
        target_scale: f64 = 1.0, Kind::Number(Range::ABOVE_ZERO), experiment;
        /// Added to the numbers of a map, after `target_scale`.
        target_offset: f64 = 0.0, Kind::Number(Range::ANY), experiment;
        /// The value, as in the file, of pixels without data: they do not count in maps, and in images `fill` replaces them.
        nodata: Option<NoData> = None, NO_DATA, experiment;
        /// The value, as in the file, in place of an image's `nodata`.
        fill: Option<f64> = None, Kind::Number(Range::ANY), experiment;
        /// Whether the loss takes targets less their mean, in units of their standard deviation.
        normalize_targets: bool = false, FLAG, experiment;
        /// Width and height of the network's input in pixels. Without effect for a folder with `resize = "none"`.
        image_size: usize = 224, Kind::Whole(1, 4096), experiment;
        /// How a folder's images are brought to that size.
        resize: Resize = Resize::Crop, choice(Resize::NAMES), experiment;
        /// The part of the scaled image's shorter side that is kept, or with `resize = "stretch"` of both sides; torchvision's weights have 0.875.
        crop_fraction: f64 = 1.0, Kind::Number(Range::UP_TO_ONE), experiment;
        /// How an image's pixels are interpolated when it is resized, always with antialiasing; masks and maps keep their values.
        interpolation: Interpolation = Interpolation::Bilinear, choice(Interpolation::NAMES), experiment;
        /// Whether JPEG files may be decoded at a smaller size, which is faster and changes values; masks and maps are not.
        decode: Decode = Decode::Exact, choice(Decode::NAMES), experiment;
        /// Whether images, masks and maps are turned as their EXIF data states, each file by its own.
        orientation: Orientation = Orientation::Stored, choice(Orientation::NAMES), experiment;
        /// Channels of an image; `mean` and `std` have one number for each.
        channels: usize = 3, Kind::Whole(1, 64), experiment;
        /// Mean of each channel, of values from 0 to 1; subtracted from the input.
        mean: Vec<f64> = IMAGENET_MEAN.into(), Kind::Numbers(1, 64, Range::ANY), experiment;
        /// Standard deviation of each channel; the input is divided by it.
        std: Vec<f64> = IMAGENET_STD.into(), Kind::Numbers(1, 64, Range::ABOVE_ZERO), experiment;
        /// Random changes to training samples, by a word; for images each stands for a list of `changes`.
        augment: Augment = Augment::None, choice(Augment::NAMES), experiment;
        /// Random changes to training images, in this order. In place of `augment`.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        changes: Vec<Change> = Vec::new(), CHANGES, experiment;
        /// Ways to mix a training image with another of its step; each sample has one of them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        mix: Vec<Mix> = Vec::new(), MIXES, experiment;
        /// Whether samples or steps draw how images are mixed.
        mix_by: MixBy = MixBy::Sample, choice(MixBy::NAMES), experiment;
        /// The order of the training samples.
        sampler: Sampler = Sampler::Shuffled, choice(Sampler::NAMES), experiment;
        /// How often an epoch takes each of its samples, with `sampler = "repeated"`.
        copies: usize = 3, Kind::Whole(2, 1024), experiment;
        /// Whether each sample has another of its step as a partner: fields `pair_image` and so on.
        pairs: bool = false, FLAG, experiment;
        /// Episodes in place of single images: fields `support_image`, `query_image` and so on.
        #[serde(skip_serializing_if = "Option::is_none")]
        episodes: Option<Episodes> = None, Kind::Section(Episodes::KEYS), experiment;
        /// Loader threads of each rank.
        workers: Workers = Workers::Auto, Kind::AutoOrWhole(1, 1024);
        /// Memory for a folder's decoded images, for each rank.
        cache: Cache = Cache::Auto, CACHE;
        /// Number of classes of generated images or of masks. A folder of class folders determines it itself.
        classes: usize = 10, Kind::Whole(2, 1 << 20), experiment;
        /// Training samples of generated data.
        train_samples: usize = 2000, COUNT, experiment;
        /// Test samples of generated data.
        test_samples: usize = 400, COUNT, experiment;
        /// The unit of text that is one token: a word, or the path of a `tokenizer.json`. Absolute when loaded.
        tokenizer: Tokenizer = Tokenizer::Chars, TOKENIZER, experiment;
        /// The type of the numbers in token files. An index beside the file must state the same.
        dtype: TokenType = TokenType::Uint16, choice(TokenType::NAMES), experiment;
        /// Number of different tokens of token files. A tokenizer's file determines it itself.
        vocabulary: Option<usize> = None, Kind::Whole(2, 1 << 31), experiment;
        /// Tables of texts: how many tokens replace each of a kind, such as one for each patch of an image.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        repeat: BTreeMap<String, usize> = BTreeMap::new(), REPEATS, experiment;
        /// The unit of text that is one document, and a sample; none: samples are windows of the whole text.
        documents: Documents = Documents::None, choice(Documents::NAMES), experiment;
        /// Whether a sample holds as many documents as it has room for.
        pack: bool = false, FLAG, experiment;
        /// The part at the end of a text that is the test set; above 0 and below 1.
        test_fraction: f64 = 0.1, PART, experiment;
    }
}

impl Data {
    /// Returns the number of validation samples of generated data: as many as this part of the training samples, which stay.
    pub fn val_of_generated(&self) -> Option<usize> {
        match self.val {
            Some(Val::Part(part)) => Some((self.train_samples as f64 * part).round().max(1.0) as usize),
            _ => None,
        }
    }
}

impl Data {
    /// Returns the part of the training samples that are the test samples, if there is no test set.
    pub fn test_of_train(&self) -> Option<f64> {
        part_of_train(&self.test)?.ok()
    }
}
