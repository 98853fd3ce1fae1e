//! What a run is planned by, and what ends it.

mod error;
mod plan;

pub use error::TrainError;
pub use plan::{
    BatchNorms, Needs, PhaseFile, PhasePlan, Place, PlanError, PlanFile, Position, RunPlan, StageFile,
    StagePlan,
};

pub use crate::step::exchange::{JointSum, RankSync, ReduceError, ReduceOptions};
pub(crate) use crate::step::recover::patiently;
pub use crate::step::recover::{Exhausted, Shortage};
pub use crate::step::{GradScaler, Precision, PrecisionError, ScalerError, ScalerOptions, ScalerState};
