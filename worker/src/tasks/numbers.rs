//! Images with numbers or with maps, from folders or generated: the data of regressions.

use std::path::Path;
use std::sync::Arc;

use dtrain_recipe::{DataKind, Recipe, Target};
use serde::{Deserialize, Serialize};

use super::images::{check_files, checked_root, needs, options, prepared, sizes};
use super::{SurveyContext, TaskError};
use crate::data::generated_numbers::NUMBERS;
use crate::data::{
    DataError, Dataset, GeneratedMaps, GeneratedVectors, ImageMaps, ImageVectors, MapIndex, MapRule, Moments,
    Split, TargetIndex, load_one,
};

/// The samples as found by rank 0, without unreadable images: training and test.
#[derive(Debug, Serialize, Deserialize)]
pub enum Survey {
    /// Images with numbers of a table.
    Vectors(Box<TargetIndex>, Box<TargetIndex>),
    /// Images and maps, and the statistics of the training maps.
    Maps(Box<MapIndex>, Box<MapIndex>, Moments),
    /// Generated samples.
    Generated,
}

/// The data sets of a run.
pub(super) struct NumberSets {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    /// The names of the numbers; empty for maps.
    pub(super) names: Vec<String>,
    /// Width and height of the images.
    pub(super) size: (usize, usize),
    /// Statistics of the training targets, by number; of generated ones only if they are normalised.
    pub(super) moments: Vec<Moments>,
}

/// Scans and checks images and targets.
pub(super) fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
    let data = &recipe.data;
    if data.kind == DataKind::Generated {
        return Ok(Survey::Generated);
    }
    let root = checked_root(recipe)?;
    if recipe.target() == Some(Target::Map) {
        return maps(recipe, root, context);
    }
    let check = |index: TargetIndex, context: &mut SurveyContext<'_>| {
        let report = check_files(&index, needs(recipe), &index.split, &index.ignored, context)?;
        Ok::<_, TaskError>(index.without_bad(&report)?)
    };
    let train = check(TargetIndex::scan(root, &data.train, None)?, context)?;
    let mut test = TargetIndex::scan(root, &data.test, Some(&train.names))?;
    test.size = train.size;
    let test = check(test, context)?;
    let moments = train.moments();
    for (name, moments) in train.names.iter().zip(&moments) {
        (context.report)(format!("{name} in {}: {}", train.split, described(moments)));
    }
    check_moments(recipe, &train.names, &moments)?;
    Ok(Survey::Vectors(train.into(), test.into()))
}

fn maps(recipe: &Recipe, root: &Path, context: &mut SurveyContext<'_>) -> Result<Survey, TaskError> {
    let data = &recipe.data;
    let rule = MapRule { scale: data.target_scale as f32, ignore: data.ignore };
    let mut check = |index: MapIndex| {
        let report = check_files(&index, needs(recipe), &index.images, &index.ignored, context)?;
        let good = index.without_bad(&report)?;
        if report.moments.count == 0 {
            return Err(TaskError::from(DataError::EmptyMaps(root.join(&index.masks))));
        }
        (context.report)(format!("pixels of {}: {}", index.masks, described(&report.moments)));
        Ok((good, report.moments))
    };
    let (train, moments) = check(MapIndex::scan(root, &data.train, &data.train_masks, rule)?)?;
    let mut test = MapIndex::scan(root, &data.test, &data.test_masks, rule)?;
    test.size = train.size;
    let (test, _) = check(test)?;
    check_moments(recipe, &[], &[moments])?;
    Ok(Survey::Maps(train.into(), test.into(), moments))
}

fn described(moments: &Moments) -> String {
    let Moments { count, mean, min, max, .. } = moments;
    format!("{count} numbers from {min:.4} to {max:.4}, mean {mean:.4}, deviation {:.4}", moments.deviation())
}

/// Checks that targets to normalise differ.
fn check_moments(recipe: &Recipe, names: &[String], moments: &[Moments]) -> Result<(), DataError> {
    let equal = moments.iter().position(|moments| moments.deviation() == 0.0);
    match equal.filter(|_| recipe.data.normalize_targets) {
        None => Ok(()),
        Some(at) => {
            let name = names.get(at).map_or("of the maps".to_owned(), |name| format!("`{name}`"));
            Err(DataError::EqualTargets(name, moments[at].mean))
        }
    }
}

