//! Asks the trainer what a training would find in the data: the question of `dtrain data`.

use super::draft::Draft;
use crate::trainer::{Paths, find_loadable_worker, question_command, resolve};
use anyhow::{Context, bail};
use dtrain_common::question::{DataQuestion, Question};
use dtrain_common::recipe::Source;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Child, Stdio};

/// What a training finds.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Found {
    /// Training samples, and those of the test set; of pairs and episodes the single ones.
    pub(super) train: usize,
    pub(super) test: usize,
    /// The classes of images or pixels; 0 without.
    pub(super) classes: usize,
    pub(super) size: Option<Sizes>,
    /// Mean and deviation of each channel before normalisation.
    pub(super) channels: Vec<(f64, f64)>,
    /// Tokens of all texts.
    pub(super) tokens: usize,
    pub(super) is_of_text: bool,
}

/// Sizes of images, (width, height).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub(super) struct Sizes {
    pub(super) median: (u32, u32),
    /// Different sizes.
    pub(super) different: usize,
}

/// The parts of the report that a recipe depends on.
#[derive(Deserialize)]
struct Report {
    trains: bool,
    refusal: Option<String>,
    files: Vec<Files>,
    sets: Vec<Set>,
    text: Option<Text>,
    values: Option<Values>,
}

#[derive(Deserialize)]
struct Files {
    sizes: Option<Sizes>,
    classes: BTreeMap<String, Balance>,
    pixels: Option<(Balance, usize)>,
}

#[derive(Deserialize)]
struct Balance {
    classes: Vec<(String, u64)>,
}

#[derive(Deserialize)]
struct Set {
    name: String,
    singles: usize,
}

#[derive(Deserialize)]
struct Text {
    tokens: usize,
}

#[derive(Deserialize)]
struct Values {
    fields: Vec<Field>,
}

#[derive(Deserialize)]
struct Field {
    values: serde_json::Value,
}

#[derive(Deserialize)]
struct Spread {
    mean: f64,
    deviation: f64,
}

/// Returns what a training with the draft finds; an error if it could not start.
pub(super) fn ask(draft: &Draft) -> anyhow::Result<Found> {
    let source = Source { name: "recipe".to_owned(), text: draft.least() };
    resolve(&source, &[], Paths::Check)?;
    let worker = find_loadable_worker()?;
    let question = Question::Data(DataQuestion { show: None, samples: 1, epoch: 0, json: true });
    // A file with a name would be left if the user stops a long look at the data. The trainer reads this one more than once.
    let mut file = tempfile::tempfile()?;
    file.write_all(source.text.as_bytes())?;
    let mut command = question_command(&worker, "/dev/stdin", &[], &question)?;
    // It shows its progress, and its own errors.
    let output = command.stdin(file).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let output = output
        .and_then(Child::wait_with_output)
        .with_context(|| format!("cannot start {}", worker.display()))?;
    if output.stdout.is_empty() {
        bail!("the trainer {} ended before it had described the data: {}", worker.display(), output.status);
    }
    let report: Report = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("the trainer {} does not describe the data", worker.display()))?;
    if let (false, Some(refusal)) = (report.trains, &report.refusal) {
        bail!("no training can start with this data: {refusal}");
    }
    Ok(Found::of(&report))
}

impl Found {
    fn of(report: &Report) -> Self {
        let samples =
            |name: &str| report.sets.iter().find(|set| set.name == name).map_or(0, |set| set.singles);
        let first = report.files.first();
        let classes = first.and_then(|files| {
            let of_pixels = files.pixels.as_ref().map(|(balance, _)| balance);
            Some(files.classes.values().next().or(of_pixels)?.classes.len())
        });
        let spreads = report.values.iter().flat_map(|values| &values.fields).find_map(|field| {
            let channels = field.values.get("image")?.get("channels")?;
            Vec::<Spread>::deserialize(channels).ok()
        });
        Self {
            train: samples("training"),
            test: samples("test"),
            classes: classes.unwrap_or(0),
            size: first.and_then(|files| files.sizes),
            channels: spreads
                .unwrap_or_default()
                .iter()
                .map(|spread| (spread.mean, spread.deviation))
                .collect(),
            tokens: report.text.as_ref().map_or(0, |text| text.tokens),
            is_of_text: report.text.is_some(),
        }
    }

    /// Returns the numbers in words, such as "3 classes, 200 training and 40 test samples of 64 x 48 pixels"; empty for generated data.
    pub(super) fn words(&self) -> String {
        if self.is_of_text {
            return format!("{} tokens", grouped(self.tokens));
        }
        if self.train == 0 {
            return String::new();
        }
        let classes = if self.classes > 0 { format!("{} classes, ", self.classes) } else { String::new() };
        let size = match self.size {
            Some(Sizes { median: (width, height), different: 1 }) => format!(" of {width} x {height} pixels"),
            Some(Sizes { median: (width, height), .. }) => {
                format!(", {width} x {height} pixels in the median")
            }
            None => String::new(),
        };
        format!("{classes}{} training and {} test samples{size}", grouped(self.train), grouped(self.test))
    }
}

/// Returns a number with commas between thousands.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let first = digits.len() % 3;
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && at % 3 == first {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn numbers_have_groups_of_three_digits() {
        for (number, text) in
            [(0, "0"), (999, "999"), (1000, "1,000"), (123_456, "123,456"), (1_000_000, "1,000,000")]
        {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn the_parts_of_a_report_are_read() {
        let report = serde_json::from_value(serde_json::json!({
            "trains": true,
            "files": [{ "sizes": { "median": [64, 48], "different": 1, "images": 3 }, "classes": { "label": { "classes": [["a", 2], ["b", 1]], "of_none": 0 } } }],
            "sets": [{ "name": "training", "samples": 200, "singles": 200, "fields": [] }, { "name": "test", "samples": 40, "singles": 40, "fields": [] }],
            "values": { "fields": [{ "field": "image", "shape": [1, 8, 8], "values": { "image": { "channels": [{ "mean": 0.5, "deviation": 0.25 }], "recipe": [] } } }] },
        }));
        let found = Found::of(&report.unwrap());
        assert_eq!(found.words(), "2 classes, 200 training and 40 test samples of 64 x 48 pixels");
        assert_eq!(found.channels, [(0.5, 0.25)]);
        assert_eq!(Found::default().words(), "");
    }
}
