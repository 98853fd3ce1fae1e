//! The training engine: the parameter arena, the reduction of gradients, schedules, and the step loop.

mod batch_sync;
mod error;
mod evaluate;
mod fault;
mod feed;
mod graph_step;
mod graphs;
mod keep;
mod kernels;
mod plan;
mod precision;
mod reading;
mod reducer;
mod rehearse;
mod replay;
mod scaler;
mod schedule;
mod skipped;
mod stages;
mod status;
mod step;
mod stop;
mod stopwatch;
mod trainer;
mod verdict;

pub use batch_sync::{JointSum, RankSync};
pub use error::TrainError;
pub(crate) use evaluate::{Evaluated, Evaluator, exhausted, in_smaller_batches};
pub use fault::Fault;
pub(crate) use graphs::prepare as prepare_graphs;
pub use keep::BestKeeper;
pub(crate) use keep::figures_of;
pub(crate) use kernels::Kernels;
pub use plan::{
    BatchNorms, Needs, PhaseFile, PhasePlan, Place, PlanError, PlanFile, Position, RunPlan, StageFile,
    StagePlan,
};
pub use precision::{Precision, PrecisionError};
pub use reducer::{ReduceError, ReduceOptions, Reducer};
pub(crate) use rehearse::rehearse;
pub use replay::{Exhausted, Phase, SaveMore, Shortage};
pub(crate) use replay::{Limits, patiently, shielded};
pub use scaler::{GradScaler, ScalerError, ScalerOptions, ScalerState};
pub use schedule::{Decay, Per, Schedule};
pub use status::Status;
pub use stop::StopFlag;
pub use trainer::{Outcome, Parts, Summary, Trainer};