pub(super) fn sets(recipe: &Recipe, survey: Survey, local_ranks: usize) -> Result<NumberSets, TaskError> {
    let found = match &survey {
        Survey::Vectors(train, _) => train.size,
        Survey::Maps(train, ..) => train.size,
        Survey::Generated => None,
    };
    let (own, size) = sizes(recipe, found);
    let (train_options, test_options) = options(recipe, own, local_ranks);
    Ok(match survey {
        Survey::Vectors(train, test) => NumberSets {
            names: train.names.clone(),
            moments: train.moments(),
            train: Arc::new(ImageVectors::new(*train, train_options)),
            test: Arc::new(ImageVectors::new(*test, test_options)),
            size,
        },
        Survey::Maps(train, test, moments) => NumberSets {
            names: Vec::new(),
            moments: vec![moments],
            train: Arc::new(ImageMaps::new(*train, train_options)),
            test: Arc::new(ImageMaps::new(*test, test_options)),
            size,
        },
        Survey::Generated => generated(recipe, size)?,
    })
}

fn generated(recipe: &Recipe, size: (usize, usize)) -> Result<NumberSets, TaskError> {
    let (data, seed) = (&recipe.data, recipe.train.seed);
    let is_map = recipe.target() == Some(Target::Map);
    let set = |samples, split| -> Arc<dyn Dataset> {
        match is_map {
            true => Arc::new(prepared(GeneratedMaps::new(samples, data.image_size, seed, split), recipe)),
            false => Arc::new(prepared(GeneratedVectors::new(samples, data.image_size, seed, split), recipe)),
        }
    };
    let train = set(data.train_samples, Split::Train);
    let names = if is_map { Vec::new() } else { NUMBERS.map(String::from).to_vec() };
    let moments = match data.normalize_targets {
        true => first_moments(train.as_ref(), names.len().max(1)),
        false => Vec::new(),
    };
    check_moments(recipe, &names, &moments)?;
    Ok(NumberSets { train, test: set(data.test_samples, Split::Test), names, size, moments })
}

/// Returns the statistics of the first samples, by number.
fn first_moments(set: &dyn Dataset, numbers: usize) -> Vec<Moments> {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn recipe(data: &str) -> Recipe {
        let text = format!(
            "task = \"regress\"\n[data]\nkind = \"generated\"\nimage_size = 16\ntrain_samples = 30\ntest_samples = 5\n{data}\n\
             [model]\nfile = \"/m.pt2\"\n[train]\nsteps = 1\n"
        );
        Recipe::parse("test", &text, &[]).unwrap()
    }

    #[test]
    fn generated_targets_are_numbers_or_maps() {
        let sets = sets(&recipe("normalize_targets = true"), Survey::Generated, 1).unwrap();
        assert_eq!((sets.names.len(), sets.size), (2, (16, 16)));
        assert_eq!((sets.train.len(), sets.test.len()), (30, 5));
        let columns: Vec<_> =
            (0..30).map(|index| load_one(sets.train.as_ref(), index, None).unwrap()).collect();
        for (number, moments) in sets.moments.iter().enumerate() {
            let mean: f32 = columns.iter().map(|it| it[1].as_f32().unwrap()[number]).sum::<f32>() / 30.0;
            assert!((moments.mean - f64::from(mean)).abs() < 1e-5 && moments.deviation() > 0.0);
        }
        let maps = super::sets(&recipe("target = \"map\""), Survey::Generated, 1).unwrap();
        assert!(maps.names.is_empty() && maps.moments.is_empty());
        assert_eq!(maps.train.fields()[1], crate::data::Field::f32("map", [16, 16]));
    }

    #[test]
    fn equal_targets_cannot_be_normalised() {
        let moments = [Moments::of([1.0, 2.0].into_iter()), Moments::of([3.0, 3.0].into_iter())];
        let names = ["a", "b"].map(String::from);
        check_moments(&recipe(""), &names, &moments).unwrap();
        let normalised = recipe("normalize_targets = true");
        let text = check_moments(&normalised, &names, &moments).unwrap_err().to_string();
        assert!(text.contains("the training targets `b` are all 3, and data.normalize_targets"), "{text}");
        let text = check_moments(&normalised, &[], &moments[1..]).unwrap_err().to_string();
        assert!(text.contains("the training targets of the maps are all 3"), "{text}");
    }
}
