//! The survey of images and masks by rank 0 before a run, and its errors.

use dtrain_recipe::{self as recipe, Recipe};

use super::super::{SurveyContext, TaskError};
use super::files::{self, progress_callback};
use crate::data::{ClassCounts, DataError, MaskKind, MaskRule, Samples};

/// Classes listed in a sentence; others are only counted.
const LISTED: usize = 12;

/// The fewest classes to train on.
const CLASSES_TO_LEARN: usize = 2;

/// Returns the usable training samples. Masks with at most one class are an error.
pub(super) fn check_training(
    train: Samples,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Samples, TaskError> {
    let masks = train.place(masks(&train));
    let (train, class_counts) = check_and_filter(&train, CLASSES_TO_LEARN, recipe, context)?;
    if class_counts.classes() < CLASSES_TO_LEARN {
        let only = class_counts.occurring().next().map(|(class, _)| class);
        let ignored = class_counts.share(class_counts.ignored);
        let setting = match train.table {
            Some(_) => "data.fields.mask to the column",
            None => "data.train_masks to the folder",
        };
        return Err(rule(recipe).one_class(masks, only, ignored, setting).into());
    }
    Ok(train)
}

/// Returns the usable test samples. Masks without a class are an error.
pub(super) fn check_test(
    test: Samples,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Samples, TaskError> {
    let (test, class_counts) = check_and_filter(&test, 1, recipe, context)?;
    match class_counts.occurring().collect::<Vec<_>>().as_slice() {
        [] => {
            return Err(DataError::NothingToTest(test.place(masks(&test)), rule(recipe).ignore).into());
        }
        [(class, _)] => (context.warn)(format!(
            "{} of {} have only class {class}, so a model that always predicts {class} scores best; add masks of other classes",
            read(&class_counts, &test),
            masks(&test)
        )),
        _ => {}
    }
    Ok(test)
}

/// Returns the name of the masks in messages: their folder, or the set of a table.
pub(super) fn masks(samples: &Samples) -> &str {
    samples
        .pixels()
        .map(|(files, _)| files.folder.as_str())
        .filter(|folder| !folder.is_empty())
        .unwrap_or(&samples.set)
}

/// Returns the usable pairs, and reports the classes in their masks: in all masks if the first ones have
/// fewer than `wanted` classes.
fn check_and_filter(
    samples: &Samples,
    wanted: usize,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<(Samples, ClassCounts), TaskError> {
    let report = files::check(samples, recipe, context);
    let good = samples.without_bad(&report)?;
    let threads = context.threads;
    let class_counts = samples.class_counts(
        &report,
        wanted,
        threads,
        &mut progress_callback(context.report, masks(samples)),
    );
    (context.report)(counts(&class_counts, samples, recipe));
    if let Some(sentence) = missing(&class_counts, samples, recipe) {
        (context.warn)(sentence);
    }
    Ok((good, class_counts))
}

/// Formats the number of masks that were read: "12 masks", or "2000 of 30000 masks".
fn read(class_counts: &ClassCounts, samples: &Samples) -> String {
    match class_counts.masks < samples.count() {
        true => format!("{} of {} masks", class_counts.masks, samples.count()),
        false => format!("{} masks", class_counts.masks),
    }
}

fn counts(class_counts: &ClassCounts, samples: &Samples, recipe: &Recipe) -> String {
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
        read(class_counts, samples),
        masks(samples),
        if shares.is_empty() { "none".to_owned() } else { shares.join(", ") },
        percent(class_counts.share(class_counts.ignored)),
        rule(recipe).ignore
    )
}

fn missing(class_counts: &ClassCounts, samples: &Samples, recipe: &Recipe) -> Option<String> {
    let classes = recipe.data.classes;
    let missing = class_counts.missing(classes);
    let mut names: Vec<String> = missing.iter().take(LISTED).map(usize::to_string).collect();
    if missing.len() > LISTED {
        names.push(format!("{} more", missing.len() - LISTED));
    }
    (!missing.is_empty()).then(|| {
        format!(
            "no pixel in {} of {} is of class {}; check data.classes = {classes} and the masks",
            read(class_counts, samples),
            masks(samples),
            names.join(", ")
        )
    })
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

pub(in crate::tasks) fn rule(recipe: &Recipe) -> MaskRule {
    MaskRule {
        kind: match recipe.data.masks {
            recipe::Masks::Index => MaskKind::Index,
            recipe::Masks::Binary => MaskKind::Binary,
        },
        classes: recipe.data.classes,
        // A loaded recipe has the value for masks that are the target.
        ignore: i64::from(recipe.data.ignore.filter(|_| !recipe.ignores_maps()).unwrap_or(255)),
    }
}
