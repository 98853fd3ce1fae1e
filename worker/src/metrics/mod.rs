//! Output during a run: metrics.jsonl for programs, a progress bar or plain lines for people.

pub(crate) mod lines;
mod log;
mod progress;
mod record;

/// Formats the figures of an evaluation for people: each name with its value, and half of its interval if the recipe has it.
pub(crate) fn figures(record: &EvalRecord) -> Vec<(String, String)> {
    let (all, intervals) = (&record.metrics.0, &record.intervals);
    let of = |name: &str| all.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
    let is_half = |name: &String| {
        let whole = name.strip_suffix("_95").filter(|_| intervals.contains(name));
        whole.is_some_and(|whole| of(whole).is_some())
    };
    let shown = |(name, value): &(String, f64)| {
        let half = Some(format!("{name}_95")).filter(is_half).and_then(|half| of(&half));
        let half = half.map_or(String::new(), |half| format!(" +- {}", figure(name, half)));
        (name.replace('_', " "), figure(name, *value) + &half)
    };
    all.iter().filter(|(name, _)| !is_half(name)).map(shown).collect()
}

pub(crate) use dtrain_common::metrics::figure;
pub(crate) use log::MetricsLog;
pub(crate) use progress::{Progress, ProgressStyle};
pub(crate) use record::{
    CheckpointRecord, EvalRecord, Figures, Line, MicroBatches, OomRecord, ShownSample, SkipCause,
    StageRecord, StepHashes, StepRecord, TestRecord, WaitMs,
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_shown_with_its_figure() {
        let numbers =
            [("accuracy", 0.7899), ("accuracy_95", 0.0297), ("hd", 3.5), ("hd_95", 9.0), ("x_95", 1.0)];
        let record = EvalRecord {
            metrics: Figures(numbers.map(|(name, value)| (name.to_owned(), value)).into()),
            // `hd_95` is an output of the program.
            intervals: ["accuracy_95", "x_95"].map(String::from).into(),
            ..EvalRecord::default()
        };
        let shown: Vec<_> =
            figures(&record).into_iter().map(|(name, value)| format!("{name} {value}")).collect();
        assert_eq!(shown, ["accuracy 78.99% +- 2.97%", "hd 3.5000", "hd 95 9.0000", "x 95 1.0000"]);
    }
}
