//! What a prediction reads and writes: the settings of `dtrain predict`.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The settings of a prediction that decide its values.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Wanted {
    /// The outputs of the network to write as they are; empty: what the task predicts.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// The images to write for each input; empty: all that the task has.
    #[serde(default)]
    pub images: Vec<ImageForm>,
    /// Only this many of the most probable classes.
    #[serde(default)]
    pub top: Option<usize>,
    /// Cut images into windows of the network's size, which share at least this part of a side, from 0 to below 1.
    #[serde(default)]
    pub windows: Option<f64>,
    /// Also predict mirrored images, and take the mean.
    #[serde(default)]
    pub flips: Flips,
    /// The tokens to write after a prompt.
    #[serde(default)]
    pub tokens: usize,
    /// The folder of labelled images, for a model of episodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub support: Option<PathBuf>,
}

/// The inputs of a prediction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Input {
    /// An image, a folder, a table, or a file of prompts.
    Path(PathBuf),
    /// A prompt.
    Prompt(String),
    /// Prompts from standard input, one a line.
    Standard,
    /// The samples of a set of the run's data, by its name.
    Split(String),
}

/// An image that is written for each input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageForm {
    /// The class of each pixel, with a palette.
    Mask,
    /// The input under the colours of the mask.
    Overlay,
    /// The map as a grey PNG of 16 bits.
    Png,
    /// The map as a TIFF of floating-point numbers.
    Tiff,
    /// The map in colours.
    Colors,
}

/// How images are mirrored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Flips {
    #[default]
    None,
    /// Left to right.
    Horizontal,
    /// Top to bottom.
    Vertical,
    /// Each of the two, and both at once.
    Both,
}

impl Flips {
    /// Returns the dimensions to flip in each pass, counted from the last; the first pass flips none.
    pub fn passes(self) -> &'static [&'static [i64]] {
        match self {
            Self::None => &[&[]],
            Self::Horizontal => &[&[], &[-1]],
            Self::Vertical => &[&[], &[-2]],
            Self::Both => &[&[], &[-1], &[-2], &[-2, -1]],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pass_flips_other_dimensions() {
        assert_eq!(Flips::None.passes().len(), 1);
        assert_eq!(Flips::Both.passes().len(), 4);
    }
}
