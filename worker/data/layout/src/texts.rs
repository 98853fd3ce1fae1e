//! Texts, and their tokenizer.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use dtrain_common::look::Layout;

use super::classes::ROOT;
use super::roles::Sets;
use super::tokens;
use super::tree::Tree;

/// The part of a text in which characters are counted.
const COUNTED: u64 = 4 << 20;
/// More characters than of one script: bytes are fewer.
const MOST_CHARACTERS: usize = 300;

/// Finds texts, token files and tables of texts.
pub(crate) fn of_folder(tree: &Tree) -> Result<Vec<Layout>, String> {
    let with = |ending: &str| tree.top.files.iter().filter(|name| name.ends_with(ending)).collect::<Vec<_>>();
    let mut found = tokens::of_folder(tree)?;
    let texts = with(".txt");
    // The `.idx` of token files, and vocabularies, are no texts.
    if let Some(first) = texts.first().filter(|_| found.is_empty()) {
        let sets = Sets::of(texts.iter().map(|name| name.as_str()));
        if let (Some(train), Some(other)) = (sets.train, sets.test.or(sets.val)) {
            // All texts of a folder are one: the model would train on the test set.
            let words = format!("the text {train} alone; {other} is another set");
            let path = tree.root.join(train);
            let layout = Layout::new("text", words).with("root", path.to_string_lossy().as_ref(), ROOT);
            return Ok(vec![with_text(layout, &path, &tree.root)?]);
        }
        let words = match texts.len() {
            1 => format!("a text, {first}"),
            count => format!("{count} texts (.txt)"),
        };
        let layout = Layout::new("text", words).with("root", tree.shown(), ROOT);
        let largest = texts
            .iter()
            .max_by_key(|name| std::fs::metadata(tree.root.join(name)).map_or(0, |about| about.len()));
        found.push(with_text(layout, &tree.root.join(largest.unwrap_or(first)), &tree.root)?);
    }
    Ok(found)
}

/// Returns the layout of a text.
pub(crate) fn of_file(path: &Path) -> Result<Layout, String> {
    let layout = Layout::new("text", "a text").with("root", path.to_string_lossy().as_ref(), ROOT);
    with_text(layout, path, path.parent().unwrap_or(Path::new("")))
}

fn with_text(mut layout: Layout, path: &Path, folder: &Path) -> Result<Layout, String> {
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(COUNTED).read_to_end(&mut bytes));
    read.map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    // A character at the end may be cut.
    let text = match std::str::from_utf8(&bytes) {
        Ok(text) => text,
        Err(error) if error.valid_up_to() + 4 > bytes.len() => {
            std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default()
        }
        Err(_) => return Err(format!("{} is not a text in UTF-8", path.display())),
    };
    let characters: BTreeSet<char> = text.chars().collect();
    if characters.len() < 2 {
        return Err(format!("{} has no text to learn from", path.display()));
    }
    let usual = if characters.len() <= MOST_CHARACTERS { "chars" } else { "bytes" };
    add_tokenizer(&mut layout, folder, usual);
    layout.add("test_fraction", 0.1, "the last tenth of the text is the test set");
    Ok(layout)
}

/// Adds the tokenizer: the `tokenizer.json` beside the texts, else the usual one.
pub(crate) fn add_tokenizer(layout: &mut Layout, folder: &Path, usual: &str) {
    let file = folder.join("tokenizer.json");
    match file.is_file() {
        true => layout.add("tokenizer", file.to_string_lossy().as_ref(), "the tokens of this file"),
        false => layout.add("tokenizer", usual, "or the path of a tokenizer.json"),
    }
}
