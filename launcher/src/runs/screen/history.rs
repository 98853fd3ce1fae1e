//! The course of a training: `metrics.jsonl`, read as it grows.

use super::super::files::Problem;
use super::curve::Curve;
use super::growing::Growing;
use dtrain_common::metrics::NO_FIGURES;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::path::PathBuf;

/// Bytes of one read.
const CHUNK: u64 = 4 << 20;
/// The longest line that is used.
const LONGEST: usize = 1 << 20;
/// The most curves of evaluations.
const MOST: usize = 64;

/// A step's line.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub(super) struct Step {
    pub(super) step: u64,
    #[serde(default)]
    pub(super) stage: Option<String>,
    #[serde(default)]
    pub(super) loss: Option<f64>,
    #[serde(default)]
    pub(super) lr: Option<f64>,
    #[serde(default)]
    pub(super) grad_norm: Option<f64>,
    #[serde(default)]
    pub(super) samples_per_s: Option<f64>,
    #[serde(default)]
    pub(super) step_ms: Option<f64>,
    #[serde(default)]
    pub(super) wait_ms: Waits,
    #[serde(default)]
    pub(super) memory: Memory,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Waits {
    pub(super) data: Option<f64>,
    pub(super) comm: Option<f64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Memory {
    pub(super) peak: Option<u64>,
}

/// An evaluation's line.
#[derive(Debug, Deserialize)]
struct Evaluation {
    eval: Map<String, Value>,
}

/// A number of the evaluations of one set.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Figure {
    pub(super) set: String,
    /// Such as `loss` or `accuracy`.
    pub(super) name: String,
    pub(super) curve: Curve,
    pub(super) last: f64,
}

/// The curves of a training, of bounded size.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History {
    pub(super) last: Option<Step>,
    pub(super) loss: Curve,
    pub(super) speed: Curve,
    pub(super) rate: Curve,
    pub(super) norm: Curve,
    /// Peak memory of rank 0 in bytes.
    pub(super) memory: Curve,
    pub(super) figures: Vec<Figure>,
}

impl History {
    /// Adds a line. Other lines and damaged ones say nothing here.
    pub(super) fn add(&mut self, line: &[u8]) {
        if let Ok(step) = serde_json::from_slice::<Step>(line) {
            let curves = [
                (&mut self.loss, step.loss),
                (&mut self.speed, step.samples_per_s),
                (&mut self.rate, step.lr),
                (&mut self.norm, step.grad_norm),
                (&mut self.memory, step.memory.peak.map(|bytes| bytes as f64)),
            ];
            // A missing value still ends the steps that are repeated.
            curves.into_iter().for_each(|(curve, value)| curve.push(step.step, value.unwrap_or(f64::NAN)));
            self.last = Some(step);
        } else if let Ok(evaluation) = serde_json::from_slice::<Evaluation>(line) {
            self.evaluate(&evaluation.eval);
        }
    }

    fn evaluate(&mut self, eval: &Map<String, Value>) {
        let Some(step) = eval.get("step").and_then(Value::as_u64) else { return };
        let set = eval.get("set").and_then(Value::as_str).unwrap_or("test");
        for (name, value) in eval {
            let Some(value) = value.as_f64().filter(|_| !NO_FIGURES.contains(&name.as_str())) else {
                continue;
            };
            let is_this = |figure: &Figure| figure.set == set && figure.name == *name;
            let place = self.figures.iter().position(is_this).or_else(|| {
                let has_room = self.figures.len() < MOST;
                has_room.then(|| {
                    let (set, name) = (set.to_owned(), name.clone());
                    self.figures.push(Figure { set, name, curve: Curve::default(), last: value });
                    self.figures.len() - 1
                })
            });
            if let Some(figure) = place.and_then(|place| self.figures.get_mut(place)) {
                figure.curve.push(step, value);
                figure.last = value;
            }
        }
    }
}

/// The file, and what it has said.
#[derive(Debug)]
pub(super) struct HistoryFile {
    file: Growing,
    /// The beginning of a line that is being written.
    rest: Vec<u8>,
    pub(super) history: History,
}

