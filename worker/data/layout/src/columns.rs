//! Tables: which column is the image, the class, the mask, the numbers or the text.

use std::path::Path;

use dtrain_common::look::Layout;
use dtrain_data::sources::preview::{self, Preview};

use super::classes::ROOT;
use super::images;
use super::mask_values;
use super::roles::{Sets, is_of_targets};
use super::tree::{Tree, is_image};

/// Names of columns that are usually the class.
const CLASSES: [&str; 12] = [
    "label",
    "class",
    "category",
    "species",
    "target",
    "kind",
    "class_name",
    "label_name",
    "fine_label",
    "breed",
    "diagnosis",
    "y",
];
/// Columns that are no numbers to learn.
const NO_NUMBERS: [&str; 7] = ["id", "index", "split", "fold", "width", "height", "image_id"];
const PROMPTS: [&str; 6] = ["prompt", "question", "instruction", "input", "query", "source"];
const ANSWERS: [&str; 6] = ["answer", "response", "output", "completion", "reply", "target"];
const TEXTS: [&str; 7] = ["text", "content", "sentence", "review", "document", "body", "caption"];

/// Returns the layouts of the tables of a folder.
pub(crate) fn of_folder(tree: &Tree, target: &str) -> Result<Vec<Layout>, String> {
    let is_table = |name: &&String| {
        let ending = name.rsplit_once('.').map(|(_, ending)| ending.to_ascii_lowercase());
        matches!(ending.as_deref(), Some("csv" | "tsv" | "jsonl" | "ndjson"))
            && !["targets.csv", "classes.csv"].contains(&name.as_str())
    };
    let tables: Vec<_> = tree.top.files.iter().filter(is_table).collect();
    let of = |name: &&String| of_table(&tree.root.join(name), target);
    match tables.as_slice() {
        [only] => of(only).map(|layout| vec![layout]),
        // Some may be of something else.
        several => Ok(several.iter().filter_map(|name| of(name).ok()).collect()),
    }
}

/// Returns the layout of a table.
pub(crate) fn of_table(path: &Path, target: &str) -> Result<Layout, String> {
    let table = Table { path, preview: preview::table(path).map_err(|error| error.to_string())? };
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let layout =
        Layout::new(&format!("table:{name}"), format!("a table of {} lines, {name}", table.preview.count));
    let mut layout = layout.with("kind", "table", "a line for each sample").with(
        "root",
        path.to_string_lossy().as_ref(),
        ROOT,
    );
    let fields = table.fields(target)?;
    let of_fields = fields.iter().map(|(field, column)| (field.clone(), toml::Value::from(column.as_str())));
    layout.add("fields", toml::Table::from_iter(of_fields), "FIELD = \"KIND:COLUMN\"");
    if target == "classes" {
        layout.add("target", "classes", "an image has any number of classes");
    }
    if target == "map" {
        layout.add("target", "map", "a number for each pixel");
    }
    table.add_sets(&mut layout, target)?;
    layout.numbers = fields
        .iter()
        .filter_map(|(_, column)| Some(column.strip_prefix("numbers:")?.split(',').count()))
        .sum();
    if target == "tokens" {
        let folder = path.parent().unwrap_or(Path::new(""));
        super::texts::add_tokenizer(&mut layout, folder, "bytes");
        return Ok(layout);
    }
    let paths = |kind: &str| {
        let column = fields.iter().find_map(|(_, column)| column.strip_prefix(kind)?.strip_prefix(':'))?;
        let at = table.preview.columns.iter().position(|name| name == column)?;
        Some(table.preview.cells(at).map(|cell| table.file(cell)).collect::<Vec<_>>())
    };
    if let Some(files) = paths("image") {
        images::add(&mut layout, files.into_iter());
    }
    if let Some(files) = paths("mask") {
        mask_values::add(&mut layout, &files)?;
    }
    Ok(layout)
}

struct Table<'a> {
    path: &'a Path,
    preview: Preview,
}

