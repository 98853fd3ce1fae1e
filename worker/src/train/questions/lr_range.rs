//! `dtrain profile --lr-range`: steps of a recipe at rising learning rates, on all ranks. Writes nothing but its answer.

use std::cell::RefCell;

use dtrain_common::env::WorkerEnv;
use dtrain_common::exit::ExitStatus;
use dtrain_common::lr_range::LrRange;
use dtrain_recipe::{Amp, AtStageStart, Per, Recipe, Scaling, Schedule, ScheduleName};

use super::print_answer;
use crate::collectives::{Ranks, Rendezvous};
use crate::device;
use crate::faults::Fault;
use crate::heartbeat::Heartbeat;
use crate::metrics::{Line, Progress, SkipCause};
use crate::planning::{LrRangeTest, RangeQuestion, start};
use crate::request::Request;
use crate::run::error::Result as TrainResult;
use crate::run::{Flow, Follower, Followers, TrainError, Training, run as run_training};
use crate::setup::error::Result;
use crate::setup::host::Host;
use crate::setup::opening::Opening;
use crate::setup::survey::{self, Surveyed};
use crate::setup::{Setup, images};
use crate::step::Taken;
use crate::tasks::BuildTask;
use crate::train::training::{share_state, training};

/// Answers the question. Every rank calls this; rank 0 prints the answer.
pub(super) fn run<T: BuildTask + 'static>(
    asked: &Recipe,
    request: &Request,
    env: &WorkerEnv,
    question: &RangeQuestion,
) -> Result<ExitStatus> {
    let recipe = &ramped(asked, &question.range);
    let host = Host::enter(recipe, env)?;
    let rendezvous = Rendezvous::open(env.clone())?;
    let (opening, setup) = if env.rank == 0 {
        let (opening, setup) = open::<T>(recipe, request, env, &host).inspect_err(|error| {
            rendezvous.announce_failure(&error.to_string(), error.exit_status().code())
        })?;
        rendezvous.announce(&serde_json::to_vec(&opening)?)?;
        survey::serve(&opening.survey, &opening.lists, &rendezvous, env)?;
        (opening, setup)
    } else {
        let mut opening: Opening = serde_json::from_slice(&rendezvous.receive_opening()?)?;
        opening.lists = survey::receive(&mut opening.survey, &[], &rendezvous, env)?;
        let setup = start::build_setup::<T>(request, recipe, &opening, env, &host)?;
        (opening, setup)
    };
    images::share(&setup.cache, &rendezvous, env)?;
    let ranks = Ranks::new(rendezvous.connect(host.device)?);
    if let Some(sync) = &setup.batch_sync {
        sync.connect(rendezvous.connect_second_group("batch-norm", &ranks)?);
    }
    let test = RefCell::new(LrRangeTest {
        model: recipe.model_name().to_string(),
        device: device::kind(host.device).to_string(),
        ranks: env.world_size,
        effective_batch: recipe.of_stage(0).train.effective_batch,
        planned: question.range.steps,
        lr_for_rate_1: lr_for_rate_1(asked),
        ..LrRangeTest::default()
    });
    take_steps::<T>(recipe, request, env, &host, &opening, setup, &ranks, &test)?;
    ranks.shutdown().map_err(TrainError::from)?;
    if env.rank == 0 {
        let mut test = test.into_inner();
        test.conclude();
        print_answer(&test.render(question.json)?);
    }
    Ok(ExitStatus::Success)
}

/// Builds everything on rank 0, before the other ranks.
fn open<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
    host: &Host,
) -> Result<(Opening, Setup)> {
    let Surveyed { facts, lists } = Surveyed::of::<T>(recipe)?;
    let opening = Opening { lists, ..Opening::rehearsed(facts) };
    let setup = start::build_setup::<T>(request, recipe, &opening, env, host)?;
    Ok((opening, setup))
}

