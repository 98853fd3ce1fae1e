//! The message of rank 0 to the other ranks before a run begins.

use std::fs;
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use dtrain_common::env::WorkerEnv;
use dtrain_common::manifest::{BestSoFar, Manifest};
use dtrain_common::run_dir::RunDir;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::checkpoint::ChosenCopies;
use crate::data::packed::Packed;
use crate::setup::error::{Result, WorkerError};

/// The message of rank 0 to the other ranks before the run begins.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Opening {
    pub(crate) run_dir: PathBuf,
    pub(crate) resume: Option<PathBuf>,
    /// The copies in memory of which `resume` is rank 0's; None for a checkpoint on the disk.
    pub(crate) copies: Option<ChosenCopies>,
    /// Whether `resume` belongs to another run, and stays there.
    pub(crate) is_foreign: bool,
    /// The best checkpoint so far, if this run has its folder.
    pub(crate) best: Option<BestSoFar>,
    pub(crate) survey: Value,
    /// The lists to which the survey refers, in this rank's memory.
    #[serde(skip)]
    pub(crate) lists: Vec<Packed<u8>>,
    pub(crate) data: String,
    /// The hash of `model.file`.
    pub(crate) program: Option<String>,
    /// Only over several nodes.
    pub(crate) nodes: Option<ForNodes>,
    /// The manifest of `resume`, if this rank cannot read it: rank 0 sends the state later.
    #[serde(skip)]
    pub(crate) unreadable: Option<Manifest>,
}

impl Opening {
    /// Returns the copies in memory to resume from, if rank 0's node lacks shards of them.
    pub(crate) fn missing_shards(&self) -> Option<&ChosenCopies> {
        self.copies.as_ref().filter(|copies| !copies.sources.is_empty())
    }

    /// Returns the opening of a rehearsal, which writes nothing and resumes from nothing.
    pub(crate) fn rehearsed(survey: Value) -> Self {
        Self { survey, ..Self::default() }
    }
}

/// The part of rank 0's message for several nodes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct ForNodes {
    /// A file that rank 0 has written into the run directory.
    pub(crate) token: PathBuf,
    /// A number that no other attempt has.
    pub(crate) attempt: u64,
    /// Rank 0's node, and the number of ranks there.
    pub(crate) node: usize,
    pub(crate) local_size: usize,
    /// The manifest of the checkpoint that the run resumes from.
    pub(crate) manifest: Option<Manifest>,
}

impl ForNodes {
    /// Writes the token. Rank 0 calls this.
    pub(crate) fn offer(run_dir: &RunDir, env: &WorkerEnv, manifest: Option<Manifest>) -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // A killed run's token is removed as a temporary file.
        let token = PathBuf::from(format!(".dtrain-shared-{}-{}.tmp", std::process::id(), now.as_nanos()));
        let path = run_dir.root().join(&token);
        let write = fs::create_dir_all(run_dir.root()).and_then(|()| fs::write(&path, b""));
        write.map_err(|source| WorkerError::Write { path, source })?;
        let attempt = now.as_nanos() as u64;
        Ok(Self { token, attempt, node: env.group_rank, local_size: env.local_world_size, manifest })
    }
}
