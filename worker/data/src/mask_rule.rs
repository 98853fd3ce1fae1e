//! The meaning of a mask's values.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::error::{DataError, Result, SampleError};
use super::raster::Labels;

/// Conversion of a mask file's values to classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MaskKind {
    /// The value is the class; for a palette image, the palette's index.
    #[default]
    Index,
    /// Every value but 0 is class 1.
    Binary,
}

/// The rule to read masks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskRule {
    pub kind: MaskKind,
    /// Classes are 0 to one less than this.
    pub classes: usize,
    /// The value that means no class: in files of [`MaskKind::Index`], and for pixels outside of an image.
    pub ignore: i64,
}

impl MaskRule {
    pub(super) fn apply(self, labels: &mut Labels) -> Result<()> {
        let Self { kind, classes, ignore } = self;
        if kind == MaskKind::Binary {
            labels.values.iter_mut().for_each(|value| *value = u16::from(*value != 0));
            return Ok(());
        }
        let is_class = |value: u16| usize::from(value) < classes || i64::from(value) == ignore;
        let width = labels.width.max(1) as usize;
        match labels.values.iter().position(|&value| !is_class(value)) {
            None => Ok(()),
            Some(at) => Err(SampleError::MaskValue {
                value: labels.values[at],
                column: at % width,
                row: at / width,
                classes,
                ignore,
            }),
        }
    }

    /// Makes the error of masks in `place` with at most one class; `ignored` is the share of ignored pixels.
    /// `setting`: the setting that names the masks, and `to the` what.
    pub fn one_class(self, place: PathBuf, only: Option<usize>, ignored: f64, setting: &str) -> DataError {
        let left_out = format!(
            "{:.1}% of the pixels have the value {}, which data.ignore excludes",
            100.0 * ignored,
            self.ignore
        );
        let held = match only {
            None => format!("hold no class: {left_out}"),
            Some(class) if ignored > 0.0 => format!("hold class {class} alone: {left_out}"),
            Some(class) => format!("hold class {class} alone"),
        };
        let remedy = match self.kind {
            MaskKind::Index if ignored > 0.0 => {
                "if every value but 0 is the object, set data.masks = \"binary\"; else set data.ignore to the value that \
                 means no class"
                    .to_owned()
            }
            MaskKind::Index => {
                format!("the value of a pixel is its class: if these files are not masks, set {setting} of the masks")
            }
            MaskKind::Binary if ignored > 0.0 => "set data.ignore to another value than 0 and 1".to_owned(),
            MaskKind::Binary => format!(
                "0 is class 0 and any other value class 1: if these files are not masks, set {setting} of the masks"
            ),
        };
        DataError::OneMaskClass(place, held, remedy)
    }
}
