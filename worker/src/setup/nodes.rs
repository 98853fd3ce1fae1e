//! The run directory over several nodes: whether all nodes share it, and who writes and reads otherwise.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::env::WorkerEnv;
use dtrain_common::files::{remedy, temporary_folder};
use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::RunDir;
use tch::Tensor;

use crate::checkpoint::{self, CopiesPlace, Gathering, Neighbours};
use crate::collectives::{Ranks, ReduceOp, Rendezvous};
use crate::run::TrainError;
use crate::setup::Setup;
use crate::setup::error::{Result, WorkerError};
use crate::setup::opening::Opening;

/// The knowledge of this rank about rank 0's run directory, as numbers that the ranks compare: 1 is yes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct View {
    /// Whether this rank sees the run directory and can write there.
    shares: i64,
    /// Whether it can read the checkpoint to resume from.
    reads: i64,
    /// Whether exactly the first ranks are on rank 0's node.
    in_order: i64,
}

/// The decisions on which the ranks have agreed.
pub(crate) struct Agreed {
    /// How checkpoints are written.
    pub(crate) gathering: Gathering,
    /// The place of copies in memory, if all ranks keep them.
    pub(crate) copies: Option<CopiesPlace>,
}

/// Adapts rank 0's message to this rank's file system: its own path of a shared run directory, and a
/// checkpoint that it cannot read. `own` is this rank's own `--run-dir`, `copies` its folder of copies in memory.
pub(crate) fn adapt(
    opening: &mut Opening,
    own: Option<PathBuf>,
    copies: Option<&Path>,
    env: &WorkerEnv,
) -> View {
    let mut view = View { shares: 1, reads: 1, in_order: 1 };
    let Some(nodes) = &opening.nodes else { return view };
    view.in_order = ((env.group_rank == nodes.node) == (env.rank < nodes.local_size)).into();
    if opening.missing_shards().is_some() {
        view.reads = 0;
        opening.unreadable.clone_from(&nodes.manifest);
    }
    if env.group_rank == nodes.node {
        return view;
    }
    let own = own.unwrap_or_else(|| opening.run_dir.clone());
    let shares = own.join(&nodes.token).exists();
    let written = if shares { try_writing(&RunDir::new(&own)) } else { Ok(()) };
    view.shares = (shares && written.is_ok()).into();
    if let (Err(error), 0) = (&written, env.local_rank) {
        tracing::warn!(
            "this node cannot write its part of a checkpoint into {}: {error}{}",
            own.display(),
            remedy(error)
        );
    }
    if !shares && env.local_rank == 0 {
        let begins = nodes.manifest.as_ref().map_or(0, |manifest| manifest.step);
        warn_of_later(&RunDir::new(&own), begins);
    }
    if let (Some(resume), 1) = (&mut opening.resume, view.reads) {
        let on_disk = || {
            let inside = resume.strip_prefix(&opening.run_dir).ok().filter(|_| shares);
            let path = inside.map_or_else(|| resume.clone(), |inside| own.join(inside));
            let files = |manifest: &Manifest| (manifest.step, manifest.files.clone());
            let found = Manifest::read(&path).ok()?;
            (nodes.manifest.as_ref().map(files) == Some(files(&found))).then_some(path)
        };
        let found = match &opening.copies {
            Some(chosen) => copies.and_then(|folder| chosen.complete_in(folder)),
            None => on_disk(),
        };
        match found {
            Some(path) => *resume = path,
            None => {
                view.reads = 0;
                opening.unreadable.clone_from(&nodes.manifest);
            }
        }
    }
    if shares {
        opening.run_dir = own;
    }
    view
}

/// Tries to write where the ranks of this node write their parts of checkpoints: rank 0 has tried only its own node.
fn try_writing(run_dir: &RunDir) -> io::Result<()> {
    let checkpoints = Some(run_dir.checkpoints()).filter(|folder| folder.is_dir());
    for folder in [run_dir.root()].into_iter().chain(checkpoints.as_deref()) {
        let own = temporary_folder(folder)?;
        fs::write(own.path().join("file"), b"a")?;
    }
    Ok(())
}

/// Warns if this node has a later checkpoint than the one with which the run begins.
fn warn_of_later(own: &RunDir, begins: u64) {
    if let Ok(Some((folder, manifest))) = own.newest_checkpoint()
        && manifest.step > begins
    {
        tracing::warn!(
            "this node has {}, but the run begins after step {begins}, as on rank 0's node; to resume from that \
             checkpoint, let this node lead",
            folder.display()
        );
    }
}

