//! Connects the ranks of a run: rank 0 decides how it begins.

use dtrain_common::env::WorkerEnv;
use dtrain_common::progress::Progress;
use dtrain_recipe::Recipe;

use crate::collectives::{Ranks, Rendezvous};
use crate::planning::start;
use crate::request::Request;
use crate::setup::error::Result;
use crate::setup::facts;
use crate::setup::host::Host;
use crate::setup::images;
use crate::setup::nodes::{self, Agreed};
use crate::setup::opening::Opening;
use crate::setup::survey;
use crate::tasks::BuildTask;
use crate::train::lead::{Prepared, prepare_run};

/// A run in which all ranks are connected.
pub(super) struct Joined {
    pub(super) run: Prepared,
    pub(super) ranks: Ranks,
    pub(super) agreed: Agreed,
}

/// Rank 0 decides how the run begins, or refuses it; the other ranks follow.
pub(super) fn join_run<T: BuildTask + 'static>(
    request: &Request,
    recipe: &Recipe,
    env: &WorkerEnv,
    host: &Host,
) -> Result<Joined> {
    let rendezvous = Rendezvous::open(env.clone())?;
    let copies = host.copies.as_deref();
    let (view, mut run) = if env.rank == 0 {
        let mut run = prepare_run::<T>(request, recipe, env, host, &rendezvous).inspect_err(|error| {
            rendezvous.announce_failure(&error.to_string(), error.exit_status().code())
        })?;
        rendezvous.announce(&serde_json::to_vec(&run.opening)?)?;
        survey::serve(&run.opening.survey, &run.opening.lists, &rendezvous, env)?;
        (nodes::adapt(&mut run.opening, None, copies, env), run)
    } else {
        let own = match env.is_one_node() {
            true => Vec::new(),
            false => facts::introduce::<T>(request, recipe, env, host, &rendezvous)?,
        };
        let mut opening: Opening = serde_json::from_slice(&rendezvous.receive_opening()?)?;
        opening.lists = survey::receive(&mut opening.survey, &own, &rendezvous, env)?;
        let view = nodes::adapt(&mut opening, request.run_dir.clone(), copies, env);
        let setup = start::build_setup::<T>(request, recipe, &opening, env, host)?;
        (view, Prepared { opening, setup, claims: Vec::new() })
    };
    let _progress = Progress::of_rank(env.rank, "waiting for the other ranks");
    images::share(&run.setup.cache, &rendezvous, env)?;
    let ranks = Ranks::new(rendezvous.connect(host.device)?);
    if let Some(sync) = &run.setup.batch_sync {
        sync.connect(rendezvous.connect_second_group("batch-norm", &ranks)?);
    }
    let agreed =
        nodes::agree(&run.opening, view, host.copies.clone(), &mut run.setup, &ranks, &rendezvous, env)?;
    Ok(Joined { run, ranks, agreed })
}
