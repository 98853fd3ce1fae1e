//! The sentence of a verdict: the bound, its part of a step, and the settings to change with their present values.

use super::shares::{Bound, Shares, percent};
use super::times::Times;

use dtrain_common::recipe::Reduce;
use dtrain_common::run_dir::RunDir;
use dtrain_common::text::{counted, grouped, size};
use dtrain_common::units::ByteSize;
use serde_json::Value;
use std::fs;

/// Reductions of fewer bytes cost latency rather than bandwidth.
const SMALL_BUCKET: u64 = 1 << 20;
/// Fewer reductions in a step are no cost.
const MANY_BUCKETS: usize = 8;
/// A smaller part of a step in communication is not mentioned beside another bound.
const ALSO_NOTABLE: f64 = 0.05;

/// The run's recipe and plan. Without them, settings are shown without their values.
pub(super) struct Settings {
    recipe: Option<toml::Table>,
    plan: Option<Value>,
}

impl Settings {
    pub(super) fn of(run_dir: &RunDir) -> Self {
        let read = |path| fs::read_to_string(path).ok();
        Self {
            recipe: read(run_dir.recipe()).and_then(|text| text.parse().ok()),
            plan: read(run_dir.plan()).and_then(|text| serde_json::from_str(&text).ok()),
        }
    }

    fn value(&self, section: &str, key: &str) -> Option<String> {
        let value = self.recipe.as_ref()?.get(section)?.get(key)?;
        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    }

    /// Names a setting with its value: `data.workers (now 1)`.
    fn setting(&self, section: &str, key: &str) -> String {
        let value = self.value(section, key);
        value.map_or_else(|| format!("{section}.{key}"), |value| format!("{section}.{key} (now {value})"))
    }

    /// Returns the sentence by a timeline, about this rank.
    pub(super) fn sentence(&self, bound: Bound, shares: &Shares, times: &Times) -> String {
        match bound {
            Bound::Data => self.of_data(times.rank, shares.data),
            Bound::Communication => self.of_communication(shares.communication, times),
            Bound::Launches => {
                let share = percent(shares.launches);
                let what = match times.gpu {
                    Some(gpu) => format!(
                        "the GPU of rank {} is idle for {share} of a step, between {} kernels",
                        times.rank,
                        grouped(gpu.kernels as u64)
                    ),
                    None => format!(
                        "{share} of a step passes in and between the shortest of {} operations",
                        grouped(times.operations as u64)
                    ),
                };
                let graph = if times.gpu.is_some() { "set model.compile = \"graph\", or " } else { "" };
                let remedy = format!("{graph}{}", self.larger_micro_batch());
                format!("bound by launches: {what}; {remedy}")
            }
            Bound::Arithmetic | Bound::Computing => {
                let place = if times.gpu.is_some() { "kernels" } else { "long operations" };
                format!(
                    "bound by arithmetic: {} of a step is in {place}; a step gets shorter by more ranks, \
                     precision.amp = \"bf16\", smaller inputs or less recomputation",
                    percent(shares.arithmetic)
                )
            }
        }
    }

    /// Names the setting that gives operations more samples. A rank without accumulation has no more of a step's.
    fn larger_micro_batch(&self) -> String {
        let number = |key| self.plan.as_ref().and_then(|plan| plan.get(key)?.as_u64());
        match (number("micro_batch"), number("grad_accum_steps")) {
            (Some(_), Some(1)) if number("nproc") == Some(1) => {
                format!(
                    "raise {}, whose samples an operation takes at once",
                    self.setting("train", "effective_batch")
                )
            }
            (Some(samples), Some(1)) => format!(
                "give a rank more than its {} of a step by fewer ranks or a larger train.effective_batch",
                counted(samples as usize, "sample")
            ),
            (Some(samples), _) => format!("raise memory.micro_batch (now {samples})"),
            _ => "raise memory.micro_batch".to_owned(),
        }
    }

    /// Returns the sentence by the metrics of rank 0.
    pub(super) fn sentence_of_metrics(&self, bound: Bound, shares: &Shares) -> String {
        match bound {
            Bound::Data => self.of_data(0, shares.data),
            Bound::Communication => format!(
                "bound by communication or a slower rank: rank 0 waits {} of a step for the other ranks; record \
                 steps with log.trace to see which",
                percent(shares.communication)
            ),
            _ => format!(
                "bound by computation: rank 0 waits {} of a step for samples and {} for the other ranks; record \
                 steps with log.trace to tell launches from arithmetic",
                percent(shares.data),
                percent(shares.communication)
            ),
        }
    }

    fn of_data(&self, rank: usize, share: f64) -> String {
        format!(
            "bound by data: rank {rank} waits {} of a step for samples; raise {} up to the cores of a rank, keep \
             decoded samples by data.cache, or store smaller files",
            percent(share),
            self.setting("data", "workers")
        )
    }

    fn of_communication(&self, share: f64, times: &Times) -> String {
        let what = format!(
            "bound by communication: {} of a step is in the wait for {}",
            percent(share),
            reductions(times)
        );
        let remedy = self.larger_buckets(times).unwrap_or_else(|| {
            format!(
                "set {} to \"bf16\", raise {} so that ranks agree less often, or use a faster network",
                self.setting("reduce", "compress"),
                self.setting("train", "effective_batch")
            )
        });
        format!("{what}; {remedy}")
    }

    /// Returns the clause about small buckets of a step that is bound by something else.
    pub(super) fn also_small_buckets(&self, shares: &Shares, times: &Times) -> Option<String> {
        let remedy = self.larger_buckets(times).filter(|_| shares.communication >= ALSO_NOTABLE)?;
        let share = percent(shares.communication);
        Some(format!("; also {share} of a step is communication, with {}: {remedy}", reductions(times)))
    }

    /// Returns the remedy for many small reductions, if the recipe made them small.
    fn larger_buckets(&self, times: &Times) -> Option<String> {
        let (count, mean) = buckets(times);
        let stated = self.value("reduce", "bucket").and_then(|text| text.parse::<ByteSize>().ok());
        let is_small = stated.is_none_or(|bytes| bytes.0 < Reduce::default().bucket.0);
        (count >= MANY_BUCKETS && mean < SMALL_BUCKET && is_small)
            .then(|| format!("raise {} to the default, 25 MiB", self.setting("reduce", "bucket")))
    }
}

/// Returns the number of buckets of a step and their mean bytes.
fn buckets(times: &Times) -> (usize, u64) {
    let all = times.buckets.len();
    (all / times.steps.max(1), times.buckets.iter().sum::<u64>() / (all as u64).max(1))
}

fn reductions(times: &Times) -> String {
    let (count, mean) = buckets(times);
    format!("{} of {} on average", counted(count, "reduction"), size(mean))
}
