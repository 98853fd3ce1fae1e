//! Helpers for the tests of several modules.

pub(crate) mod images;

use dtrain_recipe::{Separator, Unannotated};

use crate::sources::Reading;
use crate::{MapRule, MaskKind, MaskRule};

static RULE: MaskRule = MaskRule::unnamed(MaskKind::Index, 3, 255);

/// Usual rules, without training samples.
pub(crate) const READING: Reading<'_> = Reading {
    mask: &RULE,
    map: MapRule { scale: 255.0, ignore: None, ..MapRule::PLAIN },
    split: "split",
    separator: Separator::Auto,
    train: None,
    ignore_classes: &[],
    is_undivided: false,
    unannotated: Unannotated::Background,
};
