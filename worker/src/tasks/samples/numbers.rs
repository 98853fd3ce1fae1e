//! Statistics of numbers and maps.

use dtrain_recipe::Recipe;

use super::super::{SurveyContext, TaskError};
use super::masks::masks;
use crate::data::{CheckReport, DataError, Dataset, MapRule, Moments, Samples, load_one};

/// Reports the statistics of the training samples' numbers.
pub(super) fn report(train: &Samples, moments: &[Moments], context: &mut SurveyContext<'_>) {
    for (name, moments) in train.numbers().0.iter().zip(moments) {
        (context.report)(format!("{name} in {}: {}", train.set, described(moments)));
    }
}

/// Returns the usable samples, and the statistics of their maps.
pub(super) fn check_maps(
    samples: Samples,
    report: &CheckReport,
    context: &mut SurveyContext<'_>,
) -> Result<(Samples, Moments), TaskError> {
    let good = samples.without_bad(report)?;
    let maps = masks(&good);
    if report.moments.count == 0 {
        return Err(DataError::EmptyMaps(good.place(maps)).into());
    }
    (context.report)(format!("pixels of {maps}: {}", described(&report.moments)));
    Ok((good, report.moments))
}

pub(super) fn map_rule(recipe: &Recipe) -> MapRule {
    MapRule {
        scale: recipe.data.target_scale as f32,
        ignore: recipe.data.ignore.filter(|_| recipe.ignores_maps()),
        offset: recipe.data.target_offset as f32,
        nodata: recipe.data.nodata,
    }
}

fn described(moments: &Moments) -> String {
    let Moments { count, mean, min, max, .. } = moments;
    format!("{count} numbers from {min:.4} to {max:.4}, mean {mean:.4}, deviation {:.4}", moments.deviation())
}

/// Checks that targets to normalise differ.
pub(super) fn check_moments(recipe: &Recipe, names: &[String], moments: &[Moments]) -> Result<(), DataError> {
    let equal = moments.iter().position(|moments| moments.deviation() == 0.0);
    match equal.filter(|_| recipe.data.normalize_targets) {
        None => Ok(()),
        Some(at) => {
            let name = names.get(at).map_or("of the maps".to_owned(), |name| format!("`{name}`"));
            Err(DataError::EqualTargets(name, moments[at].mean))
        }
    }
}

/// Returns the statistics of the first samples, by number.
pub(super) fn first_moments(set: &dyn Dataset, numbers: usize) -> Vec<Moments> {
    /// Enough for a normalisation, and drawn in a second.
    const SAMPLES: usize = 100;
    let mut all = vec![Moments::default(); numbers];
    for index in 0..set.len().min(SAMPLES) {
        let Ok(columns) = load_one(set, index, None) else { continue };
        let values = columns[1].as_f32().unwrap_or_default();
        for (number, moments) in all.iter_mut().enumerate() {
            moments.add(&Moments::of(values.iter().copied().skip(number).step_by(numbers)));
        }
    }
    all
}
