//! What else saves memory: the advice of the guides, each line computed for this recipe and left out where it has no effect.

use serde::{Deserialize, Serialize};

use super::cost::{Share, relative_time};
use super::solve::Solver;
use super::{Cut, Prediction, Predictor, Subject};
use crate::batch::Partition;
use crate::recipe::{Amp, ModelName, Recipe, Resize, Task};

/// One way to save memory, and its computed effect against a cut. Predicted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Advice {
    /// What to do, in words.
    pub what: String,
    /// The setting that does it, as `--set` takes it; none where a section is to be removed.
    pub setting: Option<String>,
    /// The highest memory with it, in bytes.
    pub peak: u64,
    /// So many bytes less.
    pub saves: u64,
    /// The expected time of a step, against the cut's.
    pub relative_time: f64,
}

/// Something to try.
struct Lever {
    what: String,
    setting: String,
    /// Whether the setting goes over the recipe's for the prediction; otherwise the cut says it all.
    overrides: bool,
    cut: Cut,
}

/// Images are made smaller by so many pixels where the model has no patches: the strides of the backbones.
const STRIDE: usize = 32;

/// Every way that saves memory against `base`, a cut of this recipe. What the model does not allow, such as images that its
/// patches do not divide, is no advice.
pub(super) fn advise<P: Predictor + ?Sized>(
    recipe: &Recipe,
    solver: &mut Solver<'_, P>,
    base: &Prediction,
    half: Amp,
) -> Vec<Advice> {
    let subject = solver.subject();
    let share = |cut: &Cut| {
        let partition = Partition::new(subject.effective_batch, cut.ranks, Some(cut.micro_batch)).ok()?;
        Some(Share {
            samples: partition.rank_range(0).len(),
            steps: partition.grad_accum_steps(),
        })
    };
    let Some(base_share) = share(&base.cut) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for lever in levers(recipe, subject, base.cut, half) {
        let overrides: Vec<_> = lever
            .overrides
            .then(|| lever.setting.clone())
            .into_iter()
            .collect();
        let (Ok(prediction), Some(lever_share)) =
            (solver.predict_with(&overrides, lever.cut), share(&lever.cut))
        else {
            continue;
        };
        let saves = base.peak.saturating_sub(prediction.peak);
        if saves == 0 {
            continue;
        }
        found.push(Advice {
            what: lever.what,
            setting: Some(lever.setting),
            peak: prediction.peak,
            saves,
            relative_time: relative_time((base, base_share), (&prediction, lever_share), subject.segments),
        });
    }
    if recipe.ema.is_some() && base.owners.ema > 0 {
        // It is there in every moment, so that without it every moment takes so much less.
        found.push(Advice {
            what: "no moving average of the weights: remove [ema]".into(),
            setting: None,
            peak: base.peak.saturating_sub(base.owners.ema),
            saves: base.owners.ema,
            relative_time: 1.0,
        });
    }
    found.sort_by_key(|advice| std::cmp::Reverse(advice.saves));
    found
}

fn levers(recipe: &Recipe, subject: &Subject, base: Cut, half: Amp) -> Vec<Lever> {
    let by_cut = |what: String, setting: String, cut| Lever {
        what,
        setting,
        overrides: false,
        cut,
    };
    let by_setting = |what: String, setting: String| Lever {
        what,
        setting,
        overrides: true,
        cut: base,
    };
    let mut levers = Vec::new();
    if base.recompute < subject.segments {
        let cut = Cut {
            recompute: subject.segments,
            ..base
        };
        let what = format!("compute all {} segments again in backward", subject.segments);
        levers.push(by_cut(what, "memory.recompute=on".into(), cut));
    }
    if base.micro_batch > 1
        && let Ok(partition) = Partition::new(
            subject.effective_batch,
            base.ranks,
            Some(base.micro_batch.div_ceil(2)),
        )
        && partition.smallest_micro_batch() >= subject.min_micro_batch
    {
        let micro_batch = partition.micro_batch();
        let cut = Cut { micro_batch, ..base };
        let what = format!(
            "half the micro-batch: {micro_batch} instead of {}",
            base.micro_batch
        );
        levers.push(by_cut(what, format!("memory.micro_batch={micro_batch}"), cut));
    }
    if recipe.model.freeze.is_empty()
        && let Some((what, globs)) = all_but_the_last(recipe)
    {
        let globs: Vec<_> = globs.iter().map(|glob| format!("{glob:?}")).collect();
        levers.push(by_setting(what, format!("model.freeze=[{}]", globs.join(","))));
    }
    if base.ranks > 1 && !base.shard_optimizer {
        let cut = Cut {
            shard_optimizer: true,
            ..base
        };
        let what = format!(
            "every rank keeps its part of the optimizer's state: {} ranks",
            base.ranks
        );
        levers.push(by_cut(what, "memory.shard_optimizer=true".into(), cut));
    }
    if base.amp == Amp::Off {
        let what = format!("matrix products and convolutions in {half}; rounds otherwise");
        levers.push(by_cut(
            what,
            format!("precision.amp={half}"),
            Cut { amp: half, ..base },
        ));
    }
    if let Some(size) = smaller_image(recipe) {
        let what = format!(
            "images of {size} instead of {} pixels; another experiment",
            recipe.data.image_size
        );
        levers.push(by_setting(what, format!("data.image_size={size}")));
    }
    if let Some(name) = recipe.model.name.and_then(smaller_backbone)
        && recipe.model.weights.is_none()
    {
        let what = "a smaller backbone; another experiment".to_owned();
        levers.push(by_setting(what, format!("model.name={name}")));
    }
    levers
}

