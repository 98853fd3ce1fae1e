//! `[[data.source]]`: several sources of samples.

use std::collections::BTreeMap;
use std::path::PathBuf;

use dtrain_common::entry;
use dtrain_common::recipe::keys::Section;
use dtrain_common::recipe::kinds::{Kind, PATH, RATE, choice};

use super::kinds::{FIELDS, FOLDER_NAME, PAIR};
use super::{DataKind, Pair};

entry! {
    /// `[[data.source]]`: a source of samples. Its other settings have the values of `[data]`.
    Source {
        /// Its folder, table or text, as `data.root`. Absolute when loaded.
        root: PathBuf, PATH;
        /// How often its samples are taken, beside the other sources: its part of an epoch is its weight, divided by the sum
        /// of all. Without weights each sample of all sources is taken once.
        weight: Option<f64>, RATE;
        /// Its kind, of images.
        kind: Option<DataKind>, choice(&["folder", "coco", "table", "shards", "parquet", "cub", "json-list"]);
        /// The fields of its samples, of kinds with columns.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        fields: BTreeMap<String, String>, FIELDS;
        /// As `data.train`.
        train: Option<String>, FOLDER_NAME;
        /// As `data.test`.
        test: Option<String>, FOLDER_NAME;
        /// As `data.train_masks`.
        train_masks: Option<String>, FOLDER_NAME;
        /// As `data.test_masks`.
        test_masks: Option<String>, FOLDER_NAME;
        /// As `data.pair`.
        pair: Option<Pair>, PAIR;
    }
}

/// The list, whose members need a root.
pub(super) const SOURCES: Kind = Kind::Sections(Source::KEYS, 1);
