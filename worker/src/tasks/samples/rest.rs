//! The sets of files of which a training stops, for `dtrain data`.

use std::sync::Arc;

use dtrain_recipe::{Recipe, Target, Val};

use super::super::{Checked, SurveyContext};
use super::files;
use super::listed::{Set, list};
use crate::data::{CacheBudget, Dataset, FileSet};

/// Lists and checks the sets that a survey has not reached, each as if it were alone. Returns why some cannot be listed.
pub(crate) fn check_rest(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Vec<String> {
    let target = recipe.target();
    if target == Some(Target::Tokens) || recipe.by_source().iter().any(|one| !one.data.kind.is_of_images()) {
        return Vec::new();
    }
    let data = &recipe.data;
    let val = data.val.as_ref().and_then(Val::set).map(Set::Val);
    let more = data.tests.values().map(|name| Set::More(name));
    let mut errors = Vec::new();
    for set in [Set::Train, Set::Test].into_iter().chain(val).chain(more) {
        let is_known = |checked: &Checked| checked.kind == set.kind();
        if context.details.as_ref().is_some_and(|details| details.checks.iter().any(is_known)) {
            continue;
        }
        match list(recipe, target, set, None) {
            Ok(samples) => drop(files::check(&samples, set.kind(), recipe, context)),
            Err(error) => errors.push(error.to_string()),
        }
    }
    errors
}

/// Returns the data sets of listed files, those that cannot be read included: with the random changes of a training, and without.
/// Texts, which are no tokens yet, are left out; None if nothing else is there.
pub(crate) fn unchanged_sets(recipe: &Recipe, checked: &Checked) -> Option<[Arc<dyn Dataset>; 2]> {
    let Checked { samples, report, .. } = checked;
    let samples = samples.clone().without_texts();
    if samples.lists.is_empty() {
        return None;
    }
    // Images that keep their sizes: those of the usual one are shown.
    let usual = report.tally.sizes.iter().max_by_key(|(_, count)| **count).map(|(size, _)| *size);
    let (own, _) = files::sizes(recipe, samples.size.or(usual));
    let (train, test) = files::options(recipe, own, CacheBudget::default(), 0);
    Some([train, test].map(|options| Arc::new(FileSet::new(samples.clone(), options)) as Arc<dyn Dataset>))
}
