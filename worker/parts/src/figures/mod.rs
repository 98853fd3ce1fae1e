//! Figures of evaluations, a file each. Sums are added in float64; ratios and roots come last. Those of `model.figures`
//! implement [`Figure`] for their settings.

// A new file needs no line here.
automod::dir!(pub "src/figures");

use dtrain_recipe::{Figure as Settings, each_figure};
use tch::{TchError, Tensor};

use self::rows::ByRows;

/// A value that a figure takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source<'a> {
    /// The output of this name, else the main one.
    Output(Option<&'a str>),
    /// The field with classes of each sample: int64, N or N x M; or with sets of K classes: float32, N x K, each 1 or 0.
    Classes(&'a str),
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
    /// Of sums, of which each class has its own.
    ByClasses(&'a dyn ByClasses),
    /// Of all samples at once.
    ByRows(&'a dyn ByRows),
}

/// A figure that is made of sums over the samples.
pub trait BySums {
    /// Returns the sums of a batch, float64, one-dimensional and detached: always [`BySums::sums`] elements. Samples of
    /// weight 0 add nothing. It must not read values on the host.
    fn add(&self, values: &[&Tensor], weights: &Tensor) -> Result<Tensor, TchError>;

    /// Returns the number of sums.
    fn sums(&self) -> usize;

    /// Returns the figure from the sums over all samples.
    fn figure(&self, sums: &[f64]) -> f64;
}

/// A figure that is made of the samples of each class by target and prediction.
pub trait ByClasses {
    /// As [`BySums::add`], for this many classes: always as many elements as [`ByClasses::sums`].
    fn add(&self, values: &[&Tensor], weights: &Tensor, classes: usize) -> Result<Tensor, TchError> {
        confusion::sums(values, weights, classes)
    }

    /// Returns the number of sums for this many classes.
    fn sums(&self, classes: usize) -> usize {
        confusion::SUMS * classes
    }

    /// Returns the figure from the sums over all samples.
    fn figure(&self, sums: &[f64]) -> f64;
}

/// Returns the functions of a recipe's figure.
pub fn named(settings: &Settings) -> &dyn Figure {
    each_figure!(settings, it => it)
}
