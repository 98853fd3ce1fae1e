//! The timelines of a run's ranks.

use anyhow::{Context, bail};
use dtrain_common::files::none_if_missing;
use dtrain_common::run_dir::RunDir;
use dtrain_common::trace::{FileError, RankTrace};
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
    /// There is none, or one of a rank of the newest recording is damaged.
    pub(super) fn read(run_dir: &RunDir) -> anyhow::Result<Self> {
        let root = run_dir.root().display();
        let mut damaged = Vec::new();
        let mut ranks = Vec::new();
        for (rank, read) in Self::all(run_dir)? {
            match read {
                Ok(trace) => ranks.push(trace),
                Err(error) => damaged.push((rank, error)),
            }
        }
        ranks.sort_by_key(|trace| trace.meta.rank);
        let newest = ranks.iter().max_by_key(|trace| trace.meta.base_ns);
        let newest = newest.map(|trace| (trace.meta.world_size, trace.meta.steps));
        // An earlier recording may have had more ranks.
        let is_of_newest = |rank: usize| newest.is_none_or(|(size, _)| rank < size);
        if let Some((_, error)) = damaged.into_iter().find(|(rank, _)| is_of_newest(*rank)) {
            return Err(error.into());
        }
        let Some((size, steps)) = newest else {
            if !run_dir.root().is_dir() {
                bail!("{root} is no run directory; `dtrain runs` lists them");
            }
            bail!(
                "{root} has no timeline; record steps first: `dtrain launch RECIPE --set log.trace=10-12`, \
                 or if the run ended before these steps, name earlier ones"
            );
        };
        // Files of an earlier recording, with other ranks or other steps, are left out.
        ranks.retain(|trace| (trace.meta.world_size, trace.meta.steps) == (size, steps));
        let has = |rank: &usize| ranks.iter().any(|trace| trace.meta.rank == *rank);
        let missing = (0..size).filter(|rank| !has(rank)).collect();
        Ok(Self { ranks, missing })
    }

    fn all(run_dir: &RunDir) -> anyhow::Result<Vec<(usize, Result<RankTrace, FileError>)>> {
        let folder = run_dir.traces();
        let listed = none_if_missing(fs::read_dir(&folder));
        let listed = listed.with_context(|| format!("cannot list {}", folder.display()))?;
        let mut ranks = Vec::new();
        for entry in listed.into_iter().flatten() {
            let name = entry?.file_name();
            let name = name.to_string_lossy();
            let number = name.strip_prefix("rank_").and_then(|rest| rest.strip_suffix(".json.gz"));
            if let Some(rank) = number.and_then(|number| number.parse().ok()) {
                ranks.push((rank, RankTrace::read(&run_dir.trace(rank))));
            }
        }
        Ok(ranks)
    }
}