/// The image size one step smaller: the next multiple of the patch, or of the strides of a backbone.
fn smaller_image(recipe: &Recipe) -> Option<usize> {
    let has_images = matches!(recipe.task, Task::Classify | Task::Segment | Task::Torchscript);
    if !has_images || recipe.data.resize == Resize::None {
        return None;
    }
    let step = match recipe.model.name {
        Some(ModelName::Vit) => recipe.model.patch?,
        _ => STRIDE,
    };
    let steps = recipe.data.image_size.checked_sub(1)?.checked_div(step)?;
    (steps > 0).then_some(steps * step)
}

fn smaller_backbone(name: ModelName) -> Option<ModelName> {
    match name {
        ModelName::Resnet152 => Some(ModelName::Resnet101),
        ModelName::Resnet101 => Some(ModelName::Resnet50),
        ModelName::Resnet50 => Some(ModelName::Resnet34),
        ModelName::Resnet34 => Some(ModelName::Resnet18),
        _ => None,
    }
}

/// What progressive unfreezing begins with: everything frozen but the last part of the model. In words, and as globs.
fn all_but_the_last(recipe: &Recipe) -> Option<(String, Vec<String>)> {
    let progressive = |part: &str| format!("progressive unfreezing, at first: train {part} alone");
    let owned = |globs: &[&str]| globs.iter().map(|glob| (*glob).to_owned()).collect::<Vec<_>>();
    let name = recipe.model.name?;
    if name.is_resnet() {
        let globs = owned(&["conv1.*", "bn1.*", "layer[1-3].*"]);
        return Some((progressive("layer4 and fc"), globs));
    }
    let depth = recipe.model.depth?;
    // As the guides' backbones, whose last of four stages comes first.
    let frozen = depth - depth.div_ceil(4);
    match name {
        ModelName::Unet => Some((progressive("the decoder"), owned(&["inc.*", "down*"]))),
        ModelName::Vit if frozen > 0 => {
            let mut globs = owned(&["cls_token", "pos_embed", "patch_embed.*"]);
            globs.extend(below("blocks", frozen));
            Some((progressive("the last quarter of the blocks"), globs))
        }
        ModelName::Gpt if frozen > 0 => {
            // The embedding of tokens is also the head.
            let mut globs = owned(&["transformer.wpe.*"]);
            globs.extend(below("transformer.h", frozen));
            Some((progressive("the last quarter of the blocks and the head"), globs))
        }
        _ => None,
    }
}

/// Globs for `prefix.0` to `prefix.(count - 1)` and what is in them.
fn below(prefix: &str, count: usize) -> Vec<String> {
    let glob = |tens: &str, last: usize| match last {
        9 => format!("{prefix}.{tens}[0-9].*"),
        0 => format!("{prefix}.{tens}0.*"),
        _ => format!("{prefix}.{tens}[0-{last}].*"),
    };
    (0..count.div_ceil(10))
        .map(|tens| {
            let last = (count - tens * 10).min(10) - 1;
            let written = if tens == 0 {
                String::new()
            } else {
                tens.to_string()
            };
            glob(&written, last)
        })
        .collect()
}

#[cfg(test)]
mod tests;
