//! One set of a run's data, as the inputs of a prediction.

use dtrain_recipe::{DataKind, Recipe, Val};

use super::super::TaskError;
use super::listed::{Set, list};
use crate::data::Samples;

/// The part of a run that a set is for.
const ROLES: [&str; 3] = ["train", "test", "val"];

/// Returns the sets of a recipe: the name of each, that of its folder or in a table, and the set of which it is all or a part.
fn sets(recipe: &Recipe) -> Vec<(&str, &str, Set<'_>)> {
    let data = &recipe.data;
    let [train, test, val] = ROLES;
    let mut sets = vec![(train, &*data.train, Set::Train), (test, &*data.test, Set::Test)];
    sets.extend(data.val.as_ref().map(|of| match of.set() {
        Some(name) => (val, name, Set::Val(name)),
        None if of.of_test().is_some() => (val, val, Set::Test),
        None => (val, val, Set::Train),
    }));
    sets.extend(data.tests.iter().map(|(name, folder)| (&**name, &**folder, Set::More(folder))));
    sets
}

/// Returns the names of the sets of a recipe.
pub(crate) fn split_names(recipe: &Recipe) -> Vec<&str> {
    sets(recipe).into_iter().map(|(name, ..)| name).collect()
}

/// Returns whether the samples of a recipe are files or lines of a table.
pub(crate) fn has_splits(recipe: &Recipe) -> bool {
    !recipe.is_text() && recipe.data.kind != DataKind::Generated
}

/// Lists the samples of a set, also unreadable ones; None if the recipe has no set of this name.
///
/// # Errors
/// Data that a training could not list either.
pub(crate) fn split(recipe: &Recipe, name: &str) -> Result<Option<Samples>, TaskError> {
    let all = sets(recipe);
    let by_name = all.iter().find(|(role, ..)| *role == name);
    let Some((role, _, set)) = by_name.or(all.iter().find(|(_, folder, _)| *folder == name)) else {
        return Ok(None);
    };
    let data = &recipe.data;
    let of_train = data.test_of_train();
    let source = if of_train.is_some() && matches!(set, Set::Test) { Set::Train } else { *set };
    let mut samples = list(recipe, recipe.target(), source, None)?;
    if let (Some(part), Set::Train) = (of_train, source) {
        let [rest, test] = samples.hold_out_test(part)?;
        samples = if matches!(set, Set::Test) { test } else { rest };
    }
    let [rest, val] = match (&data.val, set, data.val.as_ref().and_then(Val::of_test)) {
        (Some(Val::Part(part)), Set::Train, _) => samples.hold_out(*part)?,
        (_, Set::Test, Some(part)) => samples.hold_out_first(part)?,
        _ => return Ok(Some(samples)),
    };
    Ok(Some(if *role == ROLES[2] { val } else { rest }))
}
