//! Rank 0's work before the other ranks start: it surveys the data and chooses where the run begins.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use dtrain_common::env::WorkerEnv;
use dtrain_common::files;
use dtrain_common::manifest::Manifest;
use dtrain_common::run_dir::{FileSystem, Resume, RunDir, RunDirError, RunLock, Start, follow};
use dtrain_recipe::Recipe;

use crate::checkpoint::{self, ChosenCopies, NewestCopies};
use crate::collectives::Rendezvous;
use crate::planning::start;
use crate::request::Request;
use crate::setup::Setup;
use crate::setup::error::WorkerError;
use crate::setup::facts::{self, RankFacts};
use crate::setup::fingerprint;
use crate::setup::host::Host;
use crate::setup::opening::{ForNodes, Opening};
use crate::setup::survey::Surveyed;
use crate::tasks::BuildTask;
use crate::train::rollback::set_later_steps_aside;

/// Time to wait for the end of a rank 0 whose launcher was killed.
const TAKEOVER_TIMEOUT: Duration = Duration::from_secs(60);

/// A run that rank 0 has prepared.
pub(crate) struct Prepared {
    pub(crate) opening: Opening,
    pub(crate) setup: Setup,
    /// Rank 0 holds them until the run ends.
    pub(crate) claims: Vec<RunLock>,
}

/// Prepares the run on rank 0: claims the run directory, surveys the data, and builds everything once.
pub(crate) fn prepare_run<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
    rendezvous: &Rendezvous,
) -> Result<Prepared, WorkerError> {
    let Surveyed { facts: survey, lists } = Surveyed::of::<T>(recipe)?;
    let default = || RunDir::default_root(&request.recipe, SystemTime::now());
    let run_dir = RunDir::new(request.run_dir.clone().unwrap_or_else(default));
    let (mut resume_from, mut claims) = claim(request, recipe, &run_dir)?;
    claims.push(run_dir.claim_training(TAKEOVER_TIMEOUT)?);
    let file_system = run_dir.probe().map_err(RunDirError::from)?;
    let copies = run_dir.settle_copies()?;
    let completed = run_dir.recover()?;
    // Completing a rollback may have moved the named checkpoint.
    if let (Resume::From(named), Some(completed)) = (&resume_from, &completed)
        && let Some(moved) = completed.moved(named)
    {
        resume_from = Resume::From(moved);
    }
    if let Resume::From(named) = &mut resume_from {
        *named = follow(named);
    }
    let begun = Instant::now();
    let (resume, in_memory) =
        choose_checkpoint(host.copies.as_deref(), &resume_from, env, rendezvous, &run_dir)?;
    let chosen_in = begun.elapsed();
    checkpoint::clear(&run_dir);
    let mut opening = Opening {
        run_dir: run_dir.root().to_owned(),
        resume,
        copies: in_memory,
        data: fingerprint::digest_of_run(&survey),
        // Building the task has reported a file that cannot be read, or will.
        program: recipe.model.file.as_deref().and_then(|file| files::hash(file).ok()),
        survey,
        lists,
        ..Opening::default()
    };
    // Other nodes send the missing shards later.
    if let (Some(_), Some(folder)) = (opening.missing_shards(), &opening.resume) {
        opening.unreadable = Some(Manifest::read(folder).map_err(|error| WorkerError::Resume(error.into()))?);
    }
    let mut setup = start::build_setup::<T>(request, recipe, &opening, env, host)?;
    setup.notes.extend(copies.iter().map(ToString::to_string));
    setup.notes.extend(describe_file_system(file_system, &run_dir));
    if !env.is_one_node() {
        let data = fingerprint::digest(&opening.survey);
        let own = RankFacts::of_rank(recipe, host.device, Some(&data), request.prepared)?;
        facts::compare(rendezvous, own)?;
    }
    if let (Some(checkpoint), Some(resumed)) = (opening.resume.take(), &mut setup.resumed) {
        // Choosing a checkpoint includes its verification.
        resumed.took += chosen_in;
        set_later_steps_aside(recipe, &run_dir, &checkpoint, completed, &mut opening, &mut setup)?;
    }
    if !env.is_one_node() {
        let manifest = setup.resumed.as_ref().map(|resumed| resumed.manifest.clone());
        opening.nodes = Some(ForNodes::offer(&run_dir, env, manifest)?);
    }
    Ok(Prepared { opening, setup, claims })
}

