//! The samples of a set as lists, one for each field: files, classes and numbers.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use dtrain_shared_memory::MemoryError;
use serde::{Deserialize, Serialize};

use super::dataset::{Field, LABEL};
use super::drawings::Drawings;
use super::error::DataError;
use super::ignored::Ignored;
use super::mask_rule::MaskRule;
use super::moments::Moments;
use super::normalize::Normalize;
use super::origin::{SourcePart, TableLines};
use super::packed::Packed;
use super::paths::Paths;
use super::pixel_target::PixelRule;
use super::stored::{Part, Parts, Stored};
use super::texts::Texts;
use super::token_lists::{TextForm, TokenLists};

/// The samples of one set. The processes of a machine share the lists.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// The folder of the data.
    pub root: PathBuf,
    /// The name of the set in messages, such as `train`.
    pub set: String,
    /// The table of the samples, if they come from a table.
    #[serde(default, rename = "dtrain_table")]
    pub table: Option<TableLines>,
    /// The sources that the samples are joined from; empty if it is one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourcePart>,
    /// The fields of each sample, in the order of the data set's columns. Masks and maps have the size of the first image.
    pub lists: Vec<List>,
    /// Width and height of all images if they are not resized: the required size, or the size found.
    #[serde(default)]
    pub size: Option<(u32, u32)>,
    /// Unused files; known only after a scan.
    #[serde(skip)]
    pub ignored: Ignored,
}

/// A field of all samples.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct List {
    /// The name of the field.
    pub field: String,
    pub values: ListValues,
}

/// The values of a field of all samples, by sample.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum ListValues {
    /// Images: `[C, H, W]`, or `[L, C, H, W]` for several files a sample.
    Images(Vec<Files>),
    /// A class or a number for each pixel of the sample's first image: `[H, W]`.
    Pixels(Files, PixelRule),
    /// As [`ListValues::Pixels`], without files: classes are drawn.
    Drawn(Drawings, PixelRule),
    /// A class, by its number among the names: `[]`.
    Classes { names: Vec<String>, numbers: Packed<u32> },
    /// Any number of classes: for each name 1 or 0, `[names]`.
    ClassSets { names: Vec<String>, sets: ClassSets },
    /// A number for each name: `[names]`. All of one sample follow each other.
    Numbers { names: Vec<String>, values: Packed<f32> },
    /// Texts of one or more columns, before they are tokens.
    Texts(Vec<Texts>, TextForm),
    /// The tokens of texts: several columns of `[T]`.
    Tokens(TokenLists),
}

/// Where the targets of pixels come from.
#[derive(Debug, Clone, Copy)]
pub enum PixelSource<'a> {
    Files(&'a Files),
    Drawings(&'a Drawings),
}

impl<'a> PixelSource<'a> {
    /// Returns the name of the folder of the files, or of the file of annotations.
    pub fn place(self) -> &'a str {
        match self {
            Self::Files(files) => &files.folder,
            Self::Drawings(drawings) => &drawings.file,
        }
    }
}

impl ListValues {
    /// Returns the source of masks or maps, and the rule to read them.
    pub(super) fn pixels(&self) -> Option<(PixelSource<'_>, &PixelRule)> {
        match self {
            Self::Pixels(files, rule) => Some((PixelSource::Files(files), rule)),
            Self::Drawn(drawings, rule) => Some((PixelSource::Drawings(drawings), rule)),
            _ => None,
        }
    }
}

/// The classes of each sample, by their numbers among the names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassSets {
    /// Where the classes of each sample end.
    ends: Packed<u64>,
    numbers: Packed<u32>,
}

impl ClassSets {
    pub(super) fn write(
        sets: impl Iterator<Item = impl Iterator<Item = u32>> + Clone,
    ) -> Result<Self, MemoryError> {
        let ends = sets.clone().scan(0, |end, set| {
            *end += set.count() as u64;
            Some(*end)
        });
        Ok(Self { ends: Packed::write(ends)?, numbers: Packed::write(sets.flatten())? })
    }

    pub(super) fn count(&self) -> usize {
        self.ends.len()
    }

