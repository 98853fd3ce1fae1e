//! `dtrain profile`: real steps beside their prediction, as JSON and as text of at most 100 columns.

use std::iter::zip;

use dtrain_common::text::{Align::Left, Align::Right, columns, grouped, paragraph, size};
use serde::{Deserialize, Serialize};

use super::{Prediction, Subject};
use crate::memory::{Owners, PhasePeaks};

/// The whole answer; `--json` prints it as one object on a line. Sizes are bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Profile {
    /// The device in words, such as `GPU 0 (NVIDIA H200)` or `CPU`.
    pub(crate) device: String,
    /// Bytes that tensors may take on the device.
    pub(crate) budget: u64,
    /// One entry for each stage of the job.
    pub(crate) stages: Vec<ProfiledStage>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct ProfiledStage {
    pub(crate) subject: Subject,
    /// A step with the recipe's settings; None if it did not fit.
    pub(crate) measured: Option<MeasuredStage>,
    /// The largest micro-batch, if the job searches for it.
    pub(crate) optimal: Option<Optimal>,
}

/// A measured step.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct MeasuredStage {
    pub(crate) stage: String,
    /// Samples of a micro-batch.
    pub(crate) micro_batch: usize,
    #[serde(flatten)]
    pub(crate) figures: Measured,
    /// The prediction for the same cut.
    pub(crate) predicted: Prediction,
}

/// The measurement of a cut.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Measured {
    pub(crate) peak: u64,
    pub(crate) owners: Owners,
    pub(crate) phases: PhasePeaks,
    /// The median time of a step in milliseconds, without the first step.
    pub(crate) step_ms: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Optimal {
    /// The largest micro-batch with a peak of at most `limit`; None if there is no such micro-batch.
    pub(crate) largest: Option<usize>,
    /// Limit of the peak in bytes: the device's memory less the margin, or the recipe's budget.
    pub(crate) limit: u64,
    #[serde(rename = "tried")]
    pub(crate) trials: Vec<Trial>,
}

/// A trial: steps in a separate process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Samples of a micro-batch.
    pub(crate) micro_batch: usize,
    pub(crate) outcome: TrialOutcome,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum TrialOutcome {
    /// The process ran, and had this peak in bytes, within the limit or not.
    Ran(u64),
    OutOfMemory,
    /// The process died; its status.
    Died(String),
}

impl Profile {
    /// Returns the answer as text, or as a line of JSON.
    pub(crate) fn render(&self, json: bool) -> serde_json::Result<String> {
        if json {
            return serde_json::to_string(self).map(|line| line + "\n");
        }
        let mut out = String::new();
        let (device, budget) = (&self.device, size(self.budget));
        paragraph(&mut out, 2, &format!("Measured on {device}; tensors are limited to {budget}."));
        for stage in &self.stages {
            out.push('\n');
            write_stage(stage, &mut out);
        }
        Ok(out)
    }
}

fn write_stage(stage: &ProfiledStage, out: &mut String) {
    let subject = &stage.subject;
    let name = stage.measured.as_ref().map(|measured| format!("stage {}, ", measured.stage));
    let text = format!(
        "{}{}: {} of {} parameters trained; effective batch {}",
        name.unwrap_or_default(),
        subject.model,
        grouped(subject.trained),
        grouped(subject.parameters),
        subject.effective_batch
    );
    paragraph(out, 2, &text);
    match &stage.measured {
        Some(measured) => write_step(measured, out),
        None => out.push_str("No step fits with the recipe's settings.\n"),
    }
    if let Some(optimal) = &stage.optimal {
        write_trials(optimal, out);
    }
}

fn write_step(measured: &MeasuredStage, out: &mut String) {
    let (figures, predicted) = (&measured.figures, &measured.predicted);
    let text = format!(
        "A step of micro-batches of {} takes {:.1} ms, measured.",
        measured.micro_batch, figures.step_ms,
    );
    paragraph(out, 2, &text);
    let text = format!(
        "Its peak is {} measured, and {} {}, {:+.1}%.",
        size(figures.peak),
        size(predicted.peak),
        predicted.mode.label(),
        100.0 * (predicted.peak as f64 / (figures.peak as f64).max(1.0) - 1.0),
    );
    paragraph(out, 2, &text);
    let mut table = vec![["at the peak", "measured", "predicted"].map(str::to_owned).into()];
    for ((name, bytes), (_, predicted)) in zip(figures.owners.rows(), predicted.owners.rows()) {
        table.push(vec![name.into(), size(bytes), size(predicted)]);
    }
    columns(out, 2, &[Left, Right, Right], &table);
    let PhasePeaks { forward, backward, reduce, update } = figures.phases;
    let [forward, backward, reduce, update] = [forward, backward, reduce, update].map(size);
    let text = format!(
        "Peak of each phase, measured: forward {forward}, backward {backward}, reduce {reduce}, update {update}."
    );
    paragraph(out, 2, &text);
}

