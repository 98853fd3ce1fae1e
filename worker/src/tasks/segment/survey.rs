//! The survey of images and masks by rank 0 before a run, and its errors.

use dtrain_recipe::{self as recipe, DataKind, Recipe};

use super::super::images::{check_files, checked_root, needs, progress_callback};
use super::super::{SurveyContext, TaskError};
use crate::data::{ClassCounts, DataError, ImageList, MaskIndex, MaskKind, MaskRule};

/// Classes listed in a sentence; others are only counted.
const LISTED: usize = 12;

/// The fewest classes to train on.
const CLASSES_TO_LEARN: usize = 2;

/// Image and mask folders, without unreadable pairs: (training, test); None if generated.
pub(in crate::tasks) type Survey = Option<(MaskIndex, MaskIndex)>;

pub(in crate::tasks) fn survey(
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Survey, TaskError> {
    let data = &recipe.data;
    if data.kind == DataKind::Generated {
        return Ok(None);
    }
    let root = checked_root(recipe)?;
    let rule = rule(recipe);
    let train = MaskIndex::scan(root, &data.train, &data.train_masks, rule)?;
    let (train, class_counts) = check_and_filter(&train, CLASSES_TO_LEARN, recipe, context)?;
    if class_counts.classes() < CLASSES_TO_LEARN {
        let only = class_counts.occurring().next().map(|(class, _)| class);
        let ignored = class_counts.share(class_counts.ignored);
        return Err(rule.one_class(root.join(&data.train_masks), only, ignored).into());
    }
    let mut test = MaskIndex::scan(root, &data.test, &data.test_masks, rule)?;
    test.size = train.size;
    let (test, class_counts) = check_and_filter(&test, 1, recipe, context)?;
    match class_counts.occurring().collect::<Vec<_>>().as_slice() {
        [] => {
            return Err(DataError::NothingToTest(root.join(&data.test_masks), rule.ignore).into());
        }
        [(class, _)] => (context.warn)(format!(
            "{} of {} have only class {class}, so a model that always predicts {class} scores best; add masks of other classes",
            read(&class_counts, &test),
            data.test_masks
        )),
        _ => {}
    }
    Ok(Some((train, test)))
}

/// Returns the usable pairs, and reports the classes in their masks: in all masks if the first ones have
/// fewer than `wanted` classes.
fn check_and_filter(
    list: &MaskIndex,
    wanted: usize,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<(MaskIndex, ClassCounts), TaskError> {
    let report = check_files(list, needs(recipe), &list.images, &list.ignored, context)?;
    let good = list.without_bad(&report)?;
    let threads = context.threads;
    let class_counts =
        list.class_counts(&report, wanted, threads, &mut progress_callback(context.report, &list.masks));
    (context.report)(counts(&class_counts, list));
    if let Some(sentence) = missing(&class_counts, list) {
        (context.warn)(sentence);
    }
    Ok((good, class_counts))
}

/// Formats the number of masks that were read: "12 masks", or "2000 of 30000 masks".
fn read(class_counts: &ClassCounts, list: &MaskIndex) -> String {
    match class_counts.masks < list.count() {
        true => format!("{} of {} masks", class_counts.masks, list.count()),
        false => format!("{} masks", class_counts.masks),
    }
}

fn counts(class_counts: &ClassCounts, list: &MaskIndex) -> String {
    let mut shares: Vec<String> = class_counts
        .occurring()
        .take(LISTED)
        .map(|(class, pixels)| format!("{class} {}", percent(class_counts.share(pixels))))
        .collect();
    if class_counts.classes() > LISTED {
        shares.push(format!("{} more", class_counts.classes() - LISTED));
    }
    format!(
        "pixels by class in {} of {}: {}; {} are ignored (data.ignore = {})",
        read(class_counts, list),
        list.masks,
        if shares.is_empty() { "none".to_owned() } else { shares.join(", ") },
        percent(class_counts.share(class_counts.ignored)),
        list.rule.ignore
    )
}

fn missing(class_counts: &ClassCounts, list: &MaskIndex) -> Option<String> {
    let classes = list.rule.classes;
    let missing = class_counts.missing(classes);
    let mut names: Vec<String> = missing.iter().take(LISTED).map(usize::to_string).collect();
    if missing.len() > LISTED {
        names.push(format!("{} more", missing.len() - LISTED));
    }
    (!missing.is_empty()).then(|| {
        format!(
            "no pixel in {} of {} is of class {}; check data.classes = {classes} and the masks",
            read(class_counts, list),
            list.masks,
            names.join(", ")
        )
    })
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

pub(super) fn rule(recipe: &Recipe) -> MaskRule {
    MaskRule {
        kind: match recipe.data.masks {
            recipe::Masks::Index => MaskKind::Index,
            recipe::Masks::Binary => MaskKind::Binary,
        },
        classes: recipe.data.classes,
        // A loaded recipe has the value for masks.
        ignore: i64::from(recipe.data.ignore.unwrap_or(255)),
    }
}
