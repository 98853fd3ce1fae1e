//! The course of a training: `metrics.jsonl`, read as it grows.

use super::super::lines::{EvalLine, StepLine};
use super::curve::Curve;
use serde::Deserialize;

/// The most curves of evaluations.
const MOST: usize = 64;

/// An evaluation's line.
#[derive(Debug, Deserialize)]
struct Evaluation {
    eval: EvalLine,
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
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    pub(super) last: Option<StepLine>,
    pub(super) loss: Curve,
    pub(super) speed: Curve,
    pub(super) rate: Curve,
    pub(super) norm: Curve,
    /// Peak memory of rank 0 in bytes.
    pub(super) memory: Curve,
    pub(super) figures: Vec<Figure>,
    /// The first steps of the later stages.
    pub(super) stages: Vec<u64>,
}

impl History {
    /// Adds a line. Other lines and damaged ones say nothing here.
    pub(super) fn add(&mut self, line: &[u8]) {
        if let Ok(step) = serde_json::from_slice::<StepLine>(line) {
            let curves = [
                (&mut self.loss, step.loss),
                (&mut self.speed, step.samples_per_s),
                (&mut self.rate, step.lr),
                (&mut self.norm, step.grad_norm),
                (&mut self.memory, step.memory.peak),
            ];
            // A missing value still ends the steps that are repeated.
            curves.into_iter().for_each(|(curve, value)| curve.push(step.step, value.unwrap_or(f64::NAN)));
            self.stages.retain(|begin| *begin < step.step);
            if self.last.as_ref().is_some_and(|last| last.step < step.step && last.stage != step.stage) {
                self.stages.push(step.step);
            }
            self.last = Some(step);
        } else if let Ok(evaluation) = serde_json::from_slice::<Evaluation>(line) {
            self.evaluate(&evaluation.eval);
        }
    }

    fn evaluate(&mut self, eval: &EvalLine) {
        let set = eval.set_name();
        for (name, value) in eval.figures() {
            let is_this = |figure: &Figure| figure.set == set && figure.name == name;
            let place = self.figures.iter().position(is_this).or_else(|| {
                let has_room = self.figures.len() < MOST;
                has_room.then(|| {
                    let set = set.to_owned();
                    self.figures.push(Figure { set, name, curve: Curve::default(), last: value });
                    self.figures.len() - 1
                })
            });
            if let Some(figure) = place.and_then(|place| self.figures.get_mut(place)) {
                figure.curve.push(eval.step, value);
                figure.last = value;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::super::growing::Lines;
    use super::*;
    use std::fmt::Write as _;
    use std::fs;
    use std::io::Write as _;
    use std::path::PathBuf;
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

    struct File(Lines, History);

    impl File {
        fn new(path: PathBuf) -> Self {
            Self(Lines::new(path), History::default())
        }
    }

    fn read(file: &mut File) -> &History {
        while file.0.read(&mut file.1, History::add).unwrap() {}
        &file.1
    }

    fn is_empty(history: &History) -> bool {
        history.last.is_none() && shown(&history.loss).is_empty() && history.figures.is_empty()
    }

    fn shown(curve: &Curve) -> Vec<u64> {
        curve.points(usize::MAX).iter().map(|(step, _)| *step as u64).collect()
    }

    #[test]
    fn curves_grow_with_the_file_and_a_cut_line_waits_for_its_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = File::new(path.clone());
        assert!(is_empty(read(&mut file)));
        let cut = line(3);
        fs::write(&path, steps(1..=2) + &cut[..40]).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2]);
        let mut open = fs::File::options().append(true).open(&path).unwrap();
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
        let mut file = File::new(path.clone());
        fs::write(&path, steps(1..=9)).unwrap();
        read(&mut file);
        fs::write(&path, steps(1..=3)).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2, 3]);
        // A line twice, as after a crash.
        fs::write(&path, steps(1..=5) + &steps(5..=6)).unwrap();
        assert_eq!(shown(&read(&mut file).loss), [1, 2, 3, 4, 5, 6]);
        fs::remove_file(&path).unwrap();
        assert!(is_empty(read(&mut file)));
    }

    #[test]
    fn a_long_run_is_read_quickly_and_only_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let text = steps(1..=20_000);
        fs::write(&path, &text).unwrap();
        let start = Instant::now();
        let mut file = File::new(path.clone());
        let history = read(&mut file);
        assert_eq!(history.last.as_ref().unwrap().step, 20_000);
        assert!(history.loss.points(usize::MAX).len() <= 2048);
        // Far less on an idle machine, also in a debug build.
        assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
        let mut more = String::new();
        write!(more, "{}", line(20_001)).unwrap();
        fs::File::options().append(true).open(&path).unwrap().write_all(more.as_bytes()).unwrap();
        assert_eq!(read(&mut file).last.as_ref().unwrap().step, 20_001);
    }

    #[test]
    fn stages_have_their_first_steps_and_lose_those_that_a_run_left() {
        let mut history = History::default();
        let mut take = |step: u64, stage: &str| {
            history.add(format!("{{\"step\":{step},\"stage\":\"{stage}\"}}").as_bytes());
            history.stages.clone()
        };
        assert!(take(1, "head").is_empty());
        take(2, "head");
        assert_eq!(take(3, "all"), [3]);
        assert!(take(2, "head").is_empty());
        assert_eq!(take(3, "all"), [3]);
        assert_eq!(take(4, "all"), [3]);
    }
}
