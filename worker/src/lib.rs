//! The dtrain trainer: data-parallel training on libtorch.
//!
//! [`run`] is a worker's whole life: it finds its peers, builds what the recipe asks for, trains, and says how it ended.
//! [`program`] makes it a program; with a task of one's own ([`tasks::Task`]), docs/own-trainer.md tells how.
//! The parts stand on their own: [`collectives`] knows no models, [`models`] no ranks, [`data`] no tensors.

pub mod checkpoint;
mod control;
mod data_mark;
mod device;
mod error;
mod evaluation;
mod heartbeat;
mod host;
mod introduce;
mod job;
mod lead;
mod memory;
mod memory_report;
mod metrics;
pub mod optim;
mod out_of_memory;
mod plan;
mod program;
mod request;
mod run;
mod setup;
pub mod state;
mod step;
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
pub use request::Request;
pub use step::{GradScaler, ScalerOptions};
pub use tch;
use train_error::TrainError;
pub use worker::{run, run_task};
