//! Losses of classes of samples.

use tch::{TchError, Tensor};

use super::of_samples::{Elements, Term, of_samples};
use crate::{Loss, Outputs};

/// Computes the loss of `logits`, N x K with K at least `known`, for the classes `labels`, N int64. Samples of weight 0 in
/// `weights`, N, do not count and may have any logits. One term is divided by the sum of the weights of the right classes; several by
/// the number of samples, because their weights differ. `sums`: those of the figures.
pub fn class_loss(
    terms: &[Term],
    logits: &Outputs,
    labels: &Tensor,
    weights: &Tensor,
    known: usize,
    sums: Tensor,
) -> Result<Loss, TchError> {
    let logits = without_absent(logits, weights)?;
    let mut total = None;
    let mut own_weights = None;
    for term in terms {
        let Some((losses, of_elements)) = weighted_losses(term, &logits, labels, known)? else { continue };
        total = Some(add(total, losses)?);
        own_weights = of_elements;
    }
    let mut loss = Loss::of_samples(&or_nothing(total, weights)?, weights, sums)?;
    if let ([_], Some(own)) = (terms, own_weights) {
        loss.weight = own.f_mul(weights)?.f_sum(tch::Kind::Double)?;
    }
    Ok(loss)
}

/// Returns the loss of each sample by one term, as [`class_loss`]; 0 of those of weight 0.
pub fn class_losses(
    term: &Term,
    logits: &Outputs,
    labels: &Tensor,
    weights: &Tensor,
    known: usize,
) -> Result<Tensor, TchError> {
    let losses = weighted_losses(term, &without_absent(logits, weights)?, labels, known)?;
    or_nothing(losses.map(|(losses, _)| losses), weights)
}

/// Returns the losses of samples by a term times the weights of their classes, and these weights.
fn weighted_losses(
    term: &Term,
    logits: &Outputs,
    labels: &Tensor,
    known: usize,
) -> Result<Option<(Tensor, Option<Tensor>)>, TchError> {
    let Some(of_classes) = term.of_classes() else { return Ok(None) };
    let (classes, class_weights) = (&term.ranked(labels)?, term.class_weights.as_ref());
    let elements = Elements { classes, counted: None, known: known as i64, class_weights };
    let of_elements = of_classes.weights(&elements)?;
    let losses = logits.loss(|logits| of_classes.losses(logits, &elements, of_elements.as_ref()))?;
    Ok(Some((term.scaled(losses)?, of_elements)))
}

/// Computes the loss of `logits`, N x K, for any number of classes of each sample: `labels`, N x K float32. Samples of weight 0 in
/// `weights`, N, do not count and may have any logits. `sums`: those of the figures.
pub fn set_loss(
    terms: &[Term],
    logits: &Outputs,
    labels: &Tensor,
    weights: &Tensor,
    sums: Tensor,
) -> Result<Loss, TchError> {
    Loss::of_samples(&set_losses(terms, logits, labels, weights)?, weights, sums)
}

/// Returns the loss of each sample, as [`set_loss`]; 0 of those of weight 0, if they have no classes.
pub fn set_losses(
    terms: &[Term],
    logits: &Outputs,
    labels: &Tensor,
    weights: &Tensor,
) -> Result<Tensor, TchError> {
    let logits = without_absent(logits, weights)?;
    let labels = &labels.f_masked_fill(&weights.f_eq(0.0)?.f_unsqueeze(1)?, 0.0)?;
    let mut total = None;
    for term in terms {
        let Some(of_sets) = of_samples(&term.settings).of_sets() else { continue };
        let losses = logits.loss(|logits| of_sets.losses(logits, labels, term.class_weights.as_ref()))?;
        total = Some(add(total, term.scaled(losses)?)?);
    }
    or_nothing(total, weights)
}

/// Returns logits, N x K, that are 0 for samples of weight 0, so that their derivatives are 0 and not NaN.
fn without_absent(logits: &Outputs, weights: &Tensor) -> Result<Outputs, TchError> {
    let absent = weights.f_eq(0.0)?.f_unsqueeze(1)?;
    logits.map(|logits| logits.f_masked_fill(&absent, 0.0))
}

/// Adds a term to the sum of those before.
pub(super) fn add(total: Option<Tensor>, term: Tensor) -> Result<Tensor, TchError> {
    total.map_or(Ok(term.shallow_clone()), |total| total.f_add(&term))
}

/// Returns the sum of terms; 0 for each sample without terms.
pub(super) fn or_nothing(total: Option<Tensor>, weights: &Tensor) -> Result<Tensor, TchError> {
    total.map_or_else(|| weights.f_zeros_like(), Ok)
}

#[cfg(test)]
mod tests;
