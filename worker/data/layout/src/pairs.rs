//! Images and their masks or maps: in two folders for each set, or in one.

use std::path::PathBuf;

use dtrain_common::look::Layout;

use super::classes::ROOT;
use super::images;
use super::mask_values;
use super::pair_names::{Named, Pattern, between, within};
use super::roles::{Role, is_of_targets, role_of_path};
use super::tree::{Folder, Tree};

/// Folders of images and of what belongs to them.
struct Pair<'a> {
    role: Option<Role>,
    images: &'a Folder,
    targets: &'a Folder,
    named: Named,
}

/// Finds images with masks.
pub(crate) fn of_masks(tree: &Tree) -> Result<Vec<Layout>, String> {
    let mut found = Vec::new();
    for (mut layout, files) in layouts(tree, "masks") {
        mask_values::add(&mut layout, &files)?;
        found.push(layout);
    }
    Ok(found)
}

/// Finds images with maps.
pub(crate) fn of_maps(tree: &Tree) -> Vec<Layout> {
    let of_map = |(layout, _): (Layout, _)| layout.with("target", "map", "a number for each pixel");
    layouts(tree, "maps").into_iter().map(of_map).collect()
}

/// Returns the layouts, each with the training masks or maps.
fn layouts(tree: &Tree, what: &str) -> Vec<(Layout, Vec<PathBuf>)> {
    let pairs = pairs(tree);
    let wanted =
        if pairs.iter().any(|pair| pair.role == Some(Role::Train)) { Some(Role::Train) } else { None };
    let mut found: Vec<_> = pairs
        .iter()
        .filter(|pair| pair.role == wanted)
        .filter_map(|train| {
            let of = |role| pairs.iter().find(|pair| pair.role == Some(role) && is_alike(train, pair));
            let [test, val] = match wanted {
                Some(_) => [of(Role::Test), of(Role::Val)],
                None => [None, None],
            };
            in_folders(tree, train, test, val, what)
        })
        .collect();
    if found.is_empty() {
        found = tree.top.walk().into_iter().flat_map(|folder| in_one(tree, folder, what)).collect();
    }
    found
}

/// Returns whether two pairs of folders are of one kind of targets: several may describe an image.
fn is_alike(train: &Pair<'_>, other: &Pair<'_>) -> bool {
    let kind = |pair: &Pair<'_>| {
        let name = pair.targets.path.to_ascii_lowercase();
        let words = name.split('/').map(|part| match role_of_path(part) {
            Some(_) => part.trim_start_matches(|c: char| c.is_ascii_alphabetic()).to_owned(),
            None => part.to_owned(),
        });
        words.collect::<Vec<_>>()
    };
    let same = |pair: &Pair<'_>| pair.named == Named::Equally;
    kind(train) == kind(other) || same(train) == same(other)
}

fn pairs(tree: &Tree) -> Vec<Pair<'_>> {
    let folders: Vec<&Folder> =
        tree.top.walk().into_iter().filter(|folder| !folder.images.is_empty()).collect();
    let is_target = |folder: &Folder| folder.path.split('/').any(is_of_targets);
    let mut found = Vec::new();
    for images in folders.iter().filter(|folder| !is_target(folder)) {
        for targets in folders.iter().filter(|folder| is_target(folder)) {
            let role = role_of_path(&images.path);
            if role != role_of_path(&targets.path) {
                continue;
            }
            if let Some(named) = between(&images.images, &targets.images) {
                found.push(Pair { role, images, targets, named });
            }
        }
    }
    found
}

fn in_folders(
    tree: &Tree,
    train: &Pair<'_>,
    test: Option<&Pair<'_>>,
    val: Option<&Pair<'_>>,
    what: &str,
) -> Option<(Layout, Vec<PathBuf>)> {
    let all: Vec<_> = [Some(train), test, val].into_iter().flatten().collect();
    let patterns: Vec<&Pattern> = all
        .iter()
        .filter_map(|pair| match &pair.named {
            Named::By(pattern) => Some(pattern),
            Named::Equally => None,
        })
        .collect();
    let pattern = match patterns.len() {
        0 => None,
        // All or none.
        count if count == all.len() => Some(Pattern::of_all(&patterns)?),
        _ => return None,
    };
    let words = format!(
        "{} images in {} with {what} in {}",
        train.images.images.len(),
        train.images.path,
        train.targets.path
    );
    let mut layout =
        Layout::new(&format!("{what}:{}", train.targets.path), words).with("root", tree.shown(), ROOT);
    layout.add("train", train.images.path.as_str(), "images");
    layout.add(
        "train_masks",
        train.targets.path.as_str(),
        if what == "masks" { "their masks" } else { "their maps" },
    );
    // Without a test set, validation samples are the test set.
    match (test, val) {
        (Some(test), val) => {
            layout.add("test", test.images.path.as_str(), "");
            layout.add("test_masks", test.targets.path.as_str(), "");
            if let Some(val) = val {
                layout.add(
                    "val",
                    val.images.path.as_str(),
                    "evaluated during training; the test set only at its end",
                );
                layout.add("val_masks", val.targets.path.as_str(), "");
            }
        }
        (None, Some(val)) => {
            layout.add("test", val.images.path.as_str(), "there is no other test set");
            layout.add("test_masks", val.targets.path.as_str(), "");
        }
        (None, None) => {
            layout.add("test", "train:0.2", "no test set: a fifth of the training samples, by name")
        }
    }
    if let Some(pattern) = pattern {
        layout.add("pair", pattern, "the names of an image and of what belongs to it");
    }
    images::add(&mut layout, paths(tree, train.images).into_iter());
    Some((layout, paths(tree, train.targets)))
}

fn paths(tree: &Tree, folder: &Folder) -> Vec<PathBuf> {
    folder.images.iter().map(|name| tree.path(folder, name)).collect()
}

/// Returns the layouts of a folder that holds images and their masks.
fn in_one(tree: &Tree, folder: &Folder, what: &str) -> Vec<(Layout, Vec<PathBuf>)> {
    let place = match folder.path.as_str() {
        "" => tree.above(),
        path => Some((tree.shown(), path.to_owned())),
    };
    let Some((root, name)) = place else { return Vec::new() };
    let of = |(ending, pattern): (String, String)| {
        let is_target = |file: &&String| super::tree::stem(file).ends_with(&ending);
        let (targets, images): (Vec<&String>, Vec<&String>) = folder.images.iter().partition(is_target);
        let words =
            format!("{} images and {what} in one folder, whose names end with {ending}", targets.len());
        let layout = Layout::new(&format!("{what}:*{ending}"), words).with("root", root.clone(), ROOT);
        let mut layout = layout
            .with("train", name.as_str(), &format!("images and {what}"))
            .with("train_masks", name.as_str(), "")
            .with("test", "train:0.2", "no test set: a fifth of the training samples, by name")
            .with("pair", pattern, "the names of an image and of what belongs to it");
        // Masks of other endings are no images.
        let others = |file: &&&String| {
            super::tree::stem(file).chars().any(|c| !c.is_alphanumeric()) || images.len() == targets.len()
        };
        let own: Vec<PathBuf> = images.iter().filter(others).map(|file| tree.path(folder, file)).collect();
        images::add(&mut layout, own.into_iter());
        (layout, targets.into_iter().map(|file| tree.path(folder, file)).collect())
    };
    within(&folder.images).into_iter().map(of).collect()
}
