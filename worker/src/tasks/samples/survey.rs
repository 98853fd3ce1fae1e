//! The survey of the samples by rank 0: it lists and checks them.

use std::collections::BTreeMap;

use dtrain_recipe::{DataKind, Recipe, Target, Val};

use super::super::{SetKind, SurveyContext, TaskError};
use super::listed::{OtherSets, Set, list};
use super::{Survey, files, masks, numbers, text, texts};
use crate::data::{CheckReport, DataError, Samples};

/// Scans and checks the samples. A set of one class is an error if `least_classes` is 2.
pub(in crate::tasks) fn survey(
    recipe: &Recipe,
    least_classes: usize,
    context: &mut SurveyContext<'_>,
) -> Result<Survey, TaskError> {
    let target = recipe.target();
    if recipe.is_text() {
        return text::survey(recipe, context).map(Survey::Text);
    }
    if recipe.data.kind == DataKind::Generated {
        return Ok(Survey::Generated);
    }
    recipe.check_paths()?;
    let data = &recipe.data;
    let train = texts::tokenized(list(recipe, target, Set::Train, None)?, recipe, context)?;
    let (train, of_train) = match data.test_of_train() {
        Some(part) => {
            let [train, test] = train.hold_out_test(part)?;
            (train, Some(test))
        }
        None => (train, None),
    };
    let (train, held_out) = match data.val {
        Some(Val::Part(part)) => {
            let [train, val] = train.hold_out(part)?;
            (train, Some(val))
        }
        _ => (train, None),
    };
    if let (Some(Target::Class), [class], true) = (target, train.classes().0, least_classes > 1) {
        let remedy = match train.table {
            Some(_) => "add training lines of other classes",
            None if !train.sources.is_empty() => "add samples of other classes to one of the sources",
            None => {
                "add a folder of images for each other class, or set data.root and data.train to the folder that holds the \
                 class folders"
            }
        };
        return Err(DataError::OneClass(train.place(&train.set), class.clone(), remedy).into());
    }
    let (report, of_val) = check_parts(SetKind::Training, &train, held_out.as_ref(), recipe, context)?;
    let of_training = held_out.zip(of_val);
    let (train, moments) = match target {
        Some(Target::Mask) => (masks::check_training(train, &report, recipe, context)?, Vec::new()),
        Some(Target::Map) => {
            let (train, moments) = numbers::check_maps(train, &report, context)?;
            (train, vec![moments])
        }
        Some(Target::Vector) => {
            let train = train.without_bad(&report)?;
            let moments = train.moments();
            (train, moments)
        }
        Some(Target::Class | Target::Classes | Target::Tokens) | None => {
            (train.without_bad(&report)?, Vec::new())
        }
    };
    let usable = |samples: Samples, report: &CheckReport, context: &mut SurveyContext<'_>| {
        let samples = Samples { size: train.size, ..samples };
        match target {
            Some(Target::Mask) => masks::check_test(samples, report, recipe, context),
            Some(Target::Map) => numbers::check_maps(samples, report, context).map(|(samples, _)| samples),
            Some(Target::Vector | Target::Class | Target::Classes | Target::Tokens) | None => {
                Ok::<_, TaskError>(samples.without_bad(report)?)
            }
        }
    };
    let listed = |set: Set<'_>, context: &mut SurveyContext<'_>| {
        texts::tokenized(list(recipe, target, set, Some(&train))?, recipe, context)
    };
    let found = |set: Set<'_>, context: &mut SurveyContext<'_>| {
        let samples = listed(set, context)?;
        let report = files::check(&samples, set.kind(), recipe, context);
        usable(samples, &report, context)
    };
    let test = match of_train {
        Some(test) => test,
        None => listed(Set::Test, context)?,
    };
    let (test, held_out) = match data.val.as_ref().and_then(Val::of_test) {
        Some(part) => {
            let [test, val] = test.hold_out_first(part)?;
            (test, Some(val))
        }
        None => (test, None),
    };
    let (of_test, of_val) = check_parts(SetKind::Test, &test, held_out.as_ref(), recipe, context)?;
    let held_out = of_training.or_else(|| held_out.zip(of_val));
    let test = usable(test, &of_test, context)?;
    let val = match (held_out, data.val.as_ref().and_then(Val::set)) {
        (Some((val, report)), _) => Some(usable(val, &report, context)?),
        (None, Some(name)) => Some(found(Set::Val(name), context)?),
        (None, None) => None,
    };
    let mut others = OtherSets { val, tests: BTreeMap::new() };
    for (name, folder) in &data.tests {
        others.tests.insert(name.clone(), found(Set::More(folder), context)?);
    }
    if data.episodes.is_none() {
        files::report_untested(&test, context);
    }
    let is_vector = target == Some(Target::Vector);
    if is_vector {
        numbers::report(&train, &moments, context);
    }
    let names = if is_vector { train.numbers().0 } else { &[] };
    numbers::check_moments(recipe, names, &moments)?;
    Ok(Survey::Files(Box::new([train, test]), moments, Box::new(others)))
}

/// Checks samples, and the validation samples that were divided from them: the limit of files that cannot be read is then that of both.
fn check_parts(
    kind: SetKind,
    samples: &Samples,
    val: Option<&Samples>,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<(CheckReport, Option<CheckReport>), TaskError> {
    let mut report = files::check(samples, kind, recipe, context);
    let mut of_val = val.map(|val| files::check(val, SetKind::Validation, recipe, context));
    if let Some(of_val) = &mut of_val {
        CheckReport::join_limit([&mut report, of_val])?;
    }
    Ok((report, of_val))
}
