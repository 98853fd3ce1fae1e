//! `model.loss`: losses of samples, declared once for each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use dtrain_common::recipe::RecipeError;
use dtrain_common::recipe::kinds::{Kind, NAMES, Named, PATH, RATE, Range, check, each, each_entry};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize};

use super::Target;
use super::kinds::CLASS_NAMES;
use super::named::named;

const ABOVE_ZERO: Kind = Kind::Number(Range::ABOVE_ZERO);
const BELOW_ONE: Kind = Kind::Number(Range::BELOW_ONE);
const INSIDE: Kind = Kind::Number(Range::INSIDE);
/// Weights of classes. Which classes there are is known after the survey.
const CLASS_WEIGHTS: Kind = Kind::Other(
    "a list with a weight of at least 0 for each class, or a table of classes and weights, such as { cat = 2.0 }",
    &["array", "object"],
    |value| {
        let is_weight = |value: &toml::Value| check(&RATE, value);
        Ok(each(value, is_weight)? || each_entry(value, is_weight)?)
    },
);

named! { $
/// A loss of samples, or of their pixels or numbers.
SampleLoss, SAMPLE_LOSSES, each_sample_loss, "model.loss":

/// The cross-entropy of the softmax, as torch.nn.CrossEntropyLoss. Label smoothing: Szegedy et al. 2016, arXiv 1512.00567.
"cross-entropy" CrossEntropy {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The part of a target that is spread evenly over all classes.
    smoothing: f64 = 0.0, BELOW_ONE;
    /// The weights of the classes; by default all weigh alike.
    class_weights: Option<ClassWeights> = None, CLASS_WEIGHTS;
}

/// (1 - p)^gamma x the cross-entropy, for the probability p of the right class (Lin et al. 2017, arXiv 1708.02002). Of samples
/// with any number of classes, the mean over the classes of its binary form.
"focal" Focal {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// How much less what is right already counts.
    gamma: f64 = 2.0, RATE;
    /// Binary form: the weight of classes that a sample has; others weigh 1 less alpha. By default all weigh 1.
    alpha: Option<f64> = None, INSIDE;
    /// Not in the binary form: the weights of the classes; by default all weigh alike.
    class_weights: Option<ClassWeights> = None, CLASS_WEIGHTS;
}

/// The mean over the classes of the binary cross-entropy of each, as torch.nn.BCEWithLogitsLoss.
"binary" Binary {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// Moves targets from 0 and 1 towards one half: a target is (1 - smoothing) x target + smoothing / 2.
    smoothing: f64 = 0.0, BELOW_ONE;
    /// The weights of the classes that a sample has; by default 1.
    positive_weights: Option<ClassWeights> = None, CLASS_WEIGHTS;
}

/// The binary cross-entropies of the decisions whether a class is above rank k, given that it is not below it: K - 1 outputs for K
/// classes with an order (CORN: Shi, Cao and Raschka 2021, arXiv 2111.08851).
"ordinal" Ordinal {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The names of all classes from the lowest to the highest; by default the order of their numbers.
    order: Option<Vec<String>> = None, CLASS_NAMES;
}

/// 1 less the mean over the classes of (2 x both + smooth) / (predicted + target + smooth), each a sum of probabilities over the
/// pixels of one image (Milletari et al. 2016, arXiv 1606.04797, without its squares).
"dice" Dice {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// Added above and below, so that a class that an image lacks has a quotient.
    smooth: f64 = 1.0, ABOVE_ZERO;
}

/// 1 less the mean over the classes of (both + smooth) / (either + smooth), each a sum of probabilities over the pixels of one
/// image (Rahman and Wang 2016, doi 10.1007/978-3-319-50835-1_22).
"jaccard" Jaccard {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// Added above and below, so that a class that an image lacks has a quotient.
    smooth: f64 = 1.0, ABOVE_ZERO;
}

/// 1 less the mean over the classes of (both + smooth) / (both + alpha x only predicted + beta x only target + smooth), each a sum
/// of probabilities over the pixels of one image (Salehi et al. 2017, arXiv 1706.05721).
"tversky" Tversky {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The weight of what is predicted alone.
    alpha: f64 = 0.3, RATE;
    /// The weight of what is in the target alone.
    beta: f64 = 0.7, RATE;
    /// Added above and below, so that a class that an image lacks has a quotient.
    smooth: f64 = 1.0, ABOVE_ZERO;
}

/// The cross-entropy of pixels, each weighted by 1 + factor x the part of the pixels around it that have another class (Wei et al.
/// 2020, arXiv 1911.11445).
"boundary" Boundary {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// How much more a pixel weighs among pixels of other classes.
    factor: f64 = 5.0, ABOVE_ZERO;
    /// The pixels around a pixel are those at most this far from it, in rows and in columns.
    width: usize = 15, Kind::Whole(1, 512);
}

/// The squared difference of the output to the target.
"mse" Mse {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
}

/// The absolute difference of the output to the target.
"l1" L1 {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
}

/// Half the squared difference below delta, else delta x (the absolute difference less delta / 2), as torch.nn.HuberLoss (Huber
/// 1964, doi 10.1214/aoms/1177703732).
"huber" Huber {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The absolute difference from which the loss is linear.
    delta: f64 = 1.0, ABOVE_ZERO;
}

/// Half the squared difference / beta below beta, else the absolute difference less beta / 2, as torch.nn.SmoothL1Loss (Girshick
/// 2015, arXiv 1504.08083).
"smooth-l1" SmoothL1 {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The absolute difference from which the loss is linear.
    beta: f64 = 1.0, ABOVE_ZERO;
}

/// The pinball loss, whose least value is at a quantile of the targets (Koenker and Bassett 1978, doi 10.2307/1913643): quantile x
/// (target less output) if the target is larger, else (1 - quantile) x (output less target).
"quantile" Quantile {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The part of the targets below the output.
    quantile: f64 = 0.5, INSIDE;
}

/// A loss of the user: a program that `dtrain import --loss` wrote. It returns a number for each sample.
"program" Program {
    /// The factor of the loss in the sum of all.
    weight: f64 = 1.0, ABOVE_ZERO;
    /// The absolute path of the program.
    file: Option<PathBuf> = None, PATH;
    /// The output of the network or the field of the data for inputs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    inputs: BTreeMap<String, String> = BTreeMap::new(), NAMES;
}
}

