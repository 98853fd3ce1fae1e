//! The labelled images of `--support`: a few of each class, for models of episodes.

use std::path::Path;

use dtrain_common::files;
use dtrain_common::text::counted;
use dtrain_recipe::{Episodes, Recipe};
use serde_json::{Value, json};

use super::parts::failed;
use crate::data::Samples;
use crate::data::sources::inputs;
use crate::setup::error::Result;
use crate::setup::predict_error::PredictError;
use crate::tasks::TaskError;
use crate::tasks::predict::{Support, columns};

/// Finds the first images by path of each class folder below `folder`, as many as an episode of this shape takes.
pub(super) fn find(recipe: &Recipe, folder: &Path, shape: &Episodes) -> Result<Support> {
    let wrong = |found: String| {
        let (path, ways, shots) = (folder.to_owned(), shape.n_way, shape.k_shot);
        Err(PredictError::Support { path, found, ways, shots }.into())
    };
    if !folder.is_dir() {
        return wrong("is no folder".to_owned());
    }
    let path = std::path::absolute(folder).map_err(failed(folder))?;
    let samples = inputs::list(&path, &columns(recipe)).map_err(TaskError::from)?;
    let (classes, members) = chosen(&samples, shape.k_shot);
    if classes.len() != shape.n_way {
        return wrong(format!("has {} of images", counted(classes.len(), "folder")));
    }
    if let Some((class, count)) = classes.iter().find(|(_, count)| *count < shape.k_shot) {
        return wrong(format!("has {} in {class}", counted(*count, "image")));
    }
    Ok(Support { samples, classes: classes.into_iter().map(|(class, _)| class).collect(), members })
}

/// Returns what identifies the labelled images: the classes, and the bytes of the images that are used.
pub(super) fn identity(folder: &Path, support: &Support) -> Result<Value> {
    let files = support.samples.images().next();
    let paths = files.iter().flat_map(|files| support.members.iter().map(|&at| files.paths.get(at as usize)));
    let hashes = paths.map(|path| {
        let path = folder.join(&*path);
        files::hash(&path).map_err(failed(&path))
    });
    Ok(json!([support.classes, hashes.collect::<std::result::Result<Vec<_>, _>>()?]))
}

/// Returns the classes, which are the folders, with the number of images of each, and the first `shots` images of each class.
fn chosen(samples: &Samples, shots: usize) -> (Vec<(String, usize)>, Vec<u32>) {
    let (mut classes, mut members) = (Vec::<(String, usize)>::new(), Vec::new());
    let Some(files) = samples.images().next() else { return (classes, members) };
    for at in 0..samples.count() {
        let path = files.paths.get(at);
        // An image beside the folders has no class.
        let Some((class, _)) = path.split_once('/') else { continue };
        if classes.last().is_none_or(|(last, _)| last != class) {
            classes.push((class.to_owned(), 0));
        }
        if let Some((_, count)) = classes.last_mut() {
            if *count < shots {
                members.push(at as u32);
            }
            *count += 1;
        }
    }
    (classes, members)
}