impl Table<'_> {
    fn file(&self, cell: &str) -> std::path::PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(cell)
    }

    /// Returns the columns whose first cells all fit.
    fn all(&self, fits: impl Fn(&str) -> bool) -> Vec<usize> {
        let has = |column: &usize| {
            let mut cells = self.preview.cells(*column).take(50).filter(|cell| !cell.is_empty()).peekable();
            cells.peek().is_some() && cells.all(&fits)
        };
        (0..self.preview.columns.len()).filter(has).collect()
    }

    fn named(&self, among: &[usize], names: &[&str]) -> Option<usize> {
        let is = |name: &&str, column: usize| self.preview.columns[column].eq_ignore_ascii_case(name);
        names.iter().find_map(|name| among.iter().copied().find(|column| is(name, *column)))
    }

    fn name(&self, column: usize) -> &str {
        &self.preview.columns[column]
    }

    /// Returns the fields of a sample, each with `KIND:COLUMN`.
    fn fields(&self, target: &str) -> Result<Vec<(String, String)>, String> {
        let field = |name: &str, kind: &str, column: usize| {
            (name.to_owned(), format!("{kind}:{}", self.name(column)))
        };
        let files = self.all(|cell| is_image(cell) && self.file(cell).is_file());
        let texts: Vec<usize> =
            (0..self.preview.columns.len()).filter(|column| !files.contains(column)).collect();
        let lacks = |what: &str| {
            let columns = self.preview.columns.join(", ");
            format!("{} has no column with {what}; its columns are {columns}", self.path.display())
        };
        if target == "tokens" {
            return self.text_fields(&texts).ok_or_else(|| lacks("texts"));
        }
        let is_target = |column: &usize| is_of_targets(self.name(*column));
        let image = files.iter().copied().find(|column| !is_target(column));
        let image = image.ok_or_else(|| lacks("paths of images that exist below its folder"))?;
        let others: Vec<usize> = files.iter().copied().filter(|column| *column != image).collect();
        let mut fields = vec![field("image", "image", image)];
        match target {
            "mask" => {
                fields.push(field("mask", "mask", *others.first().ok_or_else(|| lacks("paths of masks"))?))
            }
            "map" => fields.push(field("map", "map", *others.first().ok_or_else(|| lacks("paths of maps"))?)),
            "vector" => {
                let numbers =
                    self.all(|cell| cell.replace(',', ".").parse::<f64>().is_ok_and(f64::is_finite));
                let is_free =
                    |column: &usize| !NO_NUMBERS.contains(&self.name(*column).to_ascii_lowercase().as_str());
                let numbers: Vec<&str> = numbers
                    .iter()
                    .filter(|column| is_free(column))
                    .map(|column| self.name(*column))
                    .collect();
                if numbers.is_empty() {
                    return Err(lacks("numbers"));
                }
                fields.push(("targets".to_owned(), format!("numbers:{}", numbers.join(","))));
            }
            _ => {
                let kind = if target == "classes" { "classes" } else { "class" };
                let class = self.class(&texts).ok_or_else(|| lacks("classes"))?;
                // One class and several have the same column.
                if self.preview.cells(class).any(|cell| cell.contains('|')) != (target == "classes") {
                    return Err(lacks(if target == "classes" {
                        "several classes"
                    } else {
                        "one class for each image"
                    }));
                }
                fields.push(field("label", kind, class));
            }
        }
        Ok(fields)
    }

    /// Returns the column of the classes: by its name, else the one with the fewest different texts.
    fn class(&self, texts: &[usize]) -> Option<usize> {
        let is_free = |column: &&usize| self.name(**column) != "split";
        let texts: Vec<usize> = texts.iter().filter(is_free).copied().collect();
        let different = |column: &usize| self.preview.different[*column].len();
        let fewest = || {
            let repeated = texts.iter().copied().filter(|column| (2..64).contains(&different(column)));
            repeated.min_by_key(different)
        };
        self.named(&texts, &CLASSES).or_else(fewest)
    }

    fn text_fields(&self, texts: &[usize]) -> Option<Vec<(String, String)>> {
        let chat = self.all(|cell| cell.starts_with("[{") && cell.contains("\"role\""));
        if let [chat, ..] = chat.as_slice() {
            return Some(vec![("tokens".to_owned(), format!("chat:{}", self.name(*chat)))]);
        }
        let pair = self.named(texts, &PROMPTS).zip(self.named(texts, &ANSWERS));
        if let Some((prompt, answer)) = pair.filter(|(prompt, answer)| prompt != answer) {
            return Some(vec![(
                "tokens".to_owned(),
                format!("text:{},{}", self.name(prompt), self.name(answer)),
            )]);
        }
        let length = |column: &usize| self.preview.cells(*column).map(str::len).sum::<usize>();
        let longest =
            texts.iter().copied().filter(|column| self.name(*column) != "split").max_by_key(length)?;
        let text = self.named(texts, &TEXTS).unwrap_or(longest);
        (length(&text) > 0).then(|| vec![("tokens".to_owned(), format!("text:{}", self.name(text)))])
    }

    /// Adds the sets that the column `split` names.
    fn add_sets(&self, layout: &mut Layout, target: &str) -> Result<(), String> {
        match self.preview.columns.iter().position(|name| name == "split") {
            Some(column) => {
                let names = &self.preview.different[column];
                let sets = Sets::of(names.iter().map(String::as_str));
                if sets.train.is_none() {
                    let names: Vec<_> = names.iter().take(8).map(String::as_str).collect();
                    return Err(format!(
                        "the column split of {} names no training samples: it has {}; name them train",
                        self.path.display(),
                        names.join(", ")
                    ));
                }
                sets.add(layout, "the word of the column split");
            }
            None if target == "tokens" => {
                return Err(format!(
                    "{} has no column split; add it with the set of each line, train or test",
                    self.path.display()
                ));
            }
            None => Sets::default().add(layout, "all lines: the table has no column split"),
        }
        Ok(())
    }
}
