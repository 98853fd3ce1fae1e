//! The facts of each figure besides its settings: its names, which values are better, and the settings that the task fills in.

use dtrain_common::metrics::{NO_FIGURES, RESERVED};
use dtrain_common::recipe::{Best, Goal};

use super::*;
use crate::sample_losses::not_imported;
use crate::{ColumnKind, Recipe, Target};

/// What is known of each figure besides its settings.
trait Usual {
    /// Returns the usual name.
    fn usual_label(&self) -> String;

    /// Returns which values are better, if any are.
    fn goal(&self) -> Option<Goal>;

    /// Returns what follows the name in the names of further figures.
    fn further(&self) -> Vec<String> {
        Vec::new()
    }

    /// Fills in settings that the task determines.
    fn fill(&mut self, _usual: &Defaults) {}

    /// Returns the bands.
    fn bands(&self) -> Option<&[f64]> {
        None
    }
}

/// Settings that the task determines.
struct Defaults {
    classes: String,
    target: Option<String>,
    range: f64,
}

/// Makes `Usual` of lines: a figure, which values are better, the settings that are filled in, the name, and settings that add
/// figures.
macro_rules! usual {
    ($($one:ident $goal:expr, [$($filled:ident)*], [$($more:ident)*], $it:ident => $label:expr;)+) => { $(
        impl Usual for $one {
            fn usual_label(&self) -> String {
                let $it = self;
                $label.into()
            }

            fn goal(&self) -> Option<Goal> {
                $goal
            }

            fn further(&self) -> Vec<String> {
                let mut found = Vec::new();
                $(Extra::add(&self.$more, &mut found);)*
                let _ = &mut found;
                found
            }

            fn fill(&mut self, usual: &Defaults) {
                $(self.$filled = self.$filled.take().or(usual.$filled.clone().into());)*
                let _ = usual;
            }

            $(usual! { @bands $more })*
        }
    )+ };
    (@bands bands) => {
        fn bands(&self) -> Option<&[f64]> {
            self.bands.as_deref()
        }
    };
    (@bands $other:ident) => {};
}

/// A setting that adds figures.
trait Extra {
    /// Adds what follows the name of the figure.
    fn add(&self, found: &mut Vec<String>);
}

impl Extra for Option<bool> {
    fn add(&self, found: &mut Vec<String>) {
        found.extend((*self == Some(true)).then(|| "_95".to_owned()));
    }
}

impl Extra for Option<Vec<f64>> {
    fn add(&self, found: &mut Vec<String>) {
        let Some((last, _)) = self.as_ref().and_then(|edges| edges.split_last()) else { return };
        let edges = self.as_deref().unwrap_or_default();
        found.extend(edges.windows(2).map(|pair| format!("_{}_{}", pair[0], pair[1])));
        found.push(format!("_{last}_up"));
    }
}

const MIN: Option<Goal> = Some(Goal::Min);
const MAX: Option<Goal> = Some(Goal::Max);

usual! {
    Accuracy MAX, [classes], [interval], it => match it.top {
        1 => "accuracy".to_owned(),
        top => format!("top{top}_accuracy"),
    };
    LabelAccuracy MAX, [classes], [interval], _it => "label_accuracy";
    Auc MAX, [classes], [], _it => "auc";
    Interval None, [], [], it => format!("{}_95", it.output);
    AveragePrecision MAX, [classes], [], _it => "average_precision";
    Precision MAX, [classes], [], _it => "precision";
    Recall MAX, [classes], [], _it => "recall";
    F1 MAX, [classes], [], _it => "f1";
    BalancedAccuracy MAX, [classes], [], _it => "balanced_accuracy";
    Calibration MIN, [classes], [], _it => "calibration_error";
    Iou MAX, [classes], [interval], _it => "iou";
    Dice MAX, [classes], [interval], _it => "dice";
    Confusion MAX, [classes], [], _it => "kappa";
    SMeasure MAX, [classes], [interval], _it => "s_measure";
    EMeasure MAX, [classes], [interval], it => match it.threshold {
        Threshold::Mean => "e_measure",
        Threshold::Max => "max_e_measure",
        Threshold::Adaptive => "adaptive_e_measure",
    };
    WeightedF MAX, [classes], [interval], _it => "weighted_f";
    MaskMae MIN, [classes], [interval], _it => "mask_mae";
    Hd95 MIN, [classes], [interval], _it => "hd95";
    Mae MIN, [target], [interval bands], _it => "mae";
    Rmse MIN, [target], [bands], _it => "rmse";
    R2 MAX, [target], [], _it => "r2";
    Delta MAX, [target], [interval bands], it => format!("delta{}", it.power);
    Ssim MAX, [target range], [interval], _it => "ssim";
    BitsPerByte MIN, [], [], _it => "bits_per_byte";
    Program None, [], [], it => match it.program.as_deref().and_then(Path::file_stem) {
        Some(name) => name.to_string_lossy().into_owned(),
        None => "program".to_owned(),
    };
}