/// Takes the steps, until the loss diverges.
#[allow(clippy::too_many_arguments)]
fn take_steps<T: BuildTask + 'static>(
    recipe: &Recipe,
    request: &Request,
    env: &WorkerEnv,
    host: &Host,
    opening: &Opening,
    mut setup: Setup,
    ranks: &Ranks,
    test: &RefCell<LrRangeTest>,
) -> Result<()> {
    let inputs = start::PlanInputs::of_rank(request, &opening.survey, recipe, env, host);
    start::with_smallest_step::<T, _, _>(&inputs, recipe, || share_state(ranks, &mut setup))?;
    start::choose_cuts::<T>(ranks, &mut setup, &inputs, recipe, host)?;
    let plan = &setup.course.plan;
    let progress = Progress::new(host.style, plan.total_steps, plan.epochs(), recipe.log.every_steps, 0);
    let scales = setup.replica.precision.amp() == Amp::Fp16;
    let mut followers = Followers::new(vec![
        Box::new(Heartbeat::from_env()),
        Box::new(progress),
        Box::new(Recorder { test, goes_on: true, scales }),
    ]);
    setup.notes.iter().for_each(|note| followers.note(note));
    let training = training(recipe, setup, ranks.clone(), env, host.device, Fault::default())?;
    run_training(training, &mut followers, None)?;
    Ok(())
}

/// Adds each step to the test, the same on all ranks.
struct Recorder<'a> {
    test: &'a RefCell<LrRangeTest>,
    goes_on: bool,
    /// Whether the loss is scaled, as in float16.
    scales: bool,
}

impl Follower for Recorder<'_> {
    fn record(&mut self, line: &Line<'_>) -> TrainResult<()> {
        if let Line::Step(step) = line {
            let mut test = self.test.borrow_mut();
            self.goes_on = match step.skipped {
                None => test.add(step.lr, step.loss, false),
                // A loss scale in search of its size is no sign of the rate.
                Some(SkipCause::Gradient) if self.scales => test.add(step.lr, step.loss, false),
                Some(SkipCause::Nothing) => self.goes_on,
                Some(SkipCause::Gradient | SkipCause::Loss) => test.add(step.lr, step.loss, true),
            };
        }
        Ok(())
    }

    fn after_step(&mut self, _: &mut Training<'_>, _: &Taken, _: &mut Followers<'_>) -> TrainResult<Flow> {
        Ok(if self.goes_on { Flow::Continue } else { Flow::Finished })
    }
}

/// Returns a run of the recipe's first stage over the range, without what does not change its steps.
fn ramped(asked: &Recipe, range: &LrRange) -> Recipe {
    let mut recipe = asked.clone();
    let general = &mut recipe.general;
    general.optim.set_lr(range.from);
    (general.optim.scaling, general.optim.reference_batch) = (Scaling::None, None);
    general.optim.schedule = Schedule {
        name: ScheduleName::Exponential,
        gamma: Some(range.factor()),
        per: Per::Step,
        ..Schedule::default()
    };
    general.stage.truncate(1);
    match general.stage.first_mut() {
        Some(stage) => {
            (stage.epochs, stage.steps) = (None, Some(range.steps));
            (stage.lr, stage.lr_factor, stage.schedule) = (None, 1.0, AtStageStart::Restart);
            stage.unfreeze.retain(|unfreeze| unfreeze.at == 0.0);
        }
        None => (general.train.epochs, general.train.steps) = (None, Some(range.steps)),
    }
    (general.ema, general.test, general.train.stop_early) = (None, None, None);
    recipe
}

/// Returns the setting `optim.lr` for which a step of the first stage has a rate of 1.
fn lr_for_rate_1(asked: &Recipe) -> f64 {
    let mut one = asked.general.clone();
    one.optim.lr = 1.0;
    if let Some(stage) = one.stage.first_mut() {
        stage.lr = None;
    }
    1.0 / one.of_stage(0).learning_rate().max(f64::MIN_POSITIVE)
}
