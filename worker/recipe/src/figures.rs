//! `model.figures`: figures of an evaluation, declared once for each.

use dtrain_common::metrics::{NO_FIGURES, RESERVED};
use dtrain_common::recipe::kinds::{Kind, NAME};

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
    /// The field with the class or classes of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The number of largest logits among which the class counts as right.
    top: usize = 1, Kind::Whole(1, MOST);
    /// The name of the figure; by default accuracy, or top5_accuracy with top = 5.
    label: Option<String> = None, NAME;
}

/// The part of all classes of all samples that are right, of samples with any number of classes. A positive logit means that
/// the sample has the class.
"label-accuracy" LabelAccuracy {
    /// The output with a logit for each class, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the classes of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The name of the figure; by default label_accuracy.
    label: Option<String> = None, NAME;
}

/// The area under the curve of true over false positives for all thresholds, which is the probability that a positive sample
/// has a larger score than another (Hanley and McNeil 1982). Equal scores count one half.
"auc" Auc {
    /// The output with the logits, N x K, or with a score for each sample, N; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample.
    classes: String = "label".to_owned(), NAME;
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
    /// The field with the class of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The number of the class that counts as positive; samples without it count as negative.
    positive: usize = 1, Kind::Whole(0, MOST);
    /// The name of the figure; by default average_precision.
    label: Option<String> = None, NAME;
}

/// The part of the predictions of a class that are right, the mean over the classes in targets or predictions.
"precision" Precision {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample, or with its classes.
    classes: String = "label".to_owned(), NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default precision.
    label: Option<String> = None, NAME;
}

/// The part of the samples of a class that are predicted as such, the mean over the classes in targets or predictions.
"recall" Recall {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample, or with its classes.
    classes: String = "label".to_owned(), NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default recall.
    label: Option<String> = None, NAME;
}

/// 2 x precision x recall / (precision + recall) of a class, the mean over the classes in targets or predictions.
"f1" F1 {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample, or with its classes.
    classes: String = "label".to_owned(), NAME;
    /// The number of the class that counts alone; by default the mean over all classes.
    positive: Option<usize> = None, Kind::Whole(0, MOST);
    /// The name of the figure; by default f1.
    label: Option<String> = None, NAME;
}

/// The mean recall of the classes in the targets (Brodersen et al. 2010, doi 10.1109/ICPR.2010.764).
"balanced-accuracy" BalancedAccuracy {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The name of the figure; by default balanced_accuracy.
    label: Option<String> = None, NAME;
}

/// The expected calibration error: the samples are binned by the probability of their prediction, and the distances of the mean
/// probability to the part that is right are averaged by samples (Guo et al. 2017, arXiv 1706.04599).
"calibration" Calibration {
    /// The output with the logits, N x K; by default the main one.
    output: Option<String> = None, NAME;
    /// The field with the class of each sample.
    classes: String = "label".to_owned(), NAME;
    /// The number of bins of equal width.
    bins: usize = 15, Kind::Whole(1, 1000);
    /// The name of the figure; by default calibration_error.
    label: Option<String> = None, NAME;
}
}

impl Accuracy {
    fn usual_label(&self) -> String {
        if self.top == 1 { "accuracy".to_owned() } else { format!("top{}_accuracy", self.top) }
    }
}

impl LabelAccuracy {
    fn usual_label(&self) -> String {
        "label_accuracy".to_owned()
    }
}

impl Auc {
    fn usual_label(&self) -> String {
        "auc".to_owned()
    }
}

impl AveragePrecision {
    fn usual_label(&self) -> String {
        "average_precision".to_owned()
    }
}

impl Precision {
    fn usual_label(&self) -> String {
        "precision".to_owned()
    }
}

impl Recall {
    fn usual_label(&self) -> String {
        "recall".to_owned()
    }
}

impl F1 {
    fn usual_label(&self) -> String {
        "f1".to_owned()
    }
}

impl BalancedAccuracy {
    fn usual_label(&self) -> String {
        "balanced_accuracy".to_owned()
    }
}

impl Calibration {
    fn usual_label(&self) -> String {
        "calibration_error".to_owned()
    }
}

impl Interval {
    fn usual_label(&self) -> String {
        format!("{}_95", self.output)
    }
}

impl Figure {
    /// Returns the name of the figure.
    pub fn label(&self) -> String {
        each_figure!(self, it => it.label.clone().unwrap_or_else(|| it.usual_label()))
    }
}

/// Returns why a list of figures cannot be computed, with the number of the figure.
pub(super) fn problem(figures: &[Figure]) -> Option<(usize, String)> {
    figures.iter().enumerate().find_map(|(at, figure)| {
        let label = figure.label();
        let problem = if figures[..at].iter().any(|other| other.label() == label) {
            format!("another figure has the name {label:?}; set label to another name")
        } else if !label.chars().all(|c| c.is_ascii_alphanumeric() || "_-.@/".contains(c)) {
            format!("the name {label:?} may have letters, digits and _-.@/; set label to such a name")
        } else if [&NO_FIGURES[..], &RESERVED].concat().contains(&label.as_str()) {
            format!("a line of metrics.jsonl has {label:?} already; set label to another name")
        } else {
            return None;
        };
        Some((at, problem))
    })
}
