//! `data.nodata`: the value in a file that marks pixels without a value.

use dtrain_common::choices;
use dtrain_common::recipe::kinds::Kind;
use serde::{Deserialize, Serialize};

choices! {
    /// No-data values that are words.
    NoDataWord {
        Nan = "nan": "Not a number, of floating-point values.",
        File = "file": "What each file states: GDAL's tag 42113 of TIFF files.",
    }
}

/// The value in a file that marks pixels without a value.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum NoData {
    /// This number, as in the file.
    Number(f64),
    /// A word.
    Word(NoDataWord),
}

impl NoData {
    /// Returns the value, as in the file, of a file that states `stated`.
    pub fn value(self, stated: Option<f64>) -> Option<f64> {
        match self {
            Self::Number(number) => Some(number),
            Self::Word(NoDataWord::Nan) => Some(f64::NAN),
            Self::Word(NoDataWord::File) => stated,
        }
    }
}

/// A number or a word of [`NoDataWord`].
pub(super) const NO_DATA: Kind =
    Kind::Other("a number, \"nan\" or \"file\"", &["number", "string"], |value| {
        let number = value.as_float().or(value.as_integer().map(|whole| whole as f64));
        let is_word = value.as_str().is_some_and(|word| NoDataWord::NAMES.contains(&word));
        Ok(number.is_some_and(f64::is_finite) || is_word)
    });
