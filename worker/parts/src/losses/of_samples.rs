//! Losses of samples, by the settings of a recipe.

use dtrain_recipe::{SampleLoss, each_sample_loss};
use tch::{Kind, TchError, Tensor};

use super::overlap::Areas;

/// A loss of samples, by the targets that it takes.
pub trait OfSamples {
    /// Returns its form for one class for each sample or pixel.
    fn of_classes(&self) -> Option<&dyn OfClasses> {
        None
    }

    /// Returns its form for any number of classes of a sample.
    fn of_sets(&self) -> Option<&dyn OfSets> {
        None
    }

    /// Returns its form for the areas of classes in an image.
    fn of_areas(&self) -> Option<&dyn OfAreas> {
        None
    }

    /// Returns its form for numbers of a sample or pixel.
    fn of_numbers(&self) -> Option<&dyn OfNumbers> {
        None
    }
}

/// Returns the functions of a recipe's loss.
pub fn of_samples(settings: &SampleLoss) -> &dyn OfSamples {
    each_sample_loss!(settings, it => it)
}

/// A loss with the weights of its classes.
pub struct Term {
    /// The settings.
    pub settings: SampleLoss,
    /// By class: float32, on the device of the logits. None if all weigh alike.
    pub class_weights: Option<Tensor>,
    /// By class: its rank, int64, for a loss of classes with an order. None if ranks are numbers.
    pub ranks: Option<Tensor>,
}

impl Term {
    /// Returns the loss with its factor.
    pub(super) fn scaled(&self, loss: Tensor) -> Result<Tensor, TchError> {
        match self.settings.weight() {
            1.0 => Ok(loss),
            factor => loss.f_mul_scalar(factor),
        }
    }

    /// Returns the ranks of classes, int64, or the classes themselves.
    pub(super) fn ranked(&self, classes: &Tensor) -> Result<Tensor, TchError> {
        self.ranks.as_ref().map_or(Ok(classes.shallow_clone()), |ranks| ranks.f_index_select(0, classes))
    }

    /// Returns its form for one class for each sample or pixel.
    pub(super) fn of_classes(&self) -> Option<&dyn OfClasses> {
        of_samples(&self.settings).of_classes()
    }
}

/// The classes of samples, N, or of pixels, N x H x W: the elements of a loss.
pub struct Elements<'a> {
    /// The classes, int64, each below the number of logits.
    pub classes: &'a Tensor,
    /// The elements that count; None if all do.
    pub counted: Option<&'a Tensor>,
    /// The number of classes of the data. There may be more logits.
    pub known: i64,
    /// See [`Term::class_weights`].
    pub class_weights: Option<&'a Tensor>,
}

impl Elements<'_> {
    /// Returns the weights of classes for as many classes: those that the data lacks weigh 1.
    pub(super) fn weights_of(&self, classes: i64) -> Result<Option<Tensor>, TchError> {
        let Some(weights) = self.class_weights else { return Ok(None) };
        let more = classes - weights.size()[0];
        Ok(Some(match more {
            ..=0 => weights.shallow_clone(),
            more => Tensor::f_cat(&[weights, &Tensor::f_ones([more], (Kind::Float, weights.device()))?], 0)?,
        }))
    }
}

/// A loss of one class for each sample or pixel.
pub trait OfClasses {
    /// Returns the weight of each element, float32; None if each weighs 1. A mean divides by their sum.
    fn weights(&self, elements: &Elements<'_>) -> Result<Option<Tensor>, TchError> {
        let Some(weights) = elements.class_weights else { return Ok(None) };
        weights.f_index_select(0, &elements.classes.f_reshape([-1])?)?.f_view_as(elements.classes).map(Some)
    }

    /// Returns the loss of each element of `logits`, N x K or N x K x H x W, times its weight in `weights`.
    fn losses(
        &self,
        logits: &Tensor,
        elements: &Elements<'_>,
        weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError>;
}

/// Returns losses times the weights of their elements, if they have some.
pub(super) fn weighted(losses: Tensor, weights: Option<&Tensor>) -> Result<Tensor, TchError> {
    weights.map_or(Ok(losses.shallow_clone()), |weights| losses.f_mul(weights))
}

/// A loss of any number of classes of a sample.
pub trait OfSets {
    /// Returns the loss of each sample of `logits`, N x K, for `labels`, N x K float32: 1 for each class of the sample, else
    /// 0. `class_weights`: see [`Term`].
    fn losses(
        &self,
        logits: &Tensor,
        labels: &Tensor,
        class_weights: Option<&Tensor>,
    ) -> Result<Tensor, TchError>;
}

/// A loss of the areas of classes in an image.
pub trait OfAreas {
    /// Returns how well the areas of each class of each image match, N x K: 1 if entirely.
    fn matches(&self, areas: &Areas) -> Result<Tensor, TchError>;
}

/// A loss of numbers.
pub trait OfNumbers {
    /// Returns the loss of each number of an output, float32, for as many in `goal`.
    fn losses(&self, output: &Tensor, goal: &Tensor) -> Result<Tensor, TchError>;
}
