//! Tar archives and Parquet files: which files are of which set, and the fields of their samples.

use dtrain_common::look::Layout;
use dtrain_data::sources::preview;

use super::classes::ROOT;
use super::roles::{Sets, is_of_targets, role};
use super::tree::{Folder, Tree, is_image};

/// Finds files of samples in a folder or the folders in it.
pub(crate) fn find(tree: &Tree, target: &str) -> Result<Vec<Layout>, String> {
    if !matches!(target, "class" | "classes" | "mask") {
        return Ok(Vec::new());
    }
    let mut found = Vec::new();
    for (kind, ending) in [("shards", ".tar"), ("parquet", ".parquet")] {
        let is_of = |folder: &&Folder| folder.files.iter().any(|name| name.ends_with(ending));
        let Some(folder) = [&tree.top].into_iter().chain(&tree.top.folders).find(is_of) else { continue };
        let files: Vec<&str> =
            folder.files.iter().filter(|name| name.ends_with(ending)).map(String::as_str).collect();
        let names: Vec<&str> = files.iter().map(|name| beginning(name, ending)).collect();
        let sets = Sets::of(names.iter().copied());
        let Some(train) = &sets.train else { continue };
        let first = files.iter().zip(&names).find(|(_, name)| *name == train).map(|(file, _)| *file);
        let path = tree.path(folder, first.unwrap_or_default());
        let fields = match kind {
            "shards" => of_members(&preview::shard(&path).map_err(|error| error.to_string())?, target),
            _ => {
                let columns =
                    preview::parquet(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                of_columns(&columns, target)
            }
        };
        let Some(fields) = fields else { continue };
        let what = if kind == "shards" { "tar archives" } else { "Parquet files" };
        let words = format!("{} {what}, {}", files.len(), sets.words());
        let root =
            if folder.path.is_empty() { tree.shown() } else { format!("{}/{}", tree.shown(), folder.path) };
        let mut layout = Layout::new(kind, words).with("kind", kind, what).with("root", root, ROOT);
        sets.add(&mut layout, "the beginning of the files' names");
        let fields = fields.into_iter().map(|(field, column)| (field.to_owned(), column.into()));
        layout.add("fields", toml::Table::from_iter(fields), "FIELD = \"KIND:PART\"");
        if target == "classes" {
            layout.add("target", "classes", "an image has any number of classes");
        }
        found.push(layout);
    }
    Ok(found)
}

/// Returns the name of a set in the name of a file, such as `train` in `train-00000-of-00002.tar`.
fn beginning<'a>(file: &'a str, ending: &str) -> &'a str {
    let name = file.strip_suffix(ending).unwrap_or(file);
    match role(name) {
        Some(_) => name.split_once('-').map_or(name, |(begin, _)| begin),
        None => name,
    }
}

type Fields = Vec<(&'static str, String)>;

/// Returns the fields of the members of an archive.
fn of_members(members: &[(String, Option<String>)], target: &str) -> Option<Fields> {
    let is_picture = |ending: &&String| is_image(&format!("a.{ending}")) && !ending.ends_with("npy");
    let pictures: Vec<&String> = members.iter().map(|(ending, _)| ending).filter(is_picture).collect();
    let image = pictures.iter().find(|ending| !is_of_targets(ending))?;
    let mut fields = vec![("image", format!("image:{image}"))];
    if target == "mask" {
        let mask = pictures.iter().find(|ending| *ending != image)?;
        fields.push(("mask", format!("mask:{mask}")));
        return Some(fields);
    }
    // Samples may have images of several kinds, each of one.
    let images: Vec<&str> =
        pictures.iter().filter(|ending| !is_of_targets(ending)).map(|ending| ending.as_str()).collect();
    fields[0].1 = format!("image:{}", images.join(";"));
    let kind = if target == "classes" { "classes" } else { "class" };
    let has = |wanted: &&str| members.iter().any(|(ending, _)| ending == wanted);
    let plain = ["cls", "label", "class", "txt"]
        .iter()
        .find(|wanted| has(wanted))
        .map(|ending| format!("{kind}:{ending}"));
    let of_json = || {
        let (_, text) = members.iter().find(|(ending, _)| ending == "json")?;
        let key = ["label", "class", "category"]
            .iter()
            .find(|key| text.as_ref().is_some_and(|text| text.contains(&format!("\"{key}\""))))?;
        Some(format!("{kind}:json.{key}"))
    };
    fields.push(("label", plain.or_else(of_json)?));
    Some(fields)
}

/// Returns the fields of the columns of a Parquet file.
fn of_columns(columns: &[(String, bool)], target: &str) -> Option<Fields> {
    // Data sets of Hugging Face have the bytes of an image in a group.
    let bytes: Vec<&str> = columns
        .iter()
        .filter(|(_, is_bytes)| *is_bytes)
        .map(|(name, _)| name.strip_suffix(".bytes").unwrap_or(name))
        .collect();
    let image = bytes.iter().find(|name| !is_of_targets(name))?;
    let mut fields = vec![("image", format!("image:{image}"))];
    if target == "mask" {
        let mask = bytes.iter().find(|name| *name != image)?;
        fields.push(("mask", format!("mask:{mask}")));
        return Some(fields);
    }
    let others: Vec<&str> = columns
        .iter()
        .filter(|(_, is_bytes)| !is_bytes)
        .map(|(name, _)| name.as_str())
        .filter(|name| !name.contains('.'))
        .collect();
    let named = ["label", "labels", "class", "fine_label", "category", "target"]
        .iter()
        .find(|wanted| others.contains(wanted));
    let class = named.copied().or_else(|| others.iter().find(|name| name.contains("label")).copied()).or(
        match others.as_slice() {
            [only] => Some(*only),
            _ => None,
        },
    )?;
    let kind = if target == "classes" { "classes" } else { "class" };
    fields.push(("label", format!("{kind}:{class}")));
    Some(fields)
}