/// The weights of classes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ClassWeights {
    /// By number of the class.
    All(Vec<f64>),
    /// By name of the class; others weigh 1.
    ByName(BTreeMap<String, f64>),
}

impl ClassWeights {
    /// Returns the weight of each of `classes` classes, some of which may have no name.
    ///
    /// # Errors
    /// Another number of weights, a name that no class has, or only weights of 0.
    pub fn of(&self, classes: usize, names: &[String]) -> Result<Vec<f64>, String> {
        let all = match self {
            Self::All(all) if all.len() == classes => all.clone(),
            Self::All(all) => {
                return Err(format!(
                    "expected a weight for each of the {classes} classes, got {}",
                    all.len()
                ));
            }
            Self::ByName(by_name) => {
                let mut all = vec![1.0; classes];
                for (name, weight) in by_name {
                    let at = names.iter().position(|known| known == name).filter(|at| *at < classes);
                    *at.and_then(|at| all.get_mut(at))
                        .ok_or_else(|| no_class(name, names, "give a list of weights"))? = *weight;
                }
                all
            }
        };
        match all.iter().any(|weight| *weight > 0.0) {
            true => Ok(all),
            false => Err("expected a weight above 0 for at least one class, got only 0".to_owned()),
        }
    }
}

impl Ordinal {
    /// Returns the rank of each of `classes` classes, from 0; None if that is its number. `of`: the key of the losses.
    ///
    /// # Errors
    /// An order that does not have each class once.
    pub fn ranks(&self, classes: usize, names: &[String], of: &str) -> Result<Option<Vec<i64>>, RecipeError> {
        let Some(order) = &self.order else { return Ok(None) };
        let error = |message| RecipeError::key_only(&format!("{of}.ordinal.order"), message);
        let mut ranks = vec![None; classes];
        for (rank, name) in order.iter().enumerate() {
            let at = names.iter().position(|known| known == name).and_then(|at| ranks.get_mut(at));
            let at = at.ok_or_else(|| error(no_class(name, names, "leave out order")))?;
            if at.replace(rank as i64).is_some() {
                return Err(error(format!("the class {name:?} is there twice; name each class once")));
            }
        }
        let missing = ranks.iter().position(Option::is_none).and_then(|at| names.get(at));
        match missing {
            Some(name) => Err(error(format!("the class {name:?} is missing; name each class once"))),
            None => Ok(ranks.into_iter().collect()),
        }
    }
}

