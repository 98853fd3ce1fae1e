//! The kinds of values that only `[data]` and `[model]` take.

use std::path::{Component, Path};

use dtrain_common::recipe::hints::describe;
use dtrain_common::recipe::kinds::{Kind, NAME, check, choice, each, each_entry, parsed, word_or};
use serde_json::json;
use toml::Value;

use super::{BatchNorm, Join, MaskColors, Pair, Tokenizer};

pub(super) const BATCH_NORM: Kind = Kind::Shaped(
    "\"local\", \"synced\", \"frozen\", or a group of samples such as \"group:16\"",
    || word_or(BatchNorm::NAMES, json!({"type": "string", "pattern": "^group:"})),
    parsed::<BatchNorm>,
);
pub(super) const TOKENIZER: Kind = Kind::Shaped(
    "\"chars\", \"bytes\", or the path of a tokenizer.json",
    || word_or(Tokenizer::NAMES, json!({"type": "string"})),
    parsed::<Tokenizer>,
);
pub(super) const FOLDER_NAME: Kind = Kind::Other(
    "the name of a folder below data.root, with no `..` and no leading `/`",
    &["string"],
    |value| Ok(value.as_str().is_some_and(is_folder_name)),
);
/// Names of images and of their masks.
pub(super) const PAIR: Kind = Kind::Other(
    "the names of images and of their masks, such as \"{id}_training -> {id}_manual1\"",
    &["string"],
    parsed::<Pair>,
);
/// The colours of classes.
pub(super) const COLORS: Kind = Kind::Other(
    "colours of classes, or the path of a file with them",
    &["string", "array", "object"],
    |value| MaskColors::try_from(value.clone()).map(|_| true),
);
/// A list of names, not empty.
pub(super) const CLASS_NAMES: Kind =
    Kind::Other("a list of names of classes, such as [\"void\"]", &["array"], |value| {
        each(value, |value| check(&NAME, value))
    });
/// A table of texts, not empty.
pub(super) const FIELDS: Kind =
    Kind::Other("a table of fields, such as { image = \"image:path\" }", &["object"], |value| {
        each_entry(value, |value| check(&NAME, value))
    });
/// A table of counts, not empty.
pub(super) const REPEATS: Kind =
    Kind::Other("a table of tokens and counts, such as { \"<image>\" = 64 }", &["object"], |value| {
        each_entry(value, |value| check(&Kind::Whole(1, 1 << 16), value))
    });
/// A table of paths, not empty.
pub(super) const LISTS: Kind = Kind::Other(
    "a table of list files below data.root, such as { val = \"val.txt\" }",
    &["object"],
    |value| each_entry(value, |value| check(&FOLDER_NAME, value)),
);
/// A table of joins, not empty.
pub(super) const JOINS: Kind =
    Kind::Other("a table of joins, such as { queue = \"append\" }", &["object"], |value| {
        each_entry(value, |value| check(&choice(Join::NAMES), value))
    });
/// Pairs of a regular expression and a replacement, at least one.
pub(super) const RENAMES: Kind =
    Kind::Other("a list of pairs, such as [[\"^module\\\\.\", \"\"]]", &["array"], |value| {
        each(value, rename)
    });

/// What became of a word of TorchScript.
pub(super) const IMPORTED: &str =
    "is gone: write the model to a file by `dtrain import MODEL -o FILE.pt2`, and name it in model.file";

fn rename(pair: &Value) -> Result<(), String> {
    let texts = pair.as_array().map(|pair| pair.iter().map(Value::as_str).collect::<Vec<_>>());
    match texts.as_deref() {
        Some([Some(pattern), Some(_)]) => regex_lite::Regex::new(pattern)
            .map(drop)
            .map_err(|error| format!("{pattern:?} is not a regular expression: {error}")),
        _ => Err(format!(
            "expected a regular expression and a replacement, such as [\"^module\\\\.\", \"\"], got {}",
            describe(pair)
        )),
    }
}

/// Returns whether a path stays below the folder that it is joined to.
pub(super) fn is_folder_name(text: &str) -> bool {
    let mut parts = Path::new(text).components().peekable();
    !text.contains('\0') && parts.peek().is_some() && parts.all(|part| matches!(part, Component::Normal(_)))
}