/// Claims the run directory unless a launcher has done so, and returns where the run begins.
fn claim(
    request: &Request,
    recipe: &Recipe,
    run_dir: &RunDir,
) -> Result<(Resume, Vec<RunLock>), WorkerError> {
    let resume_from = request.resume.clone();
    if request.prepared {
        return Ok((resume_from, Vec::new()));
    }
    let (start, claim) = run_dir.begin(&recipe.resolved()?, &resume_from)?;
    // The launcher prints the note itself.
    if let Some(note) = claim.no_lock_message() {
        tracing::warn!("{note}");
    }
    let resume_from = match (&resume_from, start) {
        (Resume::From(named), Start::Resume(checkpoint)) => match run_dir.resumes_newest(named)? {
            true => Resume::Auto,
            false => Resume::From(checkpoint),
        },
        _ => resume_from,
    };
    Ok((resume_from, vec![claim]))
}

/// Returns what the file system of the run directory lacks, in sentences.
fn describe_file_system(found: FileSystem, run_dir: &RunDir) -> Vec<String> {
    let folder = run_dir.checkpoints();
    let folder = folder.display();
    let mut notes = Vec::new();
    if !found.links {
        notes.push(format!(
            "{folder} has no symbolic links: `latest` and `best` there are files that contain a checkpoint's name"
        ));
    }
    if !found.sync {
        notes.push(format!(
            "warning: the file system of {folder} does not write through to the disk: after a power failure, resume from an \
             earlier checkpoint if the newest one is damaged"
        ));
    }
    notes
}

/// Returns the checkpoint with the latest step, and the copies of which it is one, if it is in memory.
fn choose_checkpoint(
    copies: Option<&Path>,
    resume: &Resume,
    env: &WorkerEnv,
    rendezvous: &Rendezvous,
    run_dir: &RunDir,
) -> Result<(Option<PathBuf>, Option<ChosenCopies>), WorkerError> {
    let newest = copies.map(|folder| newest_copies(folder, env, rendezvous));
    let copy = newest.transpose()?.flatten();
    let chosen = match checkpoint::choose(run_dir, resume) {
        // The copy is intact, whatever the state of the disk.
        Err(_) if copy.is_some() => None,
        chosen => chosen?,
    };
    let manifest = chosen.as_deref().map(Manifest::read).transpose();
    let on_disk =
        manifest.map_err(|error| WorkerError::Resume(error.into()))?.map_or(0, |manifest| manifest.step);
    Ok(match copy {
        Some(newest) if newest.step > on_disk => (Some(newest.slot), Some(newest.copies)),
        _ => (chosen, None),
    })
}

/// Returns the newest step that the nodes have completely.
/// Waits for the other nodes if shards are missing here.
fn newest_copies(
    folder: &Path,
    env: &WorkerEnv,
    rendezvous: &Rendezvous,
) -> Result<Option<NewestCopies>, WorkerError> {
    let mut hosts = Vec::new();
    let mut copies_of_others = || {
        let others = if env.is_one_node() { Vec::new() } else { facts::of_others(rendezvous)? };
        hosts.extend(others.iter().map(|facts| facts.host.clone()));
        let of_rank =
            |(index, facts): (usize, RankFacts)| facts.copies.into_iter().map(move |copy| (index + 1, copy));
        Ok::<_, WorkerError>(others.into_iter().enumerate().flat_map(of_rank).collect())
    };
    let mut newest = checkpoint::newest_copies(folder, &mut copies_of_others)?;
    if let (Some(NewestCopies { copies, .. }), false) = (&mut newest, env.is_one_node()) {
        let of_sources = copies.sources.iter().filter_map(|source| hosts.get(source.rank - 1).cloned());
        copies.hosts = std::iter::once(dtrain_common::host::name()).chain(of_sources).collect();
    }
    Ok(newest)
}
