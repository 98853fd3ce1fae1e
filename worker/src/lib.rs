//! The dtrain trainer: data-parallel training on libtorch.
//!
//! [`run`] is a whole worker: it connects to its peers, builds the recipe's model, trains, and returns an
//! exit status. [`program`] makes it a program; docs/own-trainer.md explains custom tasks ([`tasks::Task`]).
//! The parts are independent: [`collectives`] uses no models, [`models`] no ranks, [`data`] no tensors.

pub mod checkpoint;
mod control;
mod data_fingerprint;
mod describe;
mod device;
mod error;
mod evaluation;
mod heartbeat;
mod host;
mod job;
mod lead;
mod memory;
mod memory_report;
mod metrics;
mod nodes;
mod opening;
pub mod optim;
mod out_of_memory;
mod plan;
mod program;
mod programs;
mod rank;
mod request;
mod resumed_changes;
mod run;
mod setup;
pub mod state;
mod step;
mod survey;
pub mod tasks;
mod train_error;
mod trained;
mod worker;

pub use dtrain_collectives as collectives;
pub use dtrain_common as common;
pub use dtrain_data as data;
pub use dtrain_models as models;
pub use error::WorkerError;
pub use out_of_memory::OutOfMemory;
pub use program::{program, program_by_recipe};
pub use rank::RankError;
pub use request::Request;
pub use step::{GradScaler, ScalerOptions};
pub use tch;
use train_error::TrainError;
pub use worker::{run, run_task};