    /// Returns the classes of a sample.
    pub fn of(&self, sample: usize) -> &[u32] {
        let start = if sample == 0 { 0 } else { self.ends[sample - 1] };
        let range: Range<usize> = start as usize..self.ends[sample] as usize;
        // Another process may have written the lists.
        self.numbers.get(range).unwrap_or_default()
    }
}

/// The files of a field, below a folder of the data's, by themselves or in larger files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Files {
    /// The folder below [`Samples::root`]; `""` for that folder itself.
    pub folder: String,
    /// Their paths; of parts of a larger file its path, and then the name in it.
    pub paths: Paths,
    /// Which parts of larger files they are; None if all are files by themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Parts>,
}

impl Files {
    /// Makes a list of files by themselves.
    pub fn new(folder: &str, paths: Paths) -> Self {
        Self { folder: folder.to_owned(), paths, parts: None }
    }

    fn path(&self, root: &Path, sample: usize) -> PathBuf {
        self.paths.below(&root.join(&self.folder), sample)
    }

    fn stored(&self, root: &Path, sample: usize) -> Stored {
        match self.parts.as_ref().filter(|parts| parts.get(sample) != Part::Whole) {
            None => Stored::from(self.path(root, sample).as_path()),
            Some(parts) => {
                let (file, name) = self.paths.parts(sample);
                parts.stored(sample, root.join(&self.folder).join(file), name)
            }
        }
    }

    fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, MemoryError> {
        let parts = self.parts.as_ref().map(|parts| parts.kept(is_kept)).transpose()?;
        Ok(Self { folder: self.folder.clone(), paths: self.paths.kept(is_kept)?, parts })
    }
}

impl List {
    pub(super) fn new(field: &str, values: ListValues) -> Self {
        Self { field: field.to_owned(), values }
    }

    /// Returns the number of samples.
    fn count(&self) -> usize {
        match &self.values {
            ListValues::Images(images) => images.first().map_or(0, |files| files.paths.len()),
            ListValues::Pixels(files, _) => files.paths.len(),
            ListValues::Drawn(drawings, _) => drawings.len(),
            ListValues::Classes { numbers, .. } => numbers.len(),
            ListValues::ClassSets { sets, .. } => sets.count(),
            ListValues::Numbers { names, values } => values.len() / names.len().max(1),
            ListValues::Texts(columns, _) => columns.first().map_or(0, Texts::len),
            ListValues::Tokens(tokens) => tokens.count(),
        }
    }

    fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, MemoryError> {
        let values = match &self.values {
            ListValues::Images(images) => {
                ListValues::Images(images.iter().map(|files| files.kept(is_kept)).collect::<Result<_, _>>()?)
            }
            ListValues::Pixels(pixels, rule) => ListValues::Pixels(pixels.kept(is_kept)?, rule.clone()),
            ListValues::Drawn(drawings, rule) => ListValues::Drawn(drawings.kept(is_kept)?, rule.clone()),
            ListValues::Classes { names, numbers } => {
                ListValues::Classes { names: names.clone(), numbers: numbers.kept(is_kept)? }
            }
            ListValues::ClassSets { names, sets } => {
                let kept = (0..self.count()).filter(|&at| is_kept(at));
                let sets = ClassSets::write(kept.map(|at| sets.of(at).iter().copied()))?;
                ListValues::ClassSets { names: names.clone(), sets }
            }
            ListValues::Numbers { names, values } => {
                let values = values.kept(|at| is_kept(at / names.len()))?;
                ListValues::Numbers { names: names.clone(), values }
            }
            ListValues::Texts(columns, form) => {
                let kept = columns.iter().map(|texts| texts.kept(is_kept));
                ListValues::Texts(kept.collect::<Result<_, _>>()?, *form)
            }
            ListValues::Tokens(tokens) => ListValues::Tokens(tokens.kept(is_kept)?),
        };
        Ok(Self { field: self.field.clone(), values })
    }
}

impl Samples {
    /// Returns the number of samples.
    pub fn count(&self) -> usize {
        self.lists.first().map_or(0, List::count)
    }

    /// Returns the number of files and drawn masks of a sample.
    pub fn files(&self) -> usize {
        let of = |list: &List| match &list.values {
            ListValues::Images(images) => images.len(),
            ListValues::Pixels(..) | ListValues::Drawn(..) => 1,
            _ => 0,
        };
        self.lists.iter().map(of).sum()
    }