impl HistoryFile {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { file: Growing::new(path, u64::MAX), rest: Vec::new(), history: History::default() }
    }

    /// Reads a part of the new lines. Returns whether there is more to read.
    pub(super) fn read(&mut self) -> Result<bool, Problem> {
        let grown = self.file.read(CHUNK)?;
        if grown.is_new {
            self.rest.clear();
            self.history = History::default();
        }
        let mut bytes = grown.bytes.as_slice();
        if !self.rest.is_empty() {
            let Some(end) = memchr::memchr(b'\n', bytes) else {
                self.keep(bytes);
                return Ok(grown.has_more);
            };
            self.rest.extend_from_slice(&bytes[..end]);
            let line = std::mem::take(&mut self.rest);
            self.history.add(&line);
            bytes = &bytes[end + 1..];
        }
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.history.add(&bytes[..end]);
            bytes = &bytes[end + 1..];
        }
        self.keep(bytes);
        Ok(grown.has_more)
    }

    /// Keeps the beginning of a line. One that is too long is no JSON any more, and is left out.
    fn keep(&mut self, bytes: &[u8]) {
        let room = LONGEST.saturating_sub(self.rest.len());
        self.rest.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::fmt::Write as _;
    use std::fs::{self, File};
    use std::io::Write as _;
    use std::time::{Duration, Instant};

    fn line(step: u64) -> String {
        format!(
            "{{\"step\":{step},\"epoch\":1,\"stage\":\"full\",\"samples\":{},\"loss\":{},\"lr\":0.001,\"grad_norm\":0.7130331993103027,\
             \"loss_scale\":1.0,\"samples_per_s\":951.2,\"step_ms\":16.82,\"elapsed_s\":{}.25,\"wait_ms\":{{\"data\":0.07,\"comm\":1.5}},\
             \"memory\":{{\"allocated\":1218048,\"reserved\":1218048,\"peak\":3145728,\"owners\":{{\"parameters\":101,\"activations\":7}},\
             \"phases\":{{\"forward\":1,\"backward\":2,\"reduce\":3,\"update\":4}}}}}}\n",
            step * 16,
            1.0 / step as f64,
            step / 8,
        )
    }

    fn steps(range: std::ops::RangeInclusive<u64>) -> String {
        range.map(line).collect()
    }

    fn read(file: &mut HistoryFile) -> &History {
        while file.read().unwrap() {}
        &file.history
    }

    fn shown(curve: &Curve) -> Vec<u64> {
        curve.points(usize::MAX).iter().map(|(step, _)| *step as u64).collect()
    }

    #[test]
    fn curves_grow_with_the_file_and_a_cut_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = HistoryFile::new(path.clone());
        assert_eq!(*read(&mut file), History::default());
        let cut = line(3);
        fs::write(&path, steps(1..=2) + &cut[..40]).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2]);
        let mut open = File::options().append(true).open(&path).unwrap();
        open.write_all(&cut.as_bytes()[40..60]).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2]);
        let evaluation = r#"{"eval":{"set":"val","step":3,"epoch":1,"loss":0.5,"accuracy":0.75,"samples":37,"eval_ms":9.5,"best":true}}"#;
        write!(open, "{}{evaluation}\nnonsense\n{{\"stage\":{{\"step\":4}}}}\n", &cut[60..]).unwrap();
        let history = read(&mut file);
        assert_eq!(shown(&history.loss), [1, 2, 3]);
        assert_eq!(shown(&history.memory), [1, 2, 3]);
        let last = history.last.as_ref().unwrap();
        assert_eq!((last.step, last.stage.as_deref(), last.wait_ms.comm), (3, Some("full"), Some(1.5)));
        let mut figures: Vec<_> = history.figures.iter().map(|it| (&*it.set, &*it.name, it.last)).collect();
        figures.sort_unstable_by_key(|figure| figure.1);
        assert_eq!(figures, [("val", "accuracy", 0.75), ("val", "loss", 0.5)]);
    }

    #[test]
    fn a_run_that_goes_back_has_no_curve_of_the_steps_it_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = HistoryFile::new(path.clone());
        fs::write(&path, steps(1..=9)).unwrap();
        read(&mut file);
        fs::write(&path, steps(1..=3)).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2, 3]);
        // A line twice, as after a crash.
        fs::write(&path, steps(1..=5) + &steps(5..=6)).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2, 3, 4, 5, 6]);
        fs::remove_file(&path).unwrap();
        assert_eq!(*read(&mut file), History::default());
    }

    #[test]
    fn a_long_run_is_read_quickly_and_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let text = steps(1..=20_000);
        fs::write(&path, &text).unwrap();
        let start = Instant::now();
        let mut file = HistoryFile::new(path.clone());
        let history = read(&mut file);
        assert_eq!(history.last.as_ref().unwrap().step, 20_000);
        assert!(history.loss.points(usize::MAX).len() <= 2048);
        // Far less on an idle machine, also in a debug build.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let mut more = String::new();
        write!(more, "{}", line(20_001)).unwrap();
        File::options().append(true).open(&path).unwrap().write_all(more.as_bytes()).unwrap();
        assert_eq!(read(&mut file).last.as_ref().unwrap().step, 20_001);
    }

    #[test]
    fn a_line_without_end_does_not_fill_the_memory() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        fs::write(&path, "x".repeat(LONGEST + 10) + "\n" + &line(1)).unwrap();
        let mut file = HistoryFile::new(path);
        assert_eq!(shown(&read(&mut file).loss), [1]);
        assert!(file.rest.is_empty());
    }
}
