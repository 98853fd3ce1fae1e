//! Sources of samples: folders of images with classes, masks, maps or numbers, tables, and data sets in their own layout. Each
//! kind of source has a file, whose `list` returns the samples of a set.

// A new file needs no line here.
automod::dir!(pub "src/sources");

use std::path::Path;

use dtrain_recipe::{DataKind, FieldColumns, Pair, Separator, Target, Unannotated, each_source};

use super::error::DataError;
use super::mask_rule::MaskRule;
use super::pixel_target::MapRule;
use super::samples::Samples;

/// How files and classes are read.
#[derive(Debug, Clone, Copy)]
pub struct Reading<'a> {
    pub mask: &'a MaskRule,
    pub map: MapRule,
    /// The column of a table that names the set of each line.
    pub split: &'a str,
    /// What ends the cells of tables.
    pub separator: Separator,
    /// The training samples, which give the classes of other sets in the fields that both have.
    pub train: Option<&'a Samples>,
    /// The names of classes whose pixels do not count.
    pub ignore_classes: &'a [String],
    /// Whether all lines of a table without the column of the sets are training samples.
    pub is_undivided: bool,
    /// What becomes of images without annotations.
    pub unannotated: Unannotated,
}

/// The samples of a set to list.
#[derive(Debug, Clone, Copy)]
pub struct Request<'a> {
    /// What `data.root` names.
    pub root: &'a Path,
    /// The name of the set, such as `train`.
    pub set: &'a str,
    /// The name of the folder of its masks or maps, or of the file of its annotations.
    pub targets: &'a str,
    /// Which names of images and of masks or maps belong together; without it equal names do.
    pub pair: Option<&'a Pair>,
    pub target: Option<Target>,
    /// The fields of a sample, of kinds with columns.
    pub fields: &'a [FieldColumns],
    /// The file below the root that lists the images of a folder with their classes, if there is one.
    pub list: Option<&'a str>,
    pub reading: Reading<'a>,
}

/// Lists the samples of a set; None for kinds whose samples are not listed.
pub fn list(kind: DataKind, request: &Request<'_>) -> Result<Option<Samples>, DataError> {
    each_source!(kind, source => source::list(request).map(Some), else Ok(None))
}