impl Figure {
    /// Returns the file of the user's own figure.
    pub fn file(&self) -> Option<&PathBuf> {
        if let Self::Program(own) = self { own.program.as_ref() } else { None }
    }

    pub(crate) fn file_mut(&mut self) -> Option<&mut PathBuf> {
        if let Self::Program(own) = self { own.program.as_mut() } else { None }
    }

    /// Returns the name of the figure.
    pub fn label(&self) -> String {
        each_figure!(self, it => it.label.clone().unwrap_or_else(|| it.usual_label()))
    }

    /// Returns the name of the figure, then those of its further numbers: of the interval of its mean, and of bands.
    pub fn names(&self) -> Vec<String> {
        let label = self.label();
        let further: Vec<String> = each_figure!(self, it => it.further());
        let further = further.into_iter().map(|end| format!("{label}{end}"));
        std::iter::once(label.clone()).chain(further).collect()
    }

    /// Returns which values of a name are better; None if neither are, as of an interval.
    fn goal(&self, name: &str) -> Option<Goal> {
        let goal: Option<Goal> = each_figure!(self, it => it.goal());
        goal.filter(|_| !name.ends_with("_95"))
    }
}

/// Returns the only mask of a table without a class.
fn only_mask(recipe: &Recipe) -> Option<String> {
    let fields = recipe.by_source().first()?.fields().ok()?;
    let mut masks = fields.iter().filter(|columns| columns.kind == ColumnKind::Mask);
    let only = masks.next().filter(|_| masks.next().is_none())?;
    let has_classes = fields.iter().any(|columns| columns.kind == ColumnKind::Class);
    (!has_classes).then(|| only.field.clone())
}

/// Fills in settings that the task determines.
pub(crate) fn fill(recipe: &mut Recipe) {
    let target = recipe.target();
    let classes = match target {
        Some(Target::Mask) => "mask".to_owned(),
        Some(Target::Tokens) => "targets".to_owned(),
        _ => only_mask(recipe).unwrap_or_else(|| "label".to_owned()),
    };
    let target = match target {
        Some(Target::Map) => Some("map"),
        Some(Target::Vector) => Some("targets"),
        Some(Target::Classes) => Some("label"),
        _ => None,
    };
    let usual = Defaults { classes, target: target.map(str::to_owned), range: recipe.data.target_scale };
    for figure in &mut recipe.model.figures {
        each_figure!(figure, it => it.fill(&usual));
    }
}

/// Returns why a list of figures cannot be computed, with the number of the figure.
pub(crate) fn problem(figures: &[Figure]) -> Option<(usize, String)> {
    let names: Vec<_> = figures.iter().map(Figure::names).collect();
    figures.iter().enumerate().find_map(|(at, figure)| {
        let taken = |name: &&String| names[..at].iter().flatten().any(|other| other == *name);
        let is_wrong = |name: &&String| !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.@/".contains(c));
        let is_reserved = |name: &&String| [&NO_FIGURES[..], &RESERVED].concat().contains(&name.as_str());
        let own = || names[at].iter();
        let bands: Option<&[f64]> = each_figure!(figure, it => it.bands());
        let of_file = match figure {
            Figure::Program(Program { program: Some(file), .. }) => not_imported(file),
            Figure::Program(_) => Some("`program` needs the file of the figure; set program = \"FILE.pt2\""),
            _ => None,
        };
        let problem = if let Some(problem) = of_file {
            problem.to_owned()
        } else if let Some(name) = own().find(taken) {
            format!("another figure has the name {name:?}; set label to another name")
        } else if let Some(name) = own().find(is_wrong) {
            format!("the name {name:?} may have letters, digits and _-.@/; set label to such a name")
        } else if let Some(name) = own().find(is_reserved) {
            format!("a line of metrics.jsonl has {name:?} already; set label to another name")
        } else if bands.is_some_and(|edges| edges.windows(2).any(|pair| pair[0] >= pair[1])) {
            "bands must rise; put the edges in order, each once".to_owned()
        } else if let Figure::Iou(Iou { images, interval, .. }) | Figure::Dice(Dice { images, interval, .. }) = figure
            && *interval == Some(true)
            && *images != Some(true)
        {
            "interval is of a mean over the images; set images = true too, or remove interval".to_owned()
        } else {
            return None;
        };
        Some((at, problem))
    })
}

/// Returns the remedy if a figure that should rise is better if it falls, or the reverse.
pub(crate) fn contrary(best: &Best, figures: &[Figure]) -> Option<String> {
    let name = &best.figure;
    let figure = figures.iter().find(|figure| figure.names().contains(name))?;
    let (better, word) = match figure.goal(name) {
        Some(goal) if goal != best.goal => match goal {
            Goal::Max => ("larger", "max"),
            Goal::Min => ("smaller", "min"),
        },
        _ => return None,
    };
    Some(format!("a {better} {name} is better; use \"{word} {name}\""))
}
