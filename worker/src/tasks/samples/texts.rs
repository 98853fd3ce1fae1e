//! Texts of a table: they become tokens in the survey of rank 0.

use dtrain_common::text::counted;
use dtrain_recipe::Recipe;

use super::super::predict::text_rules;
use super::super::{SurveyContext, TaskError};
use super::text;
use crate::data::error::MOST_NAMED;
use crate::data::{DataError, Samples, TextCounts};

/// Returns the samples with tokens in place of texts. Warns of samples that are left out.
pub(super) fn tokenized(
    samples: Samples,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Samples, TaskError> {
    if !recipe.has_texts() {
        return Ok(samples);
    }
    let tokenizer = text::tokenizer(recipe)?;
    let rules = text_rules(recipe, tokenizer.as_ref());
    let (count, set) = (samples.count(), samples.set.clone());
    let (samples, bad) = samples.tokenized(&rules, context.threads)?;
    for bad in bad.iter().take(MOST_NAMED) {
        (context.warn)(format!("{} cannot be used and is left out: {}", bad.path, bad.reason));
    }
    if bad.len() > 1 {
        let left_out = bad.len();
        (context.warn)(format!("{left_out} of {count} texts in {set} cannot be used and are left out"));
    }
    Ok(samples)
}

/// Describes the texts that a program takes as inputs, cut to `context` tokens.
pub(super) fn describe_cut(train: &Samples, context: usize) -> String {
    let describe =
        |(field, cut)| format!(", {} of {field} cut to {context} tokens", counted(cut, "longer text"));
    train.cut_texts(context).into_iter().map(describe).collect()
}

/// Describes the texts of the training samples, cut to `context` tokens.
pub(super) fn describe(
    train: &Samples,
    counts: TextCounts,
    context: usize,
    vocabulary: usize,
) -> Result<String, DataError> {
    let TextCounts { tokens, cut, without_targets, .. } = counts;
    if without_targets == train.count() {
        return Err(DataError::NoTextTargets { set: train.set.clone(), count: train.count(), context });
    }
    let cut = match cut {
        0 => String::new(),
        cut => format!(", {} cut to {context} tokens", counted(cut, "longer text")),
    };
    let empty = match without_targets {
        0 => String::new(),
        empty => format!(", {} without a target in them: raise model.context", counted(empty, "sample")),
    };
    Ok(format!("texts of {tokens} tokens in samples of {context}, vocabulary of {vocabulary}{cut}{empty}"))
}
