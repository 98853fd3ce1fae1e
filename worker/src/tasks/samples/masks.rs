//! The survey of images and masks by rank 0 before a run, and its errors.

use std::collections::BTreeMap;

use dtrain_common::text::counted;
use dtrain_recipe::{self as recipe, ClassColor, MaskColors, Masks, Recipe};

use super::super::{SurveyContext, TaskError};
use super::progress::progress_callback;
use crate::data::color_table::Found;
use crate::data::{
    CheckReport, ClassCounts, ColorEntry, ColorTable, DataError, Hex, MaskKind, MaskRule, Samples, Strangers,
};

/// Classes listed in a sentence; others are only counted.
const LISTED: usize = 12;

/// The fewest classes to train on.
const CLASSES_TO_LEARN: usize = 2;

/// Returns the usable training samples. Masks with at most one class are an error.
pub(super) fn check_training(
    train: Samples,
    report: &CheckReport,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Samples, TaskError> {
    let masks = train.place(masks(&train));
    let (train, class_counts) = check_and_filter(&train, report, CLASSES_TO_LEARN, recipe, context)?;
    if class_counts.classes() < CLASSES_TO_LEARN {
        let only = class_counts.occurring().next().map(|(class, _)| class);
        let ignored = class_counts.share(class_counts.ignored);
        let setting = match (&train.table, recipe.data.kind) {
            (Some(_), _) => "data.fields.mask to the column",
            (None, recipe::DataKind::Coco) => "data.train_masks to the file",
            (None, _) => "data.train_masks to the folder",
        };
        return Err(found_rule(&train, recipe).one_class(masks, only, ignored, setting).into());
    }
    Ok(train)
}

/// Returns the usable test samples. Masks without a class are an error.
pub(super) fn check_test(
    test: Samples,
    report: &CheckReport,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<Samples, TaskError> {
    let (test, class_counts) = check_and_filter(&test, report, 1, recipe, context)?;
    match class_counts.occurring().collect::<Vec<_>>().as_slice() {
        [] => {
            let (set, place) = (test.set.clone(), test.place(masks(&test)));
            return Err(DataError::NothingToTest(set, place, rule(recipe).ignore).into());
        }
        [(class, _)] => {
            let class = found_rule(&test, recipe).name(*class);
            (context.warn)(format!(
                "{} of {} have only class {class}, so a model that always predicts {class} scores best; add masks of other classes",
                read(&class_counts, &test),
                masks(&test)
            ))
        }
        _ => {}
    }
    Ok(test)
}

/// Returns the rule of the masks, which may name classes that the recipe does not know.
fn found_rule(samples: &Samples, recipe: &Recipe) -> MaskRule {
    samples.mask_rules().next().map_or_else(|| rule(recipe), |(_, rule)| rule.clone())
}

/// Returns the colours of the classes of masks, by field.
pub(super) fn colors(samples: &Samples) -> BTreeMap<String, Vec<String>> {
    let of = |(field, rule): (&str, &MaskRule)| {
        let MaskKind::Colors(table) = &rule.kind else { return None };
        let first = |class| table.entries.iter().find(|entry| usize::from(entry.class) == class);
        let colors = (0..rule.classes).filter_map(|class| Some(Hex(first(class)?.color).to_string()));
        Some((field.to_owned(), colors.collect()))
    };
    samples.mask_rules().filter_map(of).collect()
}

/// Returns the names of the classes of masks, by field, if they have names.
pub(super) fn names(samples: &Samples) -> BTreeMap<String, Vec<String>> {
    let named = samples.mask_rules().filter(|(_, rule)| !rule.names.is_empty());
    named.map(|(field, rule)| (field.to_owned(), rule.names.clone())).collect()
}

/// Reports the colours of masks that have no class.
pub(super) fn report_strangers(strangers: &Strangers, samples: &Samples, context: &mut SurveyContext<'_>) {
    let mut tables = samples.mask_rules().filter_map(|(_, rule)| match &rule.kind {
        MaskKind::Colors(table) => Some(table),
        _ => None,
    });
    let (Some(table), all) = (tables.next(), strangers.by_pixels()) else { return };
    if all.is_empty() {
        return;
    }
    let describe = |(color, found): &(_, Found)| {
        let (files, pixels) =
            (counted(found.files as usize, "file"), counted(found.pixels as usize, "pixel"));
        format!("{} in {files} ({pixels}; nearest: {})", Hex(*color), table.describe_nearest(*color))
    };
    let mut listed: Vec<String> = all.iter().take(LISTED).map(describe).collect();
    if all.len() > LISTED {
        listed.push(format!("{} more", all.len() - LISTED));
    }
    let farthest = all.iter().map(|(color, _)| table.distance(*color)).max().unwrap_or_default();
    (context.warn)(format!(
        "the masks of {} have colours that data.mask_colors lacks: {}; add them with their classes or, if compression or smoothing made \
         them, set data.mask_tolerance = {farthest}",
        masks(samples),
        listed.join(", ")
    ));
}

/// Returns the name of the masks in messages: their folder or file, or the set of a table.
pub(super) fn masks(samples: &Samples) -> &str {
    samples
        .pixels()
        .map(|(source, _)| source.place())
        .filter(|folder| !folder.is_empty())
        .unwrap_or(&samples.set)
}

/// Returns the usable pairs, and reports the classes in their masks: in all masks if the first ones have
/// fewer than `wanted` classes.
fn check_and_filter(
    samples: &Samples,
    report: &CheckReport,
    wanted: usize,
    recipe: &Recipe,
    context: &mut SurveyContext<'_>,
) -> Result<(Samples, ClassCounts), TaskError> {
    let good = samples.without_bad(report)?;
    let threads = context.threads;
    let class_counts = samples.class_counts(report, wanted, threads, &mut progress_callback(masks(samples)));
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
    let rule = found_rule(samples, recipe);
    let mut shares: Vec<String> = class_counts
        .occurring()
        .take(LISTED)
        .map(|(class, pixels)| format!("{} {}", rule.name(class), percent(class_counts.share(pixels))))
        .collect();
    if class_counts.classes() > LISTED {
        shares.push(format!("{} more", class_counts.classes() - LISTED));
    }
    format!(
        "pixels by class in {} of {}: {}; {} are ignored ({})",
        read(class_counts, samples),
        masks(samples),
        if shares.is_empty() { "none".to_owned() } else { shares.join(", ") },
        percent(class_counts.share(class_counts.ignored)),
        match rule.names.is_empty() {
            true => format!("data.ignore = {}", rule.ignore),
            false => "data.ignore_classes".to_owned(),
        }
    )
}

fn missing(class_counts: &ClassCounts, samples: &Samples, recipe: &Recipe) -> Option<String> {
    let rule = found_rule(samples, recipe);
    let classes = rule.classes;
    let missing = class_counts.missing(classes);
    let mut names: Vec<String> = missing.iter().take(LISTED).map(|class| rule.name(*class)).collect();
    if missing.len() > LISTED {
        names.push(format!("{} more", missing.len() - LISTED));
    }
    (!missing.is_empty()).then(|| {
        format!(
            "no pixel in {} of {} is of class {}; check {} and the masks",
            read(class_counts, samples),
            masks(samples),
            names.join(", "),
            match (rule.names.is_empty(), rule.kind) {
                (true, _) => format!("data.classes = {classes}"),
                (false, MaskKind::Colors(_)) => "data.mask_colors".to_owned(),
                (false, _) => "the categories".to_owned(),
            }
        )
    })
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

pub(in crate::tasks) fn rule(recipe: &Recipe) -> MaskRule {
    let data = &recipe.data;
    // A loaded recipe has the value for masks that are the target.
    let ignore = data.ignore.filter(|_| !recipe.ignores_maps()).unwrap_or(255);
    let mut names = Vec::new();
    let kind = match (data.masks, &data.mask_colors) {
        (Masks::Index, _) => MaskKind::Index,
        (Masks::Binary, _) => MaskKind::Binary,
        (Masks::Threshold, _) => MaskKind::Threshold(data.mask_threshold),
        (Masks::Colors, colors) => {
            let list = colors.as_ref().map(MaskColors::list).unwrap_or_default();
            let classes =
                colors.as_ref().map(|colors| colors.classes(&data.ignore_classes)).unwrap_or_default();
            names = classes.iter().map(ToString::to_string).collect();
            let entry = |entry: &ClassColor| {
                let class = classes.iter().position(|name| *name == entry.class);
                let class = class.and_then(|class| u16::try_from(class).ok()).unwrap_or(ignore);
                ColorEntry { color: entry.color, class, name: entry.class.clone() }
            };
            let entries = list.iter().map(entry).collect();
            MaskKind::Colors(ColorTable { entries, tolerance: data.mask_tolerance })
        }
    };
    MaskRule { kind, classes: data.classes, ignore: i64::from(ignore), names }
}
