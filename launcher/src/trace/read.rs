//! The timelines of a run's ranks.

use anyhow::{Context, bail};
use dtrain_common::files::none_if_missing;
use dtrain_common::run_dir::RunDir;
use dtrain_common::trace::RankTrace;
use std::fs;

/// The timelines of one recording, by rank.
#[derive(Debug)]
pub(super) struct Traces {
    pub(super) ranks: Vec<RankTrace>,
    /// Ranks of the run whose files are not there, or are of other steps.
    pub(super) missing: Vec<usize>,
}

impl Traces {
    /// Reads the files of a run.
    ///
    /// # Errors
    ///
    /// There is none, or one is damaged.
    pub(super) fn read(run_dir: &RunDir) -> anyhow::Result<Self> {
        let root = run_dir.root().display();
        let mut ranks = Self::all(run_dir)?;
        ranks.sort_by_key(|trace| trace.meta.rank);
        let Some(newest) = ranks.iter().max_by_key(|trace| trace.meta.base_ns) else {
            if !run_dir.root().is_dir() {
                bail!("{root} is no run directory; `dtrain runs` lists them");
            }
            bail!(
                "{root} has no timeline; record steps first: `dtrain launch RECIPE --set log.trace=10-12`, \
                 or if the run ended before these steps, name earlier ones"
            );
        };
        // Files of an earlier recording, with other ranks or other steps, are left out.
        let (size, steps) = (newest.meta.world_size, newest.meta.steps);
        ranks.retain(|trace| (trace.meta.world_size, trace.meta.steps) == (size, steps));
        let has = |rank: &usize| ranks.iter().any(|trace| trace.meta.rank == *rank);
        let missing = (0..size).filter(|rank| !has(rank)).collect();
        Ok(Self { ranks, missing })
    }

    fn all(run_dir: &RunDir) -> anyhow::Result<Vec<RankTrace>> {
        let folder = run_dir.traces();
        let listed = none_if_missing(fs::read_dir(&folder));
        let listed = listed.with_context(|| format!("cannot list {}", folder.display()))?;
        let mut ranks = Vec::new();
        for entry in listed.into_iter().flatten() {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix("rank_").and_then(|rest| rest.strip_suffix(".json.gz"));
            if let Some(rank) = number.and_then(|number| number.parse().ok()) {
                ranks.push(RankTrace::read(&run_dir.trace(rank))?);
            }
        }
        Ok(ranks)
    }
}
