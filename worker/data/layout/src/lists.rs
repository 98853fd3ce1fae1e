//! JSON lists of images and their classes, one file for each set.

use std::io::Read;
use std::path::Path;

use dtrain_common::look::Layout;

use super::classes::ROOT;
use super::roles::Sets;
use super::tree::Tree;

/// The beginning of a file in which its keys are searched.
const BEGINNING: u64 = 1 << 12;

/// Finds the lists of few-shot learning: `base.json` and `novel.json`, or lists with the names of sets.
pub(crate) fn find(tree: &Tree) -> Vec<Layout> {
    let is_list = |name: &&String| name.ends_with(".json") && has_keys(&tree.root.join(name));
    let names: Vec<_> = tree.top.files.iter().filter(is_list).map(String::as_str).collect();
    if names.is_empty() {
        return Vec::new();
    }
    let mut sets = Sets::of(names.iter().copied());
    let named = |wanted: &str| names.iter().find(|name| **name == wanted).map(|name| (*name).to_owned());
    sets.train = sets.train.or_else(|| named("base.json"));
    sets.test = sets.test.or_else(|| named("novel.json"));
    if sets.train.is_none() {
        return Vec::new();
    }
    let words = format!("JSON lists of images, {}", sets.words());
    let layout =
        Layout::new("json-list", words).with("kind", "json-list", "JSON lists of images and classes");
    let mut layout = layout.with("root", tree.shown(), ROOT);
    sets.add(&mut layout, "the list of the training images");
    vec![layout]
}

fn has_keys(path: &Path) -> bool {
    let mut text = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(BEGINNING).read_to_end(&mut text));
    let has = |key: &[u8]| text.windows(key.len()).any(|part| part == key);
    read.is_ok() && has(b"\"label_names\"")
}
