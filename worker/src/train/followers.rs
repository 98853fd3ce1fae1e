//! The followers of a run.

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::Recipe;

use crate::checkpoint::{Checkpoints, MemoryCopies};
use crate::collectives::Ranks;
use crate::heartbeat::Heartbeat;
use crate::metrics::{MetricsLog, Progress};
use crate::run::followers::{Archive, ByClass, Copies, Figures, Health, ResumeOrigin};
use crate::run::{Follower, Followers};
use crate::setup::Setup;
use crate::setup::error::{Result, WorkerError};
use crate::setup::host::Host;
use crate::setup::loader::cores_per_rank;
use crate::setup::nodes::Agreed;

/// Returns the followers of a run in the order of their calls.
pub(super) fn followers<'a>(
    recipe: &Recipe,
    agreed: Agreed,
    setup: &Setup,
    env: &WorkerEnv,
    host: &Host,
    ranks: &Ranks,
    origin: ResumeOrigin<'a>,
) -> Result<Followers<'a>> {
    let course = &setup.course;
    let (plan, done) = (&course.plan, course.done);
    let (heartbeat, cores) = (Heartbeat::from_env(), cores_per_rank(env.local_world_size));
    let manifest = setup.resumed.as_ref().map(|resumed| &resumed.manifest);
    let run_dir = origin.run_dir;
    let mut list: Vec<Box<dyn Follower + 'a>> =
        vec![Box::new(Health::new(plan.total_steps)), Box::new(heartbeat.clone())];
    if env.rank == 0 {
        let path = run_dir.metrics();
        let metrics = MetricsLog::open(&path, done, origin.evaluation_missing)
            .map_err(|source| WorkerError::Write { path, source })?;
        list.push(Box::new(metrics.on_failure(recipe.checkpoint.on_failure)));
        let by_class = ByClass::new(run_dir, done, recipe.checkpoint.on_failure)
            .map_err(|source| WorkerError::Write { path: run_dir.evaluations(), source })?;
        list.push(Box::new(by_class));
    }
    let earlier = manifest.map(|manifest| manifest.metrics.clone());
    list.push(Box::new(Figures::new(earlier.unwrap_or_default())));
    let (total, epochs, every) = (plan.total_steps, plan.epochs(), recipe.log.every_steps);
    list.push(Box::new(Progress::new(host.style, total, epochs, every, done)));
    if let Some(place) = agreed.copies {
        let copies =
            MemoryCopies::new(place, ranks, host.device, cores, done).map_err(WorkerError::Checkpoints)?;
        list.push(Box::new(Copies::new(copies, heartbeat.clone(), done)));
    }
    list.push(Box::new(host.stop.clone()));
    let checkpoints = Checkpoints::new(run_dir, ranks, agreed.gathering, host.device, cores)
        .map_err(WorkerError::Checkpoints)?;
    let stop = host.stop.clone();
    list.push(Box::new(Archive::new(checkpoints, heartbeat, stop, course, recipe, origin)));
    Ok(Followers::new(list))
}
