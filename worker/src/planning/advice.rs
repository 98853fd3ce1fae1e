//! Ways to save memory: the guides' advice, computed for this recipe. Ineffective advice is left out.

use serde::{Deserialize, Serialize};

use super::cost::relative_time;
use super::solve::Solver;
use super::{Cut, Prediction, Predictor, Subject};
use dtrain_recipe::{Amp, ModelName, Recipe, Resize, Target};

/// A way to save memory, with its predicted effect on a cut.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Advice {
    /// The action, in words.
    pub(crate) what: String,
    /// The setting for `--set`; None if a section must be removed.
    pub(crate) setting: Option<String>,
    /// The peak with it, in bytes.
    pub(crate) peak: u64,
    pub(crate) saves: u64,
    /// The expected time of a step, relative to the cut's.
    pub(crate) relative_time: f64,
}

/// A possible way.
struct Candidate {
    what: String,
    setting: String,
    /// The changed cut; without one, the setting overrides the recipe's.
    cut: Option<Cut>,
}

/// Images shrink in multiples of these pixels if the model has no patches: the total stride of the backbones.
const STRIDE: usize = 32;

/// Returns all ways that save memory compared with `base`, a cut of this recipe. Settings that the model
/// rejects, such as images that its patches do not divide, are left out.
pub(super) fn advise<P: Predictor>(
    recipe: &Recipe,
    solver: &mut Solver<'_, P>,
    base: &Prediction,
    half: Amp,
) -> Vec<Advice> {
    let subject = solver.subject;
    let segments = subject.segments;
    let partition = |cut: &Cut| subject.partition(cut.ranks, Some(cut.micro_batch));
    let Ok(whole) = partition(&base.cut) else { return Vec::new() };
    let mut found = Vec::new();
    let candidates = by_cut(subject, base.cut, half).into_iter().chain(by_setting(recipe));
    for Candidate { what, setting, cut } in candidates {
        let overrides = Vec::from_iter(cut.is_none().then(|| setting.clone()));
        let cut = cut.unwrap_or(base.cut);
        let (Ok(prediction), Ok(own)) = (solver.predict_with(&overrides, cut), partition(&cut)) else {
            continue;
        };
        let saves = base.peak.saturating_sub(prediction.peak);
        if saves > 0 {
            found.push(Advice {
                what,
                setting: Some(setting),
                peak: prediction.peak,
                saves,
                relative_time: relative_time((base, &whole), (&prediction, &own), segments),
            });
        }
    }
    if recipe.ema.is_some() && base.owners.ema > 0 {
        // The average exists at all times, so every peak shrinks by its size.
        found.push(Advice {
            what: "no moving average: remove [ema]".into(),
            setting: None,
            peak: base.peak.saturating_sub(base.owners.ema),
            saves: base.owners.ema,
            relative_time: 1.0,
        });
    }
    found.sort_by_key(|advice| std::cmp::Reverse(advice.saves));
    found
}

/// Returns the candidates that change the cut.
fn by_cut(subject: &Subject, base: Cut, half: Amp) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    let mut add = |what: String, setting: String, cut: Cut| {
        candidates.push(Candidate { what, setting, cut: Some(cut) })
    };
    let Cut { ranks, micro_batch, .. } = base;
    let recompute = subject.segments;
    if base.recompute < recompute {
        let what = format!("recompute all {recompute} segments in backward");
        add(what, "memory.recompute=on".into(), Cut { recompute, ..base });
    }
    if micro_batch > 1
        && let Ok(halved) = subject.partition(ranks, Some(micro_batch.div_ceil(2)))
        && halved.smallest_micro_batch() >= subject.min_micro_batch
    {
        let (before, micro_batch) = (micro_batch, halved.micro_batch());
        let what = format!("half the micro-batch: {micro_batch} instead of {before}");
        add(what, format!("memory.micro_batch={micro_batch}"), Cut { micro_batch, ..base });
    }
    if ranks > 1 && !base.shard_optimizer {
        let what = format!("shard the optimizer's state over {ranks} ranks");
        add(what, "memory.shard_optimizer=true".into(), Cut { shard_optimizer: true, ..base });
    }
    if base.amp == Amp::Off {
        let what = format!("matrix products and convolutions in {half}; changes rounding");
        add(what, format!("precision.amp={half}"), Cut { amp: half, ..base });
    }
    candidates
}

/// Returns the candidates that change a setting of the recipe.
fn by_setting(recipe: &Recipe) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    let mut add = |what: String, setting: String| candidates.push(Candidate { what, setting, cut: None });
    if recipe.model.freeze.is_empty()
        && let Some((part, globs)) = all_but_the_last(recipe)
    {
        let globs: Vec<_> = globs.iter().map(|glob| format!("{glob:?}")).collect();
        let what = format!("progressive unfreezing: first train only {part}");
        add(what, format!("model.freeze=[{}]", globs.join(",")));
    }
    if let Some(size) = smaller_image(recipe) {
        let now = recipe.data.image_size;
        let what = format!("images of {size} instead of {now} pixels; another experiment");
        add(what, format!("data.image_size={size}"));
    }
    if let Some(name) = recipe.model.name.and_then(|name| name.facts().smaller)
        && recipe.model.weights.is_none()
    {
        add("a smaller backbone; another experiment".into(), format!("model.name={name}"));
    }
    candidates
}

/// Returns the next smaller image size: a multiple of the patch, or of the backbone's stride.
fn smaller_image(recipe: &Recipe) -> Option<usize> {
    // A program is exported for one size.
    let is_built = recipe.model.name.is_some() && recipe.program().is_none();
    let has_images = recipe.target().is_some_and(|target| target != Target::Tokens);
    if !(is_built && has_images) || recipe.data.resize == Resize::None {
        return None;
    }
    let step = recipe.model.patch.unwrap_or(STRIDE);
    let steps = recipe.data.image_size.checked_sub(1)?.checked_div(step)?;
    (steps > 0).then_some(steps * step)
}

/// Returns the start of progressive unfreezing: the model's last part in words, and globs of the frozen rest.
fn all_but_the_last(recipe: &Recipe) -> Option<(&'static str, Vec<String>)> {
    let part = recipe.model.name.map(ModelName::facts)?.last_part;
    let mut globs: Vec<_> = part.before.iter().map(|glob| (*glob).to_owned()).collect();
    if let Some(blocks) = part.blocks {
        let depth = recipe.model.depth?;
        // As in the guides, where the last of four stages of a backbone is trained first.
        let frozen = depth - depth.div_ceil(4);
        if frozen == 0 {
            return None;
        }
        globs.extend(below(blocks, frozen));
    }
    Some((part.words, globs))
}

/// Returns globs for everything in `prefix.0` to `prefix.(count - 1)`.
fn below(prefix: &str, count: usize) -> Vec<String> {
    let of_tens = |tens: usize| {
        let written = Some(tens).filter(|tens| *tens > 0).map(|tens| tens.to_string());
        let last = match (count - tens * 10).min(10) - 1 {
            0 => "0".to_owned(),
            last => format!("[0-{last}]"),
        };
        format!("{prefix}.{}{last}.*", written.unwrap_or_default())
    };
    (0..count.div_ceil(10)).map(of_tens).collect()
}

#[cfg(test)]
mod tests;
