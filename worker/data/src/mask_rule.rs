//! The meaning of a mask's values.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::color_table::ColorTable;
use super::error::{DataError, Result, SampleError};
use super::raster::Labels;

/// Conversion of a mask file's values to classes.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum MaskKind {
    /// The value is the class; for a palette image, the palette's index.
    #[default]
    Index,
    /// Every value but 0 is class 1.
    Binary,
    /// A brightness above this one is class 1: of 8 bits, or the value in a file of one band with more bits.
    Threshold(u16),
    /// The colour is the class.
    Colors(ColorTable),
}

impl MaskKind {
    /// Returns whether values that compression changed still have a class.
    pub(super) fn bears_loss(&self) -> bool {
        match self {
            Self::Index | Self::Binary => false,
            Self::Threshold(_) => true,
            Self::Colors(table) => table.tolerance > 0,
        }
    }

    /// Returns the setting with which files of lossy compression can be masks.
    fn remedy_of_loss(&self) -> &'static str {
        match self {
            Self::Index | Self::Binary | Self::Threshold(_) => {
                "data.masks = \"threshold\", if they are black and white"
            }
            Self::Colors(_) => "data.mask_tolerance to the levels by which colours may differ",
        }
    }
}

/// The rule to read masks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MaskRule {
    pub kind: MaskKind,
    /// Classes are 0 to one less than this.
    pub classes: usize,
    /// The value that means no class: in files of [`MaskKind::Index`], for colours that do not count, and for pixels outside of an
    /// image.
    pub ignore: i64,
    /// The names of the classes in the order of their numbers; empty without names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl MaskRule {
    /// Makes the rule for classes without names.
    pub const fn unnamed(kind: MaskKind, classes: usize, ignore: i64) -> Self {
        Self { kind, classes, ignore, names: Vec::new() }
    }

    /// Returns the name of a class, else its number.
    pub fn name(&self, class: usize) -> String {
        self.names.get(class).cloned().unwrap_or_else(|| class.to_string())
    }

    /// Fails for a file whose compression, of this kind, changed its values, unless they have classes in spite of it.
    pub fn check_loss(&self, lossy: Option<&'static str>) -> Result<()> {
        match lossy {
            Some(kind) if !self.kind.bears_loss() => {
                Err(SampleError::LossyMask(kind, self.kind.remedy_of_loss()))
            }
            _ => Ok(()),
        }
    }

    /// Turns the values of a file of [`MaskKind::Index`] or [`MaskKind::Binary`] into classes.
    pub(super) fn apply(&self, labels: &mut Labels) -> Result<()> {
        let &Self { ref kind, classes, ignore, .. } = self;
        if *kind == MaskKind::Binary {
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
    pub fn one_class(&self, place: PathBuf, only: Option<usize>, ignored: f64, setting: &str) -> DataError {
        let excluded = match self.names.is_empty() {
            true => format!("have the value {}, which data.ignore excludes", self.ignore),
            false => "are of data.ignore_classes".to_owned(),
        };
        let left_out = format!("{:.1}% of the pixels {excluded}", 100.0 * ignored);
        let held = match only {
            None => format!("hold no class: {left_out}"),
            Some(class) if ignored > 0.0 => format!("hold class {} alone: {left_out}", self.name(class)),
            Some(class) => format!("hold class {} alone", self.name(class)),
        };
        let remedy = match &self.kind {
            MaskKind::Index if !self.names.is_empty() => {
                format!("if these are not the annotations of the images, set {setting} of the right ones")
            }
            MaskKind::Index if ignored > 0.0 => {
                "if every value but 0 is the object, set data.masks = \"binary\"; else set data.ignore to the value that \
                 means no class"
                    .to_owned()
            }
            MaskKind::Index => {
                format!("the value of a pixel is its class: if these files are not masks, set {setting} of the masks")
            }
            MaskKind::Binary | MaskKind::Threshold(_) if ignored > 0.0 => {
                "set data.ignore to another value than 0 and 1".to_owned()
            }
            MaskKind::Binary => format!(
                "0 is class 0 and any other value class 1: if these files are not masks, set {setting} of the masks"
            ),
            MaskKind::Threshold(level) => format!(
                "a brightness above data.mask_threshold = {level} is class 1: set it to a level between those of the two classes or, if \
                 these files are not masks, {setting} of the masks"
            ),
            MaskKind::Colors(_) => {
                format!("set data.mask_colors to the colours of more classes or, if these files are not masks, {setting} of the masks")
            }
        };
        DataError::OneMaskClass(place, held, remedy)
    }
}
