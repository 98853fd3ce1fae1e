//! Images with annotations in COCO's format.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use dtrain_common::look::Layout;

use super::classes::ROOT;
use super::images;
use super::roles::Sets;
use super::tree::{Folder, Tree};

/// The part of a file in which its keys are searched, at both ends.
const SEARCHED: usize = 1 << 16;

/// Finds files of annotations and the folders of their images.
pub(crate) fn find(tree: &Tree) -> Vec<Layout> {
    let folders = [Some(&tree.top), tree.top.folders.iter().find(|folder| folder.name() == "annotations")];
    let files = folders.into_iter().flatten().flat_map(|folder| {
        let path = |name: &String| {
            if folder.path.is_empty() { name.clone() } else { format!("{}/{name}", folder.path) }
        };
        folder.files.iter().filter(|name| name.ends_with(".json")).map(path)
    });
    let with_images: Vec<&Folder> =
        tree.top.walk().into_iter().filter(|folder| !folder.images.is_empty()).collect();
    // The annotations of objects; captions and key points have other words in their names.
    let of = |file: &String| {
        let name = file.rsplit('/').next().unwrap_or(file);
        let folder =
            with_images.iter().find(|folder| !folder.path.is_empty() && name.contains(folder.name()))?;
        has_annotations(&tree.root.join(file)).then(|| (folder.path.clone(), file.clone()))
    };
    let pairs: Vec<(String, String)> = files
        .filter(|file| !file.contains("caption") && !file.contains("keypoints"))
        .filter_map(|file| of(&file))
        .collect();
    let sets = Sets::of(pairs.iter().map(|(folder, _)| folder.as_str()));
    let Some(train) = sets.train.clone() else { return Vec::new() };
    let annotations = |set: &Option<String>| {
        let set = set.as_ref()?;
        pairs.iter().find(|(folder, _)| folder == set).map(|(_, file)| file.clone())
    };
    let words = format!("images with annotations of COCO, {}", sets.words());
    let layout = Layout::new("coco", words).with("kind", "coco", "masks are drawn from annotations");
    let mut layout = layout.with("root", tree.shown(), ROOT);
    sets.add(&mut layout, "images");
    let test = sets.test.as_ref().or(sets.val.as_ref()).cloned();
    let masks = [("train_masks", &sets.train), ("test_masks", &test)];
    let val = sets.test.as_ref().and(sets.val.as_ref()).map(|_| ("val_masks", &sets.val));
    for (key, set) in masks.into_iter().chain(val) {
        if let Some(file) = annotations(set) {
            layout.add(key, file, "");
        }
    }
    let of_train = with_images.iter().find(|folder| folder.path == train);
    let paths =
        |folder: &&Folder| folder.images.iter().map(|name| tree.path(folder, name)).collect::<Vec<_>>();
    images::add(&mut layout, of_train.map(paths).unwrap_or_default().into_iter());
    vec![layout]
}

/// Returns whether a file has the keys of COCO's annotations. Large files begin with images and end with categories, or the
/// other way round.
fn has_annotations(path: &Path) -> bool {
    let Ok(mut file) = File::open(path) else { return false };
    let mut text = Vec::new();
    if file.by_ref().take(SEARCHED as u64).read_to_end(&mut text).is_err() {
        return false;
    }
    let has = |key: &str| text.windows(key.len()).any(|part| part == key.as_bytes());
    has("\"images\"") || has("\"annotations\"") || has("\"categories\"")
}
