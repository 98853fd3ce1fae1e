//! Classes of images, from folders or generated: the data of several tasks.

use std::path::Path;
use std::sync::Arc;

use dtrain_common::recipe::{DataKind, Recipe};

use super::TaskError;
use crate::data::{self, Dataset, Depth, Generated, ImageFolder, ImageIndex, Normalize, Split};

/// The image folders as rank 0 found them, without unreadable images: (training, test); None for generated images.
pub(super) type Survey = Option<(ImageIndex, ImageIndex)>;

/// The sets of a run and the number of their classes.
pub(super) struct ImageSets {
    pub(super) train: Arc<dyn Dataset>,
    pub(super) test: Arc<dyn Dataset>,
    pub(super) classes: usize,
}

/// Scans and checks the recipe's image folders; a generated set needs neither.
pub(super) fn survey(
    recipe: &Recipe,
    threads: usize,
    say: &mut dyn FnMut(String),
) -> Result<Survey, TaskError> {
    let DataKind::Folder = recipe.data.kind else {
        return Ok(None);
    };
    recipe.check_paths()?;
    let root = recipe.data.root.as_deref().unwrap_or(Path::new("."));
    let train = ImageIndex::scan(root, &recipe.data.train, None)?;
    let test = ImageIndex::scan(root, &recipe.data.test, Some(&train.classes))?;
    let train = without_unreadable(&train, threads, say)?;
    let test = without_unreadable(&test, threads, say)?;
    Ok(Some((train, test)))
}

fn without_unreadable(
    index: &ImageIndex,
    threads: usize,
    say: &mut dyn FnMut(String),
) -> Result<ImageIndex, TaskError> {
    /// A check of this many images is worth telling of while it goes on.
    const TELL_EVERY: usize = 50_000;
    let depth = Depth::for_len(index.len());
    let mut told = 0;
    let report = data::check(index, depth, threads, &mut |done, total| {
        if done - told >= TELL_EVERY {
            told = done;
            say(format!("looked at {done} of {total} images in {}", index.split));
        }
    });
    let checked = report.apply(index)?;
    for bad in &report.bad {
        say(format!("left out, cannot be read: {}: {}", bad.path, bad.reason));
    }
    if !report.bad.is_empty() {
        let split = &index.split;
        say(format!(
            "{} of {} images in {split} are left out because they cannot be read",
            report.bad.len(),
            index.len()
        ));
    }
    Ok(checked)
}

/// The sets that the recipe and the survey describe.
pub(super) fn sets(recipe: &Recipe, survey: Survey) -> ImageSets {
    let data = &recipe.data;
    let three = |values: &[f64]| [values[0], values[1], values[2]];
    let normalize = Normalize::new(three(&data.mean), three(&data.std));
    match survey {
        Some((train, test)) => {
            let classes = train.classes.len();
            let folder = |index: ImageIndex| ImageFolder::new(index, data.image_size, normalize.clone());
            ImageSets {
                train: Arc::new(folder(train)),
                test: Arc::new(folder(test)),
                classes,
            }
        }
        None => {
            let generated = |samples, split| {
                Generated::new(data.classes, samples, data.image_size, recipe.train.seed, split)
                    .with_normalize(normalize.clone())
            };
            ImageSets {
                train: Arc::new(generated(data.train_samples, Split::Train)),
                test: Arc::new(generated(data.test_samples, Split::Test)),
                classes: data.classes,
            }
        }
    }
}