/// Agrees with all ranks whether they share the run directory, and keep copies in memory in `folder`. Sends the
/// state to ranks that cannot read it. Every rank calls this.
pub(crate) fn agree(
    opening: &Opening,
    view: View,
    folder: Option<PathBuf>,
    setup: &mut Setup,
    ranks: &Ranks,
    rendezvous: &Rendezvous,
    env: &WorkerEnv,
) -> Result<Agreed> {
    let first = env.rank - env.local_rank;
    let node = first..first + env.local_world_size;
    let place = |folder, attempt, neighbours| CopiesPlace { folder, attempt, node, neighbours };
    let Some(nodes) = &opening.nodes else {
        let copies = folder.map(|folder| place(folder, 0, None));
        return Ok(Agreed { gathering: Gathering::Shared, copies });
    };
    let facts = [view.shares, view.reads, view.in_order, folder.is_some().into()];
    let all = reduced(&facts, ReduceOp::Min, ranks)?;
    let [shared, readable, in_order, keeps] = [0, 1, 2, 3].map(|fact| all[fact] == 1);
    if ranks.rank() == 0 {
        let _ = fs::remove_file(opening.run_dir.join(&nodes.token));
    }
    let mut neighbours = None;
    if opening.missing_shards().is_some() || (keeps && setup.course.stages.layout.shards > 1) {
        let mut of_ranks = vec![0; ranks.size()];
        of_ranks[ranks.rank()] = env.group_rank as i64;
        let of_ranks = reduced(&of_ranks, ReduceOp::Sum, ranks)?;
        let messages = rendezvous.connect_messages("copies")?;
        neighbours = messages.map(|messages| Arc::new(Neighbours::new(messages, &of_ranks)));
    }
    if let (Some(copies), Some(neighbours)) = (opening.missing_shards(), &neighbours) {
        copies.gather(folder.as_deref(), ranks.rank(), neighbours).map_err(WorkerError::Resume)?;
        if let (Some(slot), 0) = (&opening.resume, ranks.rank()) {
            checkpoint::restore(slot, &mut setup.replica.model).map_err(WorkerError::Resume)?;
        }
    }
    if let (Some(folder), false) = (&opening.resume, readable) {
        checkpoint::send_state(folder, &mut setup.replica.model, ranks).map_err(WorkerError::Resume)?;
    }
    let copies = folder.filter(|_| keeps).map(|folder| place(folder, nodes.attempt, neighbours));
    if shared {
        return Ok(Agreed { gathering: Gathering::Shared, copies });
    }
    if ranks.rank() == 0 {
        tracing::info!(
            "not all nodes see the run directory and can write there: rank 0 gathers checkpoints and writes them"
        );
    }
    let writers = if in_order { nodes.local_size } else { 1 };
    let messages = rendezvous.connect_messages("checkpoints")?;
    let gathering = messages.map_or(Gathering::Shared, |messages| Gathering::sent(writers, messages));
    Ok(Agreed { gathering, copies })
}

/// Returns the values of all ranks, reduced. Every rank calls this.
fn reduced(own: &[i64], op: ReduceOp, ranks: &Ranks) -> Result<Vec<i64>> {
    let all = Tensor::from_slice(own);
    ranks.all_reduce(&all, op).and_then(|work| work.wait()).map_err(TrainError::from)?;
    Ok(Vec::<i64>::try_from(all)?)
}

/// Returns rank 0's manifest on every rank.
pub(crate) fn send_manifest(own: Option<&Manifest>, ranks: &Ranks) -> Result<Manifest> {
    let bytes = own.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let sent = checkpoint::broadcast_bytes(&bytes, ranks).map_err(WorkerError::Evaluate)?;
    Ok(serde_json::from_slice(&sent)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::setup::opening::ForNodes;

    use super::*;

    /// Returns what a rank of another node sees of a run directory whose checkpoints are a link to `checkpoints`.
    fn view(checkpoints: &Path) -> (View, Opening, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().to_owned();
        fs::write(own.join("token"), "").unwrap();
        std::os::unix::fs::symlink(checkpoints, own.join("checkpoints")).unwrap();
        let nodes = ForNodes { token: "token".into(), node: 0, local_size: 1, ..ForNodes::default() };
        let mut opening = Opening { run_dir: "elsewhere".into(), nodes: Some(nodes), ..Opening::default() };
        let env = WorkerEnv { rank: 1, world_size: 2, group_rank: 1, ..WorkerEnv::single() };
        let view = adapt(&mut opening, Some(own.clone()), None, &env);
        (view, opening, own)
    }

    #[test]
    fn a_node_that_sees_the_run_directory_and_cannot_write_there_shares_it_for_reading_alone() {
        let writable = tempfile::tempdir().unwrap();
        let (seen, opening, own) = view(writable.path());
        assert_eq!((seen.shares, opening.run_dir), (1, own));
        assert_eq!(fs::read_dir(writable.path()).unwrap().count(), 0);
        // Nobody can create a folder in /proc.
        let (seen, opening, own) = view(Path::new("/proc/self"));
        assert_eq!((seen.shares, opening.run_dir), (0, own));
    }
}
