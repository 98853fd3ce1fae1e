//! Folders of classes, and folders of images with a table beside them.

use dtrain_common::look::Layout;
use dtrain_data::sources::preview;

use super::images;
use super::roles::{Sets, is_of_targets, role};
use super::tree::{Folder, Tree};

/// Finds class folders, CUB-200-2011 and ImageNet.
pub(crate) fn find(tree: &Tree) -> Vec<Layout> {
    let top = &tree.top;
    if ["images.txt", "classes.txt", "image_class_labels.txt", "train_test_split.txt"]
        .iter()
        .all(|name| top.has(name))
    {
        let layout = Layout::new("cub", "the layout of CUB-200-2011").with(
            "kind",
            "cub",
            "the files of CUB-200-2011, as downloaded",
        );
        return vec![with_images(layout.with("root", tree.shown(), ROOT), tree, top)];
    }
    let has_classes = |name: &str| folder(top, name).is_some_and(is_of_classes);
    let mut sets = Sets::of(top.folders.iter().map(Folder::name).filter(|name| has_classes(name)));
    if let Some(train) = sets.train.clone() {
        // The validation set of ImageNet is one folder with a list.
        let listed = top
            .folders
            .iter()
            .map(Folder::name)
            .find(|name| !has_classes(name) && role(name).is_some() && top.has(&format!("{name}.txt")));
        if sets.test.is_none() {
            sets.test = sets.val.take().or_else(|| listed.map(str::to_owned));
        }
        let count = folder(top, &train).map_or(0, |train| train.folders.len());
        let words = format!("{count} class folders in {}", sets.words());
        let mut layout = Layout::new("class-folders", words).with("root", tree.shown(), ROOT);
        sets.add(&mut layout, "a folder for each class");
        if let Some(name) = listed.filter(|name| sets.test.as_deref() == Some(*name)) {
            let lists = toml::Table::from_iter([(name.to_owned(), format!("{name}.txt").into())]);
            layout.add("lists", lists, "the images of this folder and their classes");
        }
        return vec![with_images(layout, tree, folder(top, &train).unwrap_or(top))];
    }
    // A class may have the name of a set, as the trains of CIFAR-100.
    let named = top.folders.iter().filter(|folder| role(folder.name()).is_some()).count();
    let is_of_sets = 2 * named >= top.folders.len();
    match (is_of_classes(top) && !is_of_sets, tree.above()) {
        (true, Some((above, name))) => {
            let words = format!("{} class folders", top.folders.len());
            let mut layout = Layout::new("class-folders", words).with("root", above, ROOT);
            Sets { train: Some(name), ..Sets::default() }.add(&mut layout, "a folder for each class");
            vec![with_images(layout, tree, top)]
        }
        _ => Vec::new(),
    }
}

/// What a user should know about `data.root`.
pub(crate) const ROOT: &str = "relative to where you start dtrain";

/// Finds images with a table `classes.csv`.
pub(crate) fn of_sets(tree: &Tree) -> Option<Layout> {
    let layout = with_table(tree, "classes.csv", "class-table", "images with a table classes.csv")?;
    Some(layout.with("target", "classes", "an image has any number of classes"))
}

/// Finds images with a table `targets.csv`.
pub(crate) fn of_numbers(tree: &Tree) -> Option<Layout> {
    let mut layout = with_table(tree, "targets.csv", "numbers", "images with a table targets.csv")?;
    let tables = tree.top.walk().into_iter().filter(|folder| folder.has("targets.csv"));
    let counts = tables.filter_map(|folder| preview::table(&tree.path(folder, "targets.csv")).ok());
    layout.numbers = counts.map(|table| table.columns.len().saturating_sub(1)).max().unwrap_or(0);
    Some(layout)
}

fn with_table(tree: &Tree, table: &str, name: &str, words: &str) -> Option<Layout> {
    let has = |folder: &&Folder| folder.has(table) && folder.count() > 0;
    let top = &tree.top;
    let sets = Sets::of(top.folders.iter().filter(has).map(Folder::name));
    let (layout, sets, of) = match (&sets.train, has(&top)) {
        (Some(train), _) => {
            let words = format!("{words} in {}", sets.words());
            (Layout::new(name, words).with("root", tree.shown(), ROOT), sets.clone(), folder(top, train)?)
        }
        (None, true) => {
            let (above, name_of_root) = tree.above()?;
            let sets = Sets { train: Some(name_of_root), ..Sets::default() };
            (Layout::new(name, words).with("root", above, ROOT), sets, top)
        }
        (None, false) => return None,
    };
    let mut layout = layout;
    sets.add(&mut layout, &format!("a folder of images with {table}"));
    Some(with_images(layout, tree, of))
}

/// Adds the settings of the images in a folder.
fn with_images(mut layout: Layout, tree: &Tree, of: &Folder) -> Layout {
    images::add(&mut layout, of.all_images().iter().map(|path| tree.root.join(path)));
    layout
}

fn folder<'a>(of: &'a Folder, name: &str) -> Option<&'a Folder> {
    of.folders.iter().find(|folder| folder.name() == name)
}

/// Returns whether a folder holds a folder of images for each class.
fn is_of_classes(folder: &Folder) -> bool {
    let with_images = folder.folders.iter().filter(|class| class.count() > 0).count();
    // Images and their masks are no classes.
    let targets = folder.folders.iter().filter(|class| is_of_targets(class.name())).count();
    let are_pairs = targets > 0 && folder.folders.len() <= 2 * targets;
    with_images >= 2 && folder.images.is_empty() && !are_pairs
}
