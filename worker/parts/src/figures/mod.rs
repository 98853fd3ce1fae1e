//! Figures of evaluations, a file each. Sums are added in float64; ratios and roots come last. Those of `model.figures`
//! implement [`Figure`] for their settings.

// A new file needs no line here.
automod::dir!(pub "src/figures");

use dtrain_recipe::{Figure as Settings, each_figure};
use serde::Serialize;
use tch::{TchError, Tensor};

use self::rows::ByRows;

/// A value that a figure takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// The output of this name, else the main one.
    Output(Option<&'a str>),
    /// The field with classes: int64, N or N x M, below 0 where nothing counts; of masks M are the pixels, of texts the tokens. Its
    /// output is N x K or N x M x K. Or with sets of K classes: float32, N x K, each 1 or 0.
    Classes(Option<&'a str>),
    /// The field with masks: int64, N x H x W, below 0 where a pixel does not count. Its output is N x K x H x W.
    Mask(Option<&'a str>),
    /// The field with numbers: float64, N x K, or N x 1 x H x W of maps; NaN where a number does not count. Its output has the same
    /// shape and unit.
    Numbers(Option<&'a str>),
    /// The sum of the losses of a text's targets, in nats.
    Nats,
    /// The bytes of a text's targets, N x M.
    Bytes,
}

/// A figure of an evaluation.
pub trait Figure {
    /// Returns what it takes, first an output.
    fn takes(&self) -> Vec<Source<'_>>;

    /// Checks the shapes of the values in the order of [`Figure::takes`]; a length that is not fixed, such as N, is None.
    /// `classes`: the classes of the field in the data, if known. The error says what the figure needs.
    fn check(&self, shapes: &[Shape], classes: Option<usize>) -> Result<(), String>;

    /// As [`Figure::check`], if the field has sets of classes.
    fn check_sets(&self, shapes: &[Shape]) -> Result<(), String> {
        let _ = shapes;
        Err("it takes one class for each sample, and the field has any number of them; take it away, or another field".to_owned())
    }

    /// Returns how the figure is made.
    fn made(&self) -> Made<'_>;
}

/// The lengths of a value.
pub type Shape = Vec<Option<i64>>;

/// How a figure is made of all samples.
pub enum Made<'a> {
    /// Of sums.
    BySums(&'a dyn BySums),
    /// Of sums, of which each class or number has its own.
    ByClasses(&'a dyn ByClasses),
    /// Of all samples at once.
    ByRows(&'a dyn ByRows),
    /// Of the sums of a user's program, which a task runs.
    Own(&'a dtrain_recipe::figures::Program),
}

/// A figure that is made of sums over the samples.
pub trait BySums {
    /// Returns the sums of a batch, float64, one-dimensional and detached: always [`BySums::sums`] elements. Samples of
    /// weight 0 add nothing.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError>;

    /// Returns the number of sums.
    fn sums(&self) -> usize;

    /// Returns the figure from the sums over all samples.
    fn figure(&self, sums: &[f64]) -> f64;

    /// Returns the numbers of the further names of its settings.
    fn further(&self, sums: &[f64]) -> Vec<f64> {
        let _ = sums;
        Vec::new()
    }
}

/// A figure that is made of sums of each class, or of each number.
pub trait ByClasses {
    /// As [`BySums::add`], for this many classes: always as many elements as [`ByClasses::sums`].
    fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError>;

    /// Returns the number of sums for this many classes.
    fn sums(&self, classes: usize) -> usize;

    /// Returns the figure from the sums over all samples.
    fn figure(&self, sums: &[f64]) -> f64;

    /// Returns the numbers of the further names of its settings.
    fn further(&self, sums: &[f64]) -> Vec<f64> {
        let _ = sums;
        Vec::new()
    }

    /// Returns the value of each class; NaN without one.
    fn by_class(&self, sums: &[f64]) -> Vec<f64>;

    /// Returns the samples of each class by prediction, if the figure has them.
    fn matrix(&self, sums: &[f64]) -> Option<Vec<Vec<f64>>> {
        let _ = sums;
        None
    }
}

/// The values of a figure by class or by number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OfClasses {
    /// The name of the figure.
    pub figure: String,
    /// The names of the classes.
    pub classes: Vec<String>,
    /// Of each class; NaN, in JSON null, without one.
    pub values: Vec<f64>,
    /// The samples of each class, by predicted class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<f64>>>,
}

/// Returns the functions of a recipe's figure.
pub fn named(settings: &Settings) -> &dyn Figure {
    each_figure!(settings, it => it)
}
