//! The dtrain trainer: data-parallel training on libtorch.
//!
//! [`run`] is a whole worker: it connects to its peers, builds the recipe's model, trains, and returns an
//! exit status. [`program`] makes it a program; docs/own-trainer.md explains custom tasks ([`tasks::Task`]).
//! The parts are independent: [`collectives`] uses no models, [`models`] no ranks, [`data`] no tensors.

pub mod checkpoint;
mod control;
mod course;
mod device;
mod faults;
mod heartbeat;
mod memory;
mod metrics;
pub mod optim;
mod out_of_memory;
mod planning;
mod rank;
mod request;
mod run;
mod setup;
pub mod state;
mod step;
mod stop;
pub mod tasks;
mod tensors;
mod train;

pub use dtrain_collectives as collectives;
pub use dtrain_common as common;
pub use dtrain_data as data;
pub use dtrain_models as models;
pub use dtrain_recipe as recipe;
pub use out_of_memory::OutOfMemory;
pub use rank::RankError;
pub use request::Request;
pub use setup::WorkerError;
pub use step::{GradScaler, ScalerOptions};
pub use tch;
pub use train::{main_by_recipe, program, program_by_recipe, run, run_task};