    /// Returns the files of images, the first field's first.
    pub fn images(&self) -> impl Iterator<Item = &Files> {
        self.lists.iter().flat_map(|list| match &list.values {
            ListValues::Images(images) => images.as_slice(),
            _ => &[],
        })
    }

    /// Returns where one sample's first image is: an empty path without images.
    pub(super) fn first_image(&self, sample: usize) -> Stored {
        let stored = |files| self.stored(files, sample);
        self.images().next().map_or_else(|| Stored::from(Path::new("")), stored)
    }

    /// Returns the path of one sample's first image.
    pub fn image_path(&self, sample: usize) -> PathBuf {
        self.first_image(sample).to_string().into()
    }

    /// Describes a sample for messages: by the path of its first image, and its line in a table.
    pub fn describe(&self, sample: usize) -> String {
        let path = self.image_path(sample);
        let (part, sample) = self.origin(sample);
        match part.map_or(self.table.as_ref(), SourcePart::table) {
            None => path.display().to_string(),
            Some(table) if path.as_os_str().is_empty() => {
                format!("{}:{}", table.path.display(), table.lines[sample])
            }
            Some(table) => {
                let name = table.path.file_name().unwrap_or_default().display();
                format!("{} ({name}:{})", path.display(), table.lines[sample])
            }
        }
    }

    /// Returns the source of a sample, if there are several, and its number there.
    pub(super) fn origin(&self, mut sample: usize) -> (Option<&SourcePart>, usize) {
        for part in &self.sources {
            if sample < part.samples {
                return (Some(part), sample);
            }
            sample -= part.samples;
        }
        (None, sample)
    }

    /// Returns where a sample's file is.
    pub(super) fn stored(&self, files: &Files, sample: usize) -> Stored {
        let (part, _) = self.origin(sample);
        files.stored(part.map_or(self.root.as_path(), SourcePart::root), sample)
    }

    /// Returns the path of `folder` of the samples, or of their table; of joined samples all places.
    pub fn place(&self, folder: &str) -> PathBuf {
        if let Some(places) = self.places() {
            return places;
        }
        self.table.as_ref().map_or_else(|| self.root.join(folder), |table| table.path.clone())
    }

    /// Returns the first list of masks or maps, and the rule to read them.
    pub fn pixels(&self) -> Option<(PixelSource<'_>, &PixelRule)> {
        self.lists.iter().find_map(|list| list.values.pixels())
    }

    /// Returns the names of the classes of the field `label`, and the class of each sample; empty without it.
    pub fn classes(&self) -> (&[String], &[u32]) {
        self.labels().map(|(names, numbers)| (names, &**numbers)).unwrap_or_default()
    }

    /// Returns the names of the classes of the field `label`, and the class of each sample in memory that can be shared.
    pub fn labels(&self) -> Option<(&[String], &Packed<u32>)> {
        self.lists.iter().find_map(|list| match &list.values {
            ListValues::Classes { names, numbers } if list.field == LABEL => {
                Some((names.as_slice(), numbers))
            }
            _ => None,
        })
    }

    /// Returns the names of the classes of the field `label` that no sample has.
    pub fn unused_classes(&self) -> Vec<&str> {
        let (names, numbers) = self.classes();
        let mut is_used = vec![false; names.len()];
        numbers.iter().for_each(|&number| is_used[number as usize] = true);
        let unused = names.iter().zip(is_used).filter(|(_, is_used)| !is_used);
        unused.map(|(name, _)| name.as_str()).collect()
    }

    /// Returns the names of the classes of each field, by field, without masks.
    pub fn class_names(&self) -> BTreeMap<String, Vec<String>> {
        let named = |list: &List| match &list.values {
            ListValues::Classes { names, .. } | ListValues::ClassSets { names, .. } => {
                Some((list.field.clone(), names.clone()))
            }
            _ => None,
        };
        self.lists.iter().filter_map(named).collect()
    }

