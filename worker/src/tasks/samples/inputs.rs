//! The data sets of a prediction, which are both the same: inputs, without targets.

use std::sync::Arc;

use dtrain_recipe::{Recipe, Resize};

use super::super::TaskError;
use super::super::predict::Unlabelled;
use super::Sets;
use super::files;
use crate::data::{Blanks, CacheBudget, Dataset, FileSet, ImageOptions, Windows};

/// Makes the data sets.
pub(super) fn sets(recipe: &Recipe, inputs: Unlabelled) -> Result<Sets, TaskError> {
    let Unlabelled { saved, samples, count, sizes, overlap, .. } = inputs;
    let size = saved.size().unwrap_or((1, 1));
    let set: Arc<dyn Dataset> = match samples {
        None => Arc::new(Blanks::only(count, saved.fields().collect()).with_texts(recipe.has_texts())),
        Some(samples) => {
            // Each image is used once.
            let context = samples.text_field().map_or(0, |field| saved.context(field));
            let (_, options) = files::options(recipe, Some(size), CacheBudget::default(), context);
            let set: Arc<dyn Dataset> = match sizes.is_empty() {
                true => Arc::new(FileSet::new(samples, options)),
                false => Arc::new(Windows::new(
                    samples,
                    &sizes,
                    overlap,
                    ImageOptions { resize: Resize::Stretch, ..options },
                )),
            };
            Arc::new(Blanks::after(set, saved.fields()).with_texts(recipe.has_texts()))
        }
    };
    let vocabulary = saved.vocabulary();
    Ok(Sets {
        classes: saved.classes,
        class_names: saved.class_names.clone(),
        other_classes: saved.other_classes(),
        numbers: saved.numbers(),
        moments: saved.moments(),
        size: (size.0 as usize, size.1 as usize),
        vocabulary,
        predicts: true,
        description: "inputs without targets".to_owned(),
        ..Sets::of(Arc::clone(&set), set)
    })
}
