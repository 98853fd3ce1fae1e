//! The data sets of a prediction, which are both the same: inputs, without targets.

use std::sync::Arc;

use dtrain_recipe::{Episodes, Recipe, Resize};

use super::super::TaskError;
use super::super::predict::{Saved, Unlabelled};
use super::Sets;
use super::files;
use crate::data::{
    Blanks, CacheBudget, Concatenated, Dataset, EpisodeShape, FileSet, Groups, ImageOptions, Windows,
};

/// Makes the data sets.
pub(super) fn sets(recipe: &Recipe, inputs: Unlabelled) -> Result<Sets, TaskError> {
    let members = inputs.support_members().unwrap_or_default();
    let Unlabelled { saved, samples, count, sizes, overlap, support, .. } = inputs;
    let class_names = support.as_ref().map_or(&saved.class_names, |support| &support.classes).clone();
    let size = saved.size().unwrap_or((1, 1));
    let set: Arc<dyn Dataset> = match samples {
        None => Arc::new(Blanks::only(count, saved.fields().collect()).with_texts(recipe.has_texts())),
        Some(samples) => {
            // Each image is used once.
            let context = samples.text_field().map_or(0, |field| saved.context(field));
            let (_, options) = files::options(recipe, Some(size), CacheBudget::default(), context);
            if let (Some(support), Some(shape)) = (support, &recipe.data.episodes) {
                let set = |samples| -> Arc<dyn Dataset> { Arc::new(FileSet::new(samples, options.clone())) };
                let singles = Concatenated::of(vec![set(samples), set(support.samples)]);
                let singles = Arc::new(Blanks::after(singles, saved.fields_of_singles()));
                let &Episodes { n_way: ways, k_shot: shots, n_query: queries, .. } = shape;
                let shape = EpisodeShape { ways, shots, queries };
                let set = Arc::new(Groups::asked(singles, shape, (members, count)));
                return Ok(sets_of(set, saved, class_names, size));
            }
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
    Ok(sets_of(set, saved, class_names, size))
}

fn sets_of(set: Arc<dyn Dataset>, saved: Saved, class_names: Vec<String>, size: (u32, u32)) -> Sets {
    let vocabulary = saved.vocabulary();
    Sets {
        classes: saved.classes,
        class_names,
        other_classes: saved.other_classes(),
        numbers: saved.numbers(),
        moments: saved.moments(),
        size: (size.0 as usize, size.1 as usize),
        vocabulary,
        predicts: true,
        description: "inputs without targets".to_owned(),
        ..Sets::of(Arc::clone(&set), set)
    }
}
