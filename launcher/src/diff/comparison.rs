//! The result of a comparison: how the runs differ, from where on, and the likely cause.

use super::inputs::{self, Input, Source};
use super::names;
use super::reading::Kind;
use super::run::Run;
use super::size::is_rounding;
use super::steps::{self, Difference};
use super::weights;
use anyhow::bail;
use dtrain_common::text::counted;

/// Two runs, compared.
#[derive(Debug)]
pub(super) struct Comparison {
    pub(super) runs: [Run; 2],
    pub(super) steps: steps::Compared,
    pub(super) weights: weights::Compared,
    /// The inputs that differ, each once.
    pub(super) inputs: Vec<Input>,
    /// Names of the first changed samples, in the order of their numbers; empty if they are not known.
    pub(super) names: Vec<String>,
    pub(super) tolerance: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Equal,
    /// The first difference has the size of rounding.
    Rounding,
    Different,
}

/// The first difference.
pub(super) struct First<'a> {
    pub(super) kind: Kind,
    pub(super) step: u64,
    /// `None` of weights.
    pub(super) difference: Option<&'a Difference>,
    pub(super) relative: Option<f64>,
}

impl Comparison {
    /// Compares the runs.
    ///
    /// # Errors
    ///
    /// They cannot be compared, or a file cannot be read.
    pub(super) fn of(a: Run, b: Run, tolerance: f64) -> anyhow::Result<Self> {
        let names = [&a, &b].map(|run| run.dir.root().display().to_string());
        if a.task() != b.task() {
            let (own, other) = (a.task(), b.task());
            bail!(
                "runs of different tasks cannot be compared: {} has {own}, {} has {other}",
                names[0],
                names[1]
            );
        }
        let Some(steps) = steps::compare(&a, &b, tolerance) else {
            let of = |run: &Run| match (run.steps.first_key_value(), run.steps.last_key_value()) {
                (Some((first, _)), Some((last, _))) => format!("the steps {first} to {last}"),
                _ => "no step".to_owned(),
            };
            bail!(
                "the runs have no step in common: {} has {}, {} has {}",
                names[0],
                of(&a),
                names[1],
                of(&b)
            );
        };
        let weights = weights::compare(&a, &b, tolerance)?;
        let step = steps.first().map_or(steps.steps.1, |first| first.step);
        // Test samples have no hashes.
        let first = steps.first().map(|first| first.kind);
        let same_samples = steps.has_hashes
            && first != Some(Kind::Evaluation)
            && !steps.differences.iter().any(|one| matches!(one.kind, Kind::Order | Kind::Content));
        let inputs = inputs::compare(&a, &b, step, same_samples);
        let names = names::of_samples([&a, &b], &steps.changed_samples);
        Ok(Self { runs: [a, b], steps, weights, inputs, names, tolerance })
    }

