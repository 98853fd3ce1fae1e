//! A profile as text of at most 100 columns.

use super::profile::{MeasuredStage, Optimal, Profile, ProfiledStage, TriedOutcome};
use dtrain_common::text::{Align::Left, Align::Right, columns, grouped, paragraph, size};

impl Profile {
    /// The answer as text, or as a line of JSON.
    ///
    /// # Errors
    /// None known: every part has a form in JSON.
    pub(crate) fn render(&self, json: bool) -> serde_json::Result<String> {
        if json {
            return serde_json::to_string(self).map(|line| line + "\n");
        }
        let mut out = String::new();
        let (device, budget) = (&self.device, size(self.budget));
        paragraph(
            &mut out,
            2,
            &format!("Measured on {device}, where tensors may take {budget}."),
        );
        for stage in &self.stages {
            out.push('\n');
            one(stage, &mut out);
        }
        Ok(out)
    }
}

fn one(stage: &ProfiledStage, out: &mut String) {
    let subject = &stage.subject;
    let name = match &stage.measured {
        Some(measured) => format!("stage {}, ", measured.stage),
        None => String::new(),
    };
    let text = format!(
        "{name}{}: {} of {} parameters trained; effective batch {}",
        subject.model,
        grouped(subject.trained),
        grouped(subject.parameters),
        subject.effective_batch
    );
    paragraph(out, 2, &text);
    match &stage.measured {
        Some(measured) => step(measured, out),
        None => out.push_str("No step fits as the recipe has it.\n"),
    }
    if let Some(optimal) = &stage.optimal {
        tries(optimal, out);
    }
}

fn step(measured: &MeasuredStage, out: &mut String) {
    let text = format!(
        "A step of micro-batches of {} takes {:.1} ms, measured.",
        measured.micro_batch, measured.step_ms,
    );
    paragraph(out, 2, &text);
    let text = format!(
        "Its peak is {} measured, and {} {}, {:+.1}%.",
        size(measured.peak),
        size(measured.predicted.peak),
        measured.predicted.way.label(),
        100.0 * measured.error(),
    );
    paragraph(out, 2, &text);
    let mut table = vec![
        ["at the peak", "measured", "predicted"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let owners = measured
        .owners
        .rows()
        .into_iter()
        .zip(measured.predicted.owners.rows());
    for ((name, bytes), (_, predicted)) in owners {
        table.push(vec![name.into(), size(bytes), size(predicted)]);
    }
    columns(out, 2, &[Left, Right, Right], &table);
    let phases = [
        ("forward", measured.phases.forward),
        ("backward", measured.phases.backward),
        ("reduce", measured.phases.reduce),
        ("update", measured.phases.update),
    ];
    let phases: Vec<_> = phases
        .iter()
        .map(|(name, bytes)| format!("{name} {}", size(*bytes)))
        .collect();
    paragraph(
        out,
        2,
        &format!("Peak of each phase, measured: {}.", phases.join(", ")),
    );
}

fn tries(optimal: &Optimal, out: &mut String) {
    let text = match optimal.largest {
        Some(largest) => format!(
            "The largest micro-batch within {} is {largest}: --set memory.micro_batch={largest}",
            size(optimal.limit)
        ),
        None => format!("No micro-batch stays within {}.", size(optimal.limit)),
    };
    paragraph(out, 2, &text);
    let mut table = vec![["micro-batch", "peak", ""].map(str::to_owned).to_vec()];
    for tried in &optimal.tried {
        let (peak, outcome) = match &tried.outcome {
            TriedOutcome::Ran(peak) if *peak <= optimal.limit => (size(*peak), "fits".to_owned()),
            TriedOutcome::Ran(peak) => (size(*peak), "ran, beyond the limit".to_owned()),
            TriedOutcome::OutOfMemory => ("-".to_owned(), "out of memory".to_owned()),
            TriedOutcome::Died(how) => ("-".to_owned(), format!("died: {how}")),
        };
        table.push(vec![tried.micro_batch.to_string(), peak, outcome]);
    }
    columns(out, 2, &[Right, Right, Left], &table);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::profile::Tried;
    use super::*;
    use crate::memory_report::PhasePeaks;
    use crate::plan::tests::{GIB, MIB, Machine};

    fn profile() -> Profile {
        let machine = Machine::default();
        let predicted = machine.prediction(&Machine::cut(1, 4, 0));
        let tried = |micro_batch, outcome| Tried { micro_batch, outcome };
        let measured = MeasuredStage {
            stage: "decoder".into(),
            micro_batch: 4,
            peak: predicted.peak + 46 * MIB,
            owners: predicted.owners,
            phases: PhasePeaks {
                forward: 4 * GIB,
                backward: 5 * GIB,
                reduce: GIB,
                update: 2 * GIB,
            },
            step_ms: 123.456,
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
                        tried: vec![
                            tried(16, TriedOutcome::OutOfMemory),
                            tried(8, TriedOutcome::Ran(9 * GIB)),
                            tried(1, TriedOutcome::Died("killed by SIGKILL".into())),
                            tried(4, TriedOutcome::Ran(5 * GIB)),
                        ],
                    }),
                },
                ProfiledStage {
                    subject: machine.about(),
                    measured: None,
                    optimal: None,
                },
            ],
        }
    }

    #[test]
    fn the_text_is_exact() {
        let text = profile().render(false).unwrap();
        let expected = "\
Measured on CPU, where tensors may take 8.00 GiB.

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
            8  9.00 GiB  ran, beyond the limit
            1         -  died: killed by SIGKILL
            4  5.00 GiB  fits

made-up: 26,214,400 of 26,214,400 parameters trained; effective batch 16
No step fits as the recipe has it.
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
