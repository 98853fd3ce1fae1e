//! Lists the samples of each set of files.

use std::borrow::Cow;
use std::collections::BTreeMap;

use dtrain_common::progress::Progress;
use dtrain_recipe::{Data, Recipe, Target, Val};
use serde::{Deserialize, Serialize};

use super::super::{SetKind, TaskError};
use super::{files, mask_rule, numbers};
use crate::data::sources::{self, Reading, Request};
use crate::data::{DataError, Samples};

/// Sets of files besides training and test.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct OtherSets {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) val: Option<Samples>,
    /// Those of `data.tests`, by name. A run's fingerprint does not count them.
    #[serde(default, rename = "dtrain_tests", skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) tests: BTreeMap<String, Samples>,
}

impl OtherSets {
    pub(super) fn is_empty(&self) -> bool {
        self.val.is_none() && self.tests.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Samples> {
        self.val.iter().chain(self.tests.values())
    }
}

/// A set to list.
#[derive(Clone, Copy)]
pub(super) enum Set<'a> {
    Train,
    Test,
    /// The set of this name.
    Val(&'a str),
    More(&'a str),
}

impl<'a> Set<'a> {
    pub(super) fn kind(self) -> SetKind {
        match self {
            Self::Train => SetKind::Training,
            Self::Test => SetKind::Test,
            Self::Val(_) => SetKind::Validation,
            Self::More(folder) => SetKind::More(folder.to_owned()),
        }
    }

    /// Returns the names of the set and of the folder of its masks or maps.
    pub(super) fn names(self, data: &'a Data) -> (&'a str, Cow<'a, str>) {
        match self {
            Self::Train => (&data.train, Cow::Borrowed(&data.train_masks)),
            Self::Test => (&data.test, Cow::Borrowed(&data.test_masks)),
            Self::Val(name) => (name, Cow::Borrowed(&data.val_masks)),
            Self::More(name) => (name, format!("{name}_masks").into()),
        }
    }
}

/// Lists the samples of a set of all sources. With `train`, their classes are those of the training samples.
pub(super) fn list(
    recipe: &Recipe,
    target: Option<Target>,
    set: Set<'_>,
    train: Option<&Samples>,
) -> Result<Samples, TaskError> {
    // Few-shot learning is tested on other classes.
    let novel = train.filter(|_| recipe.data.episodes.is_some()).map(|train| train.clone().without("label"));
    let train = novel.as_ref().or(train);
    let weights = recipe.data.source.iter().map(|source| source.weight).chain([None]);
    let all = recipe.by_source();
    let list = |(number, (alone, weight)): (usize, (&Cow<'_, Recipe>, Option<f64>))| {
        let listed = list_source(alone, target, set, train);
        Ok((listed.map_err(|error| error.in_source(number, all.len()))?, weight))
    };
    let listed = all.iter().zip(weights).enumerate().map(list).collect::<Result<_, DataError>>()?;
    Ok(Samples::join(listed)?)
}

fn list_source(
    recipe: &Recipe,
    target: Option<Target>,
    set: Set<'_>,
    train: Option<&Samples>,
) -> Result<Samples, DataError> {
    let (root, data) = (files::root(recipe), &recipe.data);
    let (set, targets) = set.names(data);
    let targets = &*targets;
    // A loaded recipe has no problems.
    let fields = recipe.fields().unwrap_or_default();
    let split = data.val.as_ref().and_then(Val::column).unwrap_or(sources::table::SPLIT);
    let (mask, map) = (&mask_rule(recipe), numbers::map_rule(recipe));
    let (ignore_classes, unannotated) = (data.ignore_classes.as_slice(), data.unannotated);
    let (separator, is_undivided) = (data.separator, data.test_of_train().is_some());
    let reading = Reading { mask, map, split, separator, train, ignore_classes, is_undivided, unannotated };
    let (list, pair) = (data.lists.get(set).map(String::as_str), data.pair.as_ref());
    let request = Request { root, set, targets, pair, target, fields: &fields, list, reading };
    let progress = Progress::start(format!("listing {set}"));
    let listed = sources::list(data.kind, &request)?;
    drop(progress);
    // The checks of a recipe exclude other kinds.
    listed.ok_or(DataError::NotListed(data.kind.as_str()))
}