    pub(super) fn first(&self) -> Option<First<'_>> {
        let of_steps = self.steps.first().map(|one| First {
            kind: one.kind,
            step: one.step,
            difference: Some(one),
            relative: one.relative,
        });
        let of_weights = self.weights.different.as_ref().map(|checkpoints| First {
            kind: Kind::Weights,
            step: checkpoints.step,
            difference: None,
            relative: checkpoints.different.first().map(|tensor| tensor.relative),
        });
        of_steps.into_iter().chain(of_weights).min_by_key(|first| (first.step, first.kind))
    }

    pub(super) fn verdict(&self) -> Verdict {
        match self.first() {
            None => Verdict::Equal,
            Some(first) => {
                let has_other_tensors = |checkpoints: &weights::Checkpoints| {
                    checkpoints.is_damaged() || !checkpoints.unmatched.is_empty()
                };
                let is_other = self.weights.different.as_ref().is_some_and(has_other_tensors);
                // The loss alone may change little by an update of another size.
                let of_step = self.steps.differences.iter().filter(|one| one.step == first.step);
                let mut of_step =
                    of_step.filter(|one| one.kind != Kind::Evaluation || one.kind == first.kind);
                let is_small = self.is_rounding(first.step, first.kind, first.relative)
                    && of_step.all(|one| self.is_rounding(one.step, one.kind, one.relative));
                // Another weight decay changes little at first, too.
                let explaining = self.explaining(&first);
                let has_other_cause =
                    !explaining.is_empty() && !explaining.iter().any(|input| input.only_rounds());
                match is_small && !has_other_cause && !(first.kind == Kind::Weights && is_other) {
                    true => Verdict::Rounding,
                    false => Verdict::Different,
                }
            }
        }
    }

    /// Returns whether a first difference of this size, at this step, is one of rounding.
    pub(super) fn is_rounding(&self, step: u64, kind: Kind, relative: Option<f64>) -> bool {
        let precisions =
            self.runs.each_ref().map(|run| run.environment(step)["precision"].as_str().unwrap_or("fp32"));
        relative.is_some_and(|relative| is_rounding(relative, kind, precisions))
    }

    /// Returns the inputs that can explain a difference.
    fn explaining(&self, first: &First<'_>) -> Vec<&Input> {
        let explains = |input: &&Input| input.explains(first.kind, first.step == 1, self.steps.has_hashes);
        self.inputs.iter().filter(explains).collect()
    }

    /// Returns the inputs that best explain the first difference.
    pub(super) fn causes(&self) -> Vec<&Input> {
        let Some(first) = self.first() else { return Vec::new() };
        let candidates = self.explaining(&first);
        let of = |wanted: &dyn Fn(&Input) -> bool| -> Vec<&Input> {
            candidates.iter().copied().filter(|input| wanted(input)).collect()
        };
        // A host's name is only a hint at its machine.
        let is_host = |input: &Input| input.name == "host";
        let is_stated = |input: &Input| matches!(input.source, Source::Setting | Source::Data | Source::File);
        let groups: [Vec<&Input>; 5] = [
            if self.verdict() == Verdict::Rounding {
                of(&|input| (input.only_rounds() || is_stated(input)) && !is_host(input))
            } else {
                Vec::new()
            },
            of(&is_stated),
            of(&|input| input.source == Source::Trainer),
            of(&|input| !is_host(input)),
            of(&is_host),
        ];
        let group = groups.into_iter().find(|group| !group.is_empty()).unwrap_or_default();
        // Defaults of other settings follow from those that both runs have.
        let is_set = |input: &&Input| input.values.iter().all(|value| value != inputs::NOT_SET);
        let is_setting = |input: &Input| input.source == Source::Setting;
        let has_set = group.iter().any(|input| is_setting(input) && is_set(input));
        let is_own = |input: &&Input| !has_set || !is_setting(input) || is_set(input);
        let mut causes: Vec<&Input> = group.into_iter().filter(is_own).collect();
        let names: Vec<&str> = causes.iter().map(|input| input.name.as_str()).collect();
        let follows = |name: &str| match name {
            "model.weights_mode" => names.contains(&"model.weights"),
            _ => names.iter().any(|own| name.strip_prefix(own).is_some_and(|rest| rest.starts_with('.'))),
        };
        causes.retain(|input| !follows(&input.name));
        causes
    }

    /// Returns the verdict as a sentence.
    pub(super) fn sentence(&self) -> String {
        let Some(first) = self.first() else { return self.equal() };
        let rounding = if self.verdict() == Verdict::Rounding { " by rounding" } else { "" };
        format!(
            "Different{rounding} from step {}: {}; {}.",
            first.step,
            self.describe(&first),
            self.describe_cause()
        )
    }

    fn equal(&self) -> String {
        let (first, last, count) = self.steps.steps;
        let steps = if first == last {
            format!("step {first}")
        } else {
            format!("{count} steps ({first} to {last})")
        };
        let mut parts = vec![steps];
        if self.steps.evaluations > 0 {
            parts.push(counted(self.steps.evaluations, "evaluation"));
        }
        if !self.weights.equal.is_empty() {
            parts.push(counted(self.weights.equal.len(), "checkpoint"));
        }
        let parts = parts.join(", ");
        let of_steps = Some(self.steps.allowed).filter(|allowed| *allowed > 0.0);
        let norms = if self.steps.has_noise { ", but for gradient norms within 1e-13" } else { "" };
        match of_steps.into_iter().chain(self.weights.allowed).reduce(f64::max) {
            Some(allowed) => format!(
                "Equal within {:e}: {parts}; the largest difference is {allowed:.1e}.",
                self.tolerance
            ),
            None => format!("Equal: {parts} have the same bits{norms}."),
        }
    }

    fn describe(&self, first: &First<'_>) -> String {
        let size = first.relative.map(|relative| format!(", relative {relative:.1e}")).unwrap_or_default();
        match first.difference {
            Some(one) if matches!(one.kind, Kind::Order) => one.name.clone(),
            Some(one) if matches!(one.kind, Kind::Content) => {
                format!("{}{}", one.name, self.changed_samples())
            }
            Some(one) => {
                let [a, b] = one.values.each_ref().map(super::reading::Reading::words);
                format!("{} ({a} and {b}{size})", one.name)
            }
            None => self.describe_weights(),
        }
    }

    fn describe_weights(&self) -> String {
        let Some(checkpoints) = &self.weights.different else { return String::new() };
        let largest = checkpoints.different.first();
        let largest = largest.map(|tensor| {
            format!(", largest relative difference {:.1e} in {}", tensor.relative, tensor.name)
        });
        let (different, tensors) =
            (checkpoints.different.len() + checkpoints.unmatched.len(), checkpoints.tensors);
        format!("weights ({different} of {}{})", counted(tensors, "tensor"), largest.unwrap_or_default())
    }

    /// Returns the first changed samples in parentheses, if they are known.
    fn changed_samples(&self) -> String {
        let all = &self.steps.changed_samples;
        if self.steps.has_more_changed {
            return String::new();
        }
        let shown: Vec<String> = match self.names.is_empty() {
            true => all.iter().take(names::MOST).map(ToString::to_string).collect(),
            false => self.names.clone(),
        };
        let noun = if all.len() == 1 { "training sample" } else { "training samples" };
        match all.len() {
            0 => String::new(),
            count if count > shown.len() => {
                format!(" ({noun} {} and {} more)", shown.join(", "), count - shown.len())
            }
            _ => format!(" ({noun} {})", shown.join(", ")),
        }
    }

    fn describe_cause(&self) -> String {
        /// More causes are in the table alone.
        const SHOWN: usize = 3;
        if let Some(checkpoints) =
            self.weights.different.as_ref().filter(|checkpoints| checkpoints.is_damaged())
            && self.first().is_some_and(|first| first.kind == Kind::Weights)
        {
            let of = |(run, files): (&str, &Vec<String>)| {
                (!files.is_empty()).then(|| format!("{} of {run}", files.join(" and ")))
            };
            let files: Vec<_> = ["A", "B"].into_iter().zip(&checkpoints.damaged).filter_map(of).collect();
            return format!(
                "cause: {} changed after it was written, since its checksum does not match",
                files.join(" and ")
            );
        }
        let causes = self.causes();
        let shown = causes
            .iter()
            .take(SHOWN)
            .map(|input| format!("{} ({} and {})", input.name, input.values[0], input.values[1]));
        let mut words: Vec<_> = shown.collect();
        if causes.len() > SHOWN {
            words.push(format!("and {} more", causes.len() - SHOWN));
        }
        match (words.is_empty(), self.first().map(|first| first.kind)) {
            (false, _) => format!("likely cause: {}", words.join(", ")),
            (true, Some(Kind::Content)) => "likely cause: changed files of the data".to_owned(),
            (true, _) => "no recorded input explains it".to_owned(),
        }
    }
}
