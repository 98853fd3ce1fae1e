//! Helpers for the tests of several modules.

pub(crate) mod images;

use dtrain_recipe::Separator;

use crate::sources::Reading;
use crate::{MapRule, MaskKind, MaskRule};

/// Usual rules, without training samples.
pub(crate) const READING: Reading<'_> = Reading {
    mask: MaskRule { kind: MaskKind::Index, classes: 3, ignore: 255 },
    map: MapRule { scale: 255.0, ignore: None },
    split: "split",
    separator: Separator::Auto,
    train: None,
};
