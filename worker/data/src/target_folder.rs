//! The list of images under `root/split/` and of the numbers in its table.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use dtrain_common::content::{Content, shell_word};
use dtrain_common::files::unused;
use serde::{Deserialize, Serialize};

use super::check::{CheckReport, ImageList, Target};
use super::dataset::Field;
use super::error::{DataError, Result};
use super::ignored::Ignored;
use super::image_folder::{SPLITS, image_files};
use super::moments::Moments;
use super::packed::Packed;
use super::paths::Paths;
use super::regular;
use super::target_table::{TARGETS, TableProblem, TargetTable};
use super::unicode_form;

/// The images of one split with their numbers, in the order of the images' paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetIndex {
    pub root: PathBuf,
    /// The split's folder below the root.
    pub split: String,
    /// The names of the numbers.
    pub names: Vec<String>,
    /// The images, below the split's folder.
    pub images: Paths,
    /// The numbers of all images, one image after the other.
    pub numbers: Packed<f32>,
    /// Width and height of all images if they are not resized: the required size, or the size found.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    /// Unused files below the split's folder; known only after a scan.
    #[serde(skip)]
    pub ignored: Ignored,
}

impl TargetIndex {
    /// Lists the images below `root/split` and reads `root/split/targets.csv`. Every image needs a line and
    /// every line an image. `names` are those of the training split, which other splits must have.
    pub fn scan(root: &Path, split: &str, names: Option<&[String]>) -> Result<Self, DataError> {
        let folder = root.join(split);
        let mut ignored = Ignored::default();
        let mut images = image_files(root, &folder, SPLITS, &mut ignored)?;
        images.sort(0);
        let table = read_table(&folder)?;
        if let Some(names) = names.filter(|names| *names != table.names) {
            return Err(DataError::OtherTargets(folder.join(TARGETS), table.names, names.to_vec()));
        }
        let mut rows: HashMap<_, _> = table.rows.into_iter().map(|row| (row.file.clone(), row)).collect();
        let (mut numbers, mut missing) = (Vec::new(), Vec::new());
        for path in (0..images.len()).map(|at| images.path(at)) {
            match rows.remove(&path) {
                Some(row) => numbers.extend(row.numbers),
                None => missing.push(path),
            }
        }
        if let Some(row) = rows.into_values().min_by_key(|row| row.line) {
            let remedy = unicode_form::remedy(&folder, &missing, [&row.file]);
            let problem = TableProblem::NoImage(row.file, remedy);
            return Err(DataError::Table(folder.join(TARGETS), row.line, problem));
        }
        if !missing.is_empty() {
            return Err(DataError::NoTargets(folder, missing));
        }
        let (root, split) = (root.to_path_buf(), split.to_owned());
        let (images, numbers) = (images.pack()?, Packed::write(numbers)?);
        Ok(Self { root, split, names: table.names, images, numbers, size: None, ignored })
    }

    /// Returns the index without the samples that `report` found bad. More than 1% of them, and different
    /// sizes of images that are not resized, are errors.
    pub fn without_bad(&self, report: &CheckReport) -> Result<Self, DataError> {
        let is_good = report.good(self.count())?;
        let width = self.names.len();
        Ok(Self {
            images: self.images.kept(&is_good)?,
            numbers: self.numbers.kept(|at| is_good(at / width))?,
            size: report.common_size(self, self.size)?,
            ..self.clone()
        })
    }

    /// Returns the statistics of each number.
    pub fn moments(&self) -> Vec<Moments> {
        let width = self.names.len();
        let of = |at| Moments::of(self.numbers.iter().copied().skip(at).step_by(width));
        (0..width).map(of).collect()
    }
}

fn read_table(folder: &Path) -> Result<TargetTable, DataError> {
    let path = folder.join(TARGETS);
    let mut bytes = Vec::new();
    if let Err(source) = regular::read(&path, &mut bytes) {
        return Err(DataError::UnreadableTable(path, source));
    }
    let parsed = match std::str::from_utf8(&bytes) {
        Ok(text) => TargetTable::parse(text),
        Err(error) => {
            let before = &bytes[..error.valid_up_to()];
            let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
            Err((line, TableProblem::Foreign(not_utf8(&path, &bytes))))
        }
    };
    parsed.map_err(|(line, problem)| {
        let problem = match problem {
            TableProblem::Separator(separator, _) => {
                TableProblem::Separator(separator, with_commas(&path, separator))
            }
            TableProblem::Foreign(_) => problem,
            other => match Content::of(&bytes, &bytes) {
                Some(content) => TableProblem::Foreign(foreign(content, &path)),
                None => other,
            },
        };
        DataError::Table(path, line, problem)
    })
}

/// Returns a command that writes the table with commas between fields. With semicolons, commas are decimal points.
fn with_commas(path: &Path, separator: char) -> String {
    let fields = match separator {
        ';' => "r[:1] + [f.replace(\",\", \".\") for f in r[1:]]",
        _ => "r",
    };
    rewrite(path, |from, to| {
        format!(
            "python3 -c 'import csv, sys; csv.writer(open(sys.argv[2], \"x\", newline=\"\", encoding=\"utf-8\")).writerows({fields} \
             for r in csv.reader(open(sys.argv[1], newline=\"\", encoding=\"utf-8-sig\"), delimiter=\"{}\") if r and not \
             r[0].startswith(\"sep=\"))' {from} {to}",
            separator.escape_default()
        )
    })
}

/// Returns a command that replaces the table by what the command of `convert` writes from one file to another. The old
/// file stays under another name, and keeps its own if the conversion fails.
fn rewrite(path: &Path, convert: impl FnOnce(&str, &str) -> String) -> String {
    let free = |ending: &str| word(&unused(&path.with_extension(ending)));
    let (table, old, new) = (word(path), free("old.csv"), free("new.csv"));
    format!("{} && mv {table} {old} && mv {new} {table}", convert(&table, &new))
}

/// Says what a file that is not UTF-8 is, and how to convert it.
fn not_utf8(path: &Path, bytes: &[u8]) -> String {
    let content = Content::of(bytes, bytes);
    let from = match content {
        Some(Content::Utf16) => "UTF-16",
        // Of Western Windows; a wrong guess shows in the names of images only.
        None => "WINDOWS-1252",
        Some(content) => {
            return match content.unpacker() {
                Some(program) => {
                    let command = rewrite(path, |from, to| format!("{program} -dc < {from} > {to}"));
                    format!("{content}; unpack it with `{command}`")
                }
                None => foreign(content, path),
            };
        }
    };
    let command = rewrite(path, |old, new| format!("iconv -f {from} -t UTF-8 {old} > {new}"));
    format!("not UTF-8; convert it with `{command}`")
}

fn foreign(content: Content, path: &Path) -> String {
    format!("{content}; {}", content.remedy(path).unwrap_or_else(|| "save it as CSV in UTF-8".to_owned()))
}

fn word(path: &Path) -> String {
    shell_word(&path.to_string_lossy())
}

impl ImageList for TargetIndex {
    fn count(&self) -> usize {
        self.images.len()
    }

    fn image_path(&self, sample: usize) -> PathBuf {
        self.images.below(&self.root.join(&self.split), sample)
    }

    fn target(&self, sample: usize) -> Target<'_> {
        let width = self.names.len();
        Target::Vector(&self.numbers[sample * width..][..width])
    }

    fn target_field(&self, _: usize, _: usize) -> Field {
        Field::f32("targets", [self.names.len()])
    }
}

#[cfg(test)]
mod tests;