/// Says that no class has the name. `remedy`: what to do if none has a name.
fn no_class(name: &str, names: &[String], remedy: &str) -> String {
    /// A message lists at most as many classes.
    const MOST: usize = 20;
    let listed: Vec<_> = names.iter().take(MOST).map(|name| format!("{name:?}")).collect();
    let more = if names.len() > MOST { format!(" and {} more", names.len() - MOST) } else { String::new() };
    match names {
        [] => {
            format!("no class is named {name:?}, because the classes have no names; {remedy}")
        }
        _ => format!("no class is named {name:?}; the classes are {}{more}", listed.join(", ")),
    }
}

/// All losses of samples, with their settings.
pub(super) const ALL: &[Named] = match SAMPLE_LOSSES {
    Kind::Named(all) => all,
    _ => &[],
};

impl SampleLoss {
    /// The names of all losses.
    pub const NAMES: &'static [&'static str] = &{
        let mut names = [""; ALL.len()];
        let mut number = 0;
        while number < names.len() {
            names[number] = ALL[number].name;
            number += 1;
        }
        names
    };

    /// Returns the factor of the loss in the sum of all.
    pub fn weight(&self) -> f64 {
        each_sample_loss!(self, it => it.weight)
    }

    /// Returns the weights that it gives to each of `classes` classes, some of which may have no name; None if all weigh alike.
    /// Those of right classes, of which only the ratios count, have a mean of 1. `of`: the key of the losses.
    ///
    /// # Errors
    /// Weights that do not fit the classes.
    pub fn class_weights(
        &self,
        classes: usize,
        names: &[String],
        of: &str,
    ) -> Result<Option<Vec<f64>>, RecipeError> {
        let (key, stated) = match self {
            Self::CrossEntropy(CrossEntropy { class_weights, .. })
            | Self::Focal(Focal { class_weights, .. }) => ("class_weights", class_weights),
            Self::Binary(Binary { positive_weights, .. }) => ("positive_weights", positive_weights),
            _ => return Ok(None),
        };
        let Some(stated) = stated else { return Ok(None) };
        let weights = stated
            .of(classes, names)
            .map_err(|message| RecipeError::key_only(&format!("{of}.{}.{key}", self.name()), message))?;
        let mean = match self {
            Self::Binary(_) => 1.0,
            _ => weights.iter().sum::<f64>() / weights.len() as f64,
        };
        Ok(Some(weights.iter().map(|weight| weight / mean).collect()))
    }

    /// Adds the settings to a table of losses, with the output and the target of the loss.
    pub(super) fn serialize_into<M: SerializeMap>(
        &self,
        table: &mut M,
        (output, target): (&Option<String>, &Option<String>),
    ) -> Result<(), M::Error> {
        /// Without the name.
        #[derive(Serialize)]
        struct Entry<'a, T> {
            #[serde(flatten)]
            settings: &'a T,
            #[serde(skip_serializing_if = "Option::is_none")]
            output: &'a Option<String>,
            #[serde(skip_serializing_if = "Option::is_none")]
            target: &'a Option<String>,
        }
        each_sample_loss!(self, settings => {
            table.serialize_entry(self.name(), &Entry { settings, output, target })
        })
    }
}

/// Returns why a loss lacks a setting, or has one without effect.
pub(super) fn problem(loss: &SampleLoss, target: Option<Target>) -> Option<&'static str> {
    let focal = match loss {
        SampleLoss::Focal(focal) => focal,
        SampleLoss::Program(Program { file: None, .. }) => {
            return Some("`program` needs the file of the loss; set { program = \"FILE.pt2\" }");
        }
        SampleLoss::Program(Program { file: Some(file), .. }) => return not_imported(file),
        _ => return None,
    };
    match target {
        Some(Target::Classes) => focal.class_weights.is_some().then_some(
            "`focal.class_weights` weighs the one class of a sample, and data.target is \"classes\"; set alpha, or take `binary` \
             with positive_weights",
        ),
        _ => focal.alpha.is_some().then_some(
            "`focal.alpha` weighs the classes that a sample has against the others, and a sample has one class; set class_weights",
        ),
    }
}

/// Returns why the file of a program cannot be one.
pub(super) fn not_imported(file: &Path) -> Option<&'static str> {
    let is_program = file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("pt2"));
    (!is_program).then_some("the file of a program ends in .pt2; write one with `dtrain import`")
}
