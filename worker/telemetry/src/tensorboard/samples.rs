//! The samples of an evaluation, by the files in its folder.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::lines::text;
use super::message::{Content, Image, Value};

/// The file that lists the samples of a folder.
pub const FILE: &str = "samples.json";

/// A sample of an evaluation: an entry of samples.json.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sample {
    /// The name of its picture, a PNG file in the folder.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub picture: Option<String>,
    /// Its text, for a sample without a picture.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Its input and its prediction.
    pub caption: String,
}

/// Returns what is shown of the samples in a folder; nothing without the folder.
pub(super) fn values(folder: &Path, set: &str) -> io::Result<Vec<Value>> {
    let Some(list) = dtrain_common::files::none_if_missing(fs::read(folder.join(FILE)))? else {
        return Ok(Vec::new());
    };
    let samples: Vec<Sample> = serde_json::from_slice(&list)?;
    let (mut values, mut captions) = (Vec::new(), String::new());
    for (number, sample) in samples.iter().enumerate() {
        // Writing to a text does not fail.
        let _ = writeln!(captions, "{number}. {}", sample.caption);
        if let Some(name) = &sample.picture {
            let png = fs::read(folder.join(name))?;
            values.extend(image(&format!("{set}_pictures/{number}"), png));
        }
        if let Some(of) = &sample.text {
            values.push(text(
                &format!("{set}_texts/{number}"),
                &format!("{}\n\n    {}", sample.caption, of.replace('\n', "\n    ")),
            ));
        }
    }
    if samples.iter().any(|sample| sample.picture.is_some()) {
        values.push(text(&format!("{set}_pictures/captions"), &captions));
    }
    Ok(values)
}

/// Returns a picture; None of bytes that are no PNG file.
fn image(tag: &str, png: Vec<u8>) -> Option<Value> {
    // The signature, the head of the first chunk, and its first two numbers.
    let length = |at: usize| Some(u32::from_be_bytes(png.get(at..at + 4)?.try_into().ok()?));
    let (width, height) = (length(16)?, length(20)?);
    png.starts_with(b"\x89PNG").then(|| Value {
        tag: tag.to_owned(),
        metadata: None,
        content: Some(Content::Image(Image {
            height: height as i32,
            width: width as i32,
            colorspace: 3,
            png,
        })),
    })
}
