//! The followers of a run.

use dtrain_common::env::WorkerEnv;
use dtrain_recipe::Recipe;

use super::telemetry;
use crate::checkpoint::{Checkpoints, MemoryCopies};
use crate::collectives::Ranks;
use crate::heartbeat::Heartbeat;
use crate::metrics::{MetricsLog, Progress};
use crate::run::followers::{
    Archive, ByClass, Copies, Figures, Health, Judge, ResumeOrigin, SampleFolders, TelemetryHandle, Tracer,
};
use crate::run::shown::Show;
use crate::run::{Follower, Followers};
use crate::setup::Setup;
use crate::setup::error::{Result, WorkerError};
use crate::setup::host::Host;
use crate::setup::loader::cores_per_rank;
use crate::setup::nodes::Agreed;

/// The followers of a run in the order of their calls.
pub(super) struct Following<'a> {
    pub(super) followers: Followers<'a>,
    /// One of them, which takes lines after them.
    pub(super) telemetry: TelemetryHandle,
}

/// Makes the followers of a run.
pub(super) fn followers<'a>(
    recipe: &Recipe,
    agreed: Agreed,
    setup: &Setup,
    env: &WorkerEnv,
    host: &Host,
    ranks: &Ranks,
    origin: ResumeOrigin<'a>,
) -> Result<Following<'a>> {
    let course = &setup.course;
    let (plan, done) = (&course.plan, course.done);
    let (heartbeat, cores) = (Heartbeat::from_env(), cores_per_rank(env.local_world_size));
    let manifest = setup.resumed.as_ref().map(|resumed| &resumed.manifest);
    let run_dir = origin.run_dir;
    let telemetry = TelemetryHandle::default();
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
        list.push(Box::new(SampleFolders::new(run_dir)));
        telemetry.0.replace(telemetry::start(recipe, setup, run_dir));
        list.push(Box::new(telemetry.clone()));
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
    let show = Show::of(recipe, setup.replica.model.task.facts(), env.rank);
    list.push(Box::new(Archive::new(checkpoints, heartbeat.clone(), stop, course, recipe, origin, show)));
    if let (Some(samples), 0) = (recipe.train.overfit, env.rank) {
        list.push(Box::new(Judge::new(samples, plan.total_steps)));
    }
    if let Some(steps) = recipe.log.trace {
        let rank = (env.rank, env.world_size);
        list.push(Box::new(Tracer::new(steps, run_dir, rank, host.device, heartbeat)));
    }
    Ok(Following { followers: Followers::new(list), telemetry })
}
