//! The survey of images and masks by rank 0 before a run, and its errors.

use std::path::Path;

use dtrain_common::recipe::{self, DataKind, Recipe};

use super::super::images::{checked, needs, telling};
use super::super::{SurveyContext, TaskError};
use crate::data::{Census, DataError, Listed, MaskIndex, MaskKind, MaskRule};

/// Classes listed in a sentence; others are only counted.
const LISTED: usize = 12;

/// The fewest classes to train on.
const CLASSES_TO_LEARN: usize = 2;

/// Image and mask folders, without unreadable pairs: (training, test); None if generated.
pub(super) type Survey = Option<(MaskIndex, MaskIndex)>;

pub(super) fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
    let data = &recipe.data;
    if data.kind == DataKind::Generated {
        return Ok(None);
    }
    recipe.check_paths()?;
    let root = data.root.as_deref().unwrap_or(Path::new("."));
    let rule = rule(recipe);
    let train = MaskIndex::scan(root, &data.train, &data.train_masks, rule)?;
    let (train, census) = looked_at(&train, CLASSES_TO_LEARN, recipe, context)?;
    if census.classes() < CLASSES_TO_LEARN {
        let only = census.occurring().next().map(|(class, _)| class);
        let ignored = census.share(census.ignored);
        return Err(rule.one_class(root.join(&data.train_masks), only, ignored).into());
    }
    let mut test = MaskIndex::scan(root, &data.test, &data.test_masks, rule)?;
    test.size = train.size;
    let (test, census) = looked_at(&test, 1, recipe, context)?;
    match census.occurring().collect::<Vec<_>>().as_slice() {
        [] => {
            return Err(DataError::NothingToTest(root.join(&data.test_masks), rule.ignore).into());
        }
        [(class, _)] => (context.warn)(format!(
            "{} of {} hold class {class} alone: a model that always answers {class} would get the best figures there",
            read(&census, &test),
            data.test_masks
        )),
        _ => {}
    }
    Ok(Some((train, test)))
}

/// Returns the usable pairs, and reports the classes in their masks: in all masks if the first ones have
/// fewer than `wanted` classes.
fn looked_at(
    list: &MaskIndex,
    wanted: usize,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<(MaskIndex, Census), TaskError> {
    let report = checked(list, needs(recipe), &list.images, &list.ignored, context)?;
    let good = list.without_bad(&report)?;
    let threads = context.threads;
    let census = list.census(&report, wanted, threads, &mut telling(context.report, &list.masks));
    (context.report)(counts(&census, list));
    if let Some(sentence) = missing(&census, list) {
        (context.warn)(sentence);
    }
    Ok((good, census))
}

/// Formats the number of masks that were read: "12 masks", or "2000 of 30000 masks".
fn read(census: &Census, list: &MaskIndex) -> String {
    match census.masks < list.count() {
        true => format!("{} of {} masks", census.masks, list.count()),
        false => format!("{} masks", census.masks),
    }
}

fn counts(census: &Census, list: &MaskIndex) -> String {
    let mut shares: Vec<String> = census
        .occurring()
        .take(LISTED)
        .map(|(class, pixels)| format!("{class} {}", percent(census.share(pixels))))
        .collect();
    if census.classes() > LISTED {
        shares.push(format!("{} more", census.classes() - LISTED));
    }
    format!(
        "pixels by class in {} of {}: {}; {} are ignored (data.ignore = {})",
        read(census, list),
        list.masks,
        if shares.is_empty() { "none".to_owned() } else { shares.join(", ") },
        percent(census.share(census.ignored)),
        list.rule.ignore
    )
}

fn missing(census: &Census, list: &MaskIndex) -> Option<String> {
    let classes = list.rule.classes;
    let missing = census.missing(classes);
    let mut names: Vec<String> = missing.iter().take(LISTED).map(usize::to_string).collect();
    if missing.len() > LISTED {
        names.push(format!("{} more", missing.len() - LISTED));
    }
    (!missing.is_empty()).then(|| {
        format!(
            "no pixel in {} of {} is of class {}; check data.classes = {classes} and the masks",
            read(census, list),
            list.masks,
            names.join(", ")
        )
    })
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

fn rule(recipe: &Recipe) -> MaskRule {
    MaskRule {
        kind: match recipe.data.masks {
            recipe::Masks::Index => MaskKind::Index,
            recipe::Masks::Binary => MaskKind::Binary,
        },
        classes: recipe.data.classes,
        ignore: i64::from(recipe.data.ignore),
    }
}
