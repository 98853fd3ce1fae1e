//! `model.figures`: figures of an evaluation, declared once for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dtrain_common::recipe::kinds::{FLAG, Kind, NAME, NAMES, PATH, Range, choice};

use super::Threshold;
use super::named::named;

/// More classes than any network has.
const MOST: i64 = 1 << 24;

named! { $
/// A figure of an evaluation. It reads an output of the network and fields of the data by name.
Figure, FIGURES, each_figure, "model.figures":

/// The part of the samples whose class is among the largest logits; of samples with any number of classes, the part whose
/// classes are all right.
"accuracy" Accuracy {
    /// The output with the logits, N x K, or N x M x K for M classes of each sample; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of largest logits among which the class counts as right.
    top: usize = 1, Kind::Whole(1, MOST);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default accuracy, or top5_accuracy with top = 5.
    label: Option<String> = None, NAME;
}

/// The part of all classes of all samples that are right, of samples with any number of classes. A positive logit means that
/// the sample has the class.
"label-accuracy" LabelAccuracy {
    /// The output with a logit for each class, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default label_accuracy.
    label: Option<String> = None, NAME;
}

/// The area under the curve of true over false positives for all thresholds, which is the probability that a positive sample
/// has a larger score than another (Hanley and McNeil 1982). Equal scores count one half.
"auc" Auc {
    /// The output with the logits, N x K, or with a score for each sample, N; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts as positive; samples without it count as negative.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// The name of the figure; by default auc.
    label: Option<String> = None, NAME;
}

/// Half of the 95% interval of a mean over the samples: 1.96 standard deviations, divided by the root of their number.
"interval" Interval {
    /// The output with one number for each sample, N.
    output: String = "accuracy".to_owned(), NAME;
    /// The name of the figure; by default that of the output with _95, such as accuracy_95.
    label: Option<String> = None, NAME;
}

/// The mean of the precisions at all thresholds, each weighted by the rise of the recall: the area under the curve of precision over
/// recall in steps (Davis and Goadrich 2006, doi 10.1145/1143844.1143874).
"average-precision" AveragePrecision {
    /// The output with the logits, N x K, or with a score for each sample, N; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts as positive; samples without it count as negative.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// The name of the figure; by default average_precision.
    label: Option<String> = None, NAME;
}

/// The part of the predictions of a class that are right, the mean over the classes in targets or predictions.
"precision" Precision {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default precision.
    label: Option<String> = None, NAME;
}

/// The part of the samples of a class that are predicted as such, the mean over the classes in targets or predictions.
"recall" Recall {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default recall.
    label: Option<String> = None, NAME;
}

/// 2 x precision x recall / (precision + recall) of a class, the mean over the classes in targets or predictions.
"f1" F1 {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default f1.
    label: Option<String> = None, NAME;
}

/// The mean recall of the classes in the targets (Brodersen et al. 2010, doi 10.1109/ICPR.2010.764).
"balanced-accuracy" BalancedAccuracy {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The name of the figure; by default balanced_accuracy.
    label: Option<String> = None, NAME;
}

/// The expected calibration error: the samples are binned by the probability of their prediction, and the distances of the mean
/// probability to the part that is right are averaged by samples (Guo et al. 2017, arXiv 1706.04599).
"calibration" Calibration {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of bins of equal width.
    bins: usize = 15, Kind::Whole(1, 1000);
    /// The name of the figure; by default calibration_error.
    label: Option<String> = None, NAME;
}

/// The intersection of target and prediction over their union, of a class: the mean over the classes in targets or predictions.
"iou" Iou {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// Whether each image has its own, and the figure is their mean, over the images with the class or, by default, of the means over
    /// the classes of each image.
    images: Option<bool> = None, FLAG;
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default iou.
    label: Option<String> = None, NAME;
}

/// Twice the intersection of target and prediction over the sum of both, of a class (Dice 1945), with the same mean.
"dice" Dice {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// Whether each image has its own, and the figure is their mean, over the images with the class or, by default, of the means over
    /// the classes of each image.
    images: Option<bool> = None, FLAG;
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default dice.
    label: Option<String> = None, NAME;
}

/// The counts of each target and prediction, written by class. The figure is the kappa of Cohen 1960, doi 10.1177/001316446002000104.
"confusion" Confusion {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The name of the figure; by default kappa.
    label: Option<String> = None, NAME;
}

/// The structure measure of predicted objects: Fan et al. 2017, arXiv 1708.00786; the mean over the images.
"s-measure" SMeasure {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that is the object; all others are background.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default s_measure.
    label: Option<String> = None, NAME;
}

/// The enhanced-alignment measure of predicted objects: Fan et al. 2018, arXiv 1805.10421; the mean over the images.
"e-measure" EMeasure {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that is the object; all others are background.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// The threshold of the prediction.
    threshold: Threshold = Threshold::Mean, choice(Threshold::NAMES);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default e_measure, max_e_measure or adaptive_e_measure.
    label: Option<String> = None, NAME;
}

/// The weighted F-measure of predicted objects: Margolin et al. 2014, doi 10.1109/CVPR.2014.39; the mean over the images.
"weighted-f" WeightedF {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that is the object; all others are background.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default weighted_f.
    label: Option<String> = None, NAME;
}

/// The mean absolute error of the probability of the object, as shares of 1; the mean over the images.
"mask-mae" MaskMae {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that is the object; all others are background.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default mask_mae.
    label: Option<String> = None, NAME;
}

/// The 95th percentile of the distances between the borders of target and prediction, in pixels (Huttenlocher et al. 1993); the mean over
/// the images.
"hd95" Hd95 {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes; filled in: that of the task.
    classes: Option<String> = None, NAME;
    /// The number of the class that is the object; all others are background.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default hd95.
    label: Option<String> = None, NAME;
}

/// The mean absolute error, in the unit of the target.
"mae" Mae {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the numbers; filled in: that of the task.
    target: Option<String> = None, NAME;
    /// Rising edges of bands of the target. Each band from an edge to the next, and that from the last edge up, is a figure too.
    bands: Option<Vec<f64>> = None, Kind::Numbers(1, 100, Range::ANY);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default mae.
    label: Option<String> = None, NAME;
}

/// The root of the mean squared error, in the unit of the target.
"rmse" Rmse {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the numbers; filled in: that of the task.
    target: Option<String> = None, NAME;
    /// Rising edges of bands of the target. Each band from an edge to the next, and that from the last edge up, is a figure too.
    bands: Option<Vec<f64>> = None, Kind::Numbers(1, 100, Range::ANY);
    /// The name of the figure; by default rmse.
    label: Option<String> = None, NAME;
}

/// The coefficient of determination.
"r2" R2 {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the numbers; filled in: that of the task.
    target: Option<String> = None, NAME;
    /// The name of the figure; by default r2.
    label: Option<String> = None, NAME;
}

/// The part of the numbers whose ratio to the target, or the inverse of it, is below 1.25 to a power (Eigen et al. 2014, arXiv 1406.2283).
"delta" Delta {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the numbers; filled in: that of the task.
    target: Option<String> = None, NAME;
    /// The power of 1.25.
    power: usize = 1, Kind::Whole(1, 10);
    /// Rising edges of bands of the target. Each band from an edge to the next, and that from the last edge up, is a figure too.
    bands: Option<Vec<f64>> = None, Kind::Numbers(1, 100, Range::ANY);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default delta1, with the power.
    label: Option<String> = None, NAME;
}

/// The structural similarity of maps: Wang et al. 2004, doi 10.1109/TIP.2003.819861; the mean over the images.
"ssim" Ssim {
    /// The output; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the numbers; filled in: that of the task.
    target: Option<String> = None, NAME;
    /// The range of the numbers; filled in: `data.target_scale`.
    range: Option<f64> = None, Kind::Number(Range::ABOVE_ZERO);
    /// Whether half of the 95% interval of the mean over the samples is a figure too, named with `_95`.
    interval: Option<bool> = None, FLAG;
    /// The name of the figure; by default ssim.
    label: Option<String> = None, NAME;
}

/// The loss in bits over the bytes of the text that the targets stand for.
"bits-per-byte" BitsPerByte {
    /// The name of the figure; by default bits_per_byte.
    label: Option<String> = None, NAME;
}

/// A figure of the user: a program that `dtrain import --figure` wrote. It returns numbers for each sample, whose sums make the figure.
"program" Program {
    /// The absolute path of the program.
    program: Option<PathBuf> = None, PATH;
    /// The output of the network or the field of the data for inputs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<String, String> = BTreeMap::new(), NAMES;
    /// The name of the figure; by default that of the file.
    label: Option<String> = None, NAME;
}
}

// After the macro that it uses.
mod usual;

pub(super) use usual::{contrary, fill, problem};