fn write_trials(optimal: &Optimal, out: &mut String) {
    let limit = size(optimal.limit);
    let text = match optimal.largest {
        Some(largest) => {
            format!("The largest micro-batch within {limit} is {largest}: --set memory.micro_batch={largest}")
        }
        None => format!("No micro-batch fits within {limit}."),
    };
    paragraph(out, 2, &text);
    let mut table = vec![["micro-batch", "peak", ""].map(str::to_owned).into()];
    for trial in &optimal.trials {
        let (peak, outcome) = match &trial.outcome {
            TrialOutcome::Ran(peak) if *peak <= optimal.limit => (size(*peak), "fits".to_owned()),
            TrialOutcome::Ran(peak) => (size(*peak), "ran, above the limit".to_owned()),
            TrialOutcome::OutOfMemory => ("-".to_owned(), "out of memory".to_owned()),
            TrialOutcome::Died(how) => ("-".to_owned(), format!("died: {how}")),
        };
        table.push(vec![trial.micro_batch.to_string(), peak, outcome]);
    }
    columns(out, 2, &[Right, Right, Left], &table);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::planning::tests::{GIB, MIB, Machine};

    fn profile() -> Profile {
        let machine = Machine::default();
        let predicted = machine.prediction(&Machine::cut(1, 4, 0));
        let trial = |micro_batch, outcome| Trial { micro_batch, outcome };
        let measured = MeasuredStage {
            stage: "decoder".into(),
            micro_batch: 4,
            figures: Measured {
                peak: predicted.peak + 46 * MIB,
                owners: predicted.owners,
                phases: PhasePeaks { forward: 4 * GIB, backward: 5 * GIB, reduce: GIB, update: 2 * GIB },
                step_ms: 123.456,
            },
            predicted,
        };
        Profile {
            device: "CPU".into(),
            budget: 8 * GIB,
            stages: vec![
                ProfiledStage {
                    subject: machine.about(),
                    measured: Some(measured),
                    optimal: Some(Optimal {
                        largest: Some(4),
                        limit: 8 * GIB,
                        trials: vec![
                            trial(16, TrialOutcome::OutOfMemory),
                            trial(8, TrialOutcome::Ran(9 * GIB)),
                            trial(1, TrialOutcome::Died("killed by SIGKILL".into())),
                            trial(4, TrialOutcome::Ran(5 * GIB)),
                        ],
                    }),
                },
                ProfiledStage { subject: machine.about(), measured: None, optimal: None },
            ],
        }
    }

    #[test]
    fn the_text_is_printed_exactly() {
        let text = profile().render(false).unwrap();
        let expected = "\
Measured on CPU; tensors are limited to 8.00 GiB.

stage decoder, made-up: 26,214,400 of 26,214,400 parameters trained; effective batch 16
A step of micro-batches of 4 takes 123.5 ms, measured.
Its peak is 4.54 GiB measured, and 4.50 GiB predicted (symbolic), -1.0%.
  at the peak    measured   predicted
  parameters   100.00 MiB  100.00 MiB
  gradients    100.00 MiB  100.00 MiB
  optimizer    200.00 MiB  200.00 MiB
  ema          100.00 MiB  100.00 MiB
  buffers             0 B         0 B
  activations    4.00 GiB    4.00 GiB
  workspace     10.00 MiB   10.00 MiB
Peak of each phase, measured: forward 4.00 GiB, backward 5.00 GiB, reduce 1.00 GiB, update 2.00 GiB.
The largest micro-batch within 8.00 GiB is 4: --set memory.micro_batch=4
  micro-batch      peak
           16         -  out of memory
            8  9.00 GiB  ran, above the limit
            1         -  died: killed by SIGKILL
            4  5.00 GiB  fits

made-up: 26,214,400 of 26,214,400 parameters trained; effective batch 16
No step fits with the recipe's settings.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn the_json_reads_back() {
        let profile = profile();
        let line = profile.render(true).unwrap();
        assert!(line.ends_with("}\n") && line.matches('\n').count() == 1);
        assert_eq!(serde_json::from_str::<Profile>(&line).unwrap(), profile);
    }
}