    /// Returns the rules of masks, by field.
    pub fn mask_rules(&self) -> impl Iterator<Item = (&str, &MaskRule)> {
        self.lists.iter().filter_map(|list| match list.values.pixels()? {
            (_, PixelRule::Mask(rule)) => Some((list.field.as_str(), rule)),
            (_, PixelRule::Map(_)) => None,
        })
    }

    /// Returns the samples without texts, which are no tokens yet.
    #[must_use]
    pub fn without_texts(mut self) -> Self {
        self.lists.retain(|list| !matches!(list.values, ListValues::Texts(..)));
        self
    }

    /// Returns the samples without a field.
    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        self.lists.retain(|list| list.field != field);
        self
    }

    /// Returns the names of the numbers and the numbers of all samples; empty without numbers.
    pub fn numbers(&self) -> (&[String], &[f32]) {
        let found = self.lists.iter().find_map(|list| match &list.values {
            ListValues::Numbers { names, values } => Some((names.as_slice(), &**values)),
            _ => None,
        });
        found.unwrap_or_default()
    }

    /// Returns the statistics of each number.
    pub fn moments(&self) -> Vec<Moments> {
        let (names, values) = self.numbers();
        let of = |at| Moments::of(values.iter().copied().skip(at).step_by(names.len()));
        (0..names.len()).map(of).collect()
    }

    /// Returns the fields for images of this size in pixels and texts of `context` tokens.
    pub(super) fn fields(
        &self,
        channels: usize,
        (width, height): (usize, usize),
        normalize: &Normalize,
        context: usize,
    ) -> Vec<Field> {
        let others = self.names();
        let field = |list: &List| {
            let name = list.field.clone();
            let one = match &list.values {
                ListValues::Images(images) => {
                    let lengths = [images.len(), channels, height, width];
                    let shape = if images.len() == 1 { &lengths[1..] } else { &lengths };
                    Field::image(name, shape, normalize.clone())
                }
                ListValues::Pixels(_, PixelRule::Mask(_)) | ListValues::Drawn(..) => {
                    Field::i64(name, [height, width])
                }
                ListValues::Pixels(_, PixelRule::Map(_)) => Field::f32(name, [height, width]),
                ListValues::Classes { .. } => Field::i64(name, []),
                ListValues::ClassSets { names, .. } | ListValues::Numbers { names, .. } => {
                    Field::f32(name, [names.len()])
                }
                ListValues::Tokens(tokens) => {
                    let columns = tokens.columns(&name, &others).into_iter();
                    return columns.map(|(name, _)| Field::i64(name, [context])).collect();
                }
                // They become tokens before they are a set.
                ListValues::Texts(..) => return Vec::new(),
            };
            vec![one]
        };
        self.lists.iter().flat_map(field).collect()
    }

    /// Returns the names of the fields of a sample.
    pub fn field_names(&self) -> Vec<String> {
        let fields = self.fields(0, (0, 0), &Normalize::default(), 0);
        fields.into_iter().map(|field| field.name.to_string()).collect()
    }

    /// Returns the names of the lists.
    pub(super) fn names(&self) -> Vec<&str> {
        self.lists.iter().map(|list| list.field.as_str()).collect()
    }

    /// Returns at most the first `samples` samples.
    ///
    /// # Errors
    /// If memory runs out.
    pub fn first(&self, samples: usize) -> Result<Self, DataError> {
        self.kept(&|at| at < samples)
    }

    /// Returns the samples for which `is_kept`.
    pub(super) fn kept(&self, is_kept: &dyn Fn(usize) -> bool) -> Result<Self, DataError> {
        if (0..self.count()).all(is_kept) {
            return Ok(self.clone());
        }
        let lines = |table: &TableLines| {
            Ok::<_, DataError>(TableLines { path: table.path.clone(), lines: table.lines.kept(is_kept)? })
        };
        let table = self.table.as_ref().map(lines).transpose()?;
        let (mut sources, mut first) = (Vec::new(), 0);
        for part in &self.sources {
            sources.push(part.kept(&|at| is_kept(first + at))?);
            first += part.samples;
        }
        let lists = self.lists.iter().map(|list| list.kept(is_kept)).collect::<Result<_, _>>()?;
        Ok(Self { table, sources, lists, ..self.clone() })
    }
}
