//! The resources of a worker on its machine: signals, device and memory.

use std::path::PathBuf;

use dtrain_common::env::{DTRAIN_MEMORY_COPIES, WorkerEnv};
use dtrain_common::progress::Progress;
use dtrain_recipe::Recipe;
use tch::Device;

use crate::control::Control;
use crate::device;
use crate::memory::budget;
use crate::metrics::ProgressStyle;
use crate::run::TrainError;
use crate::setup::error::WorkerError;
use crate::step::use_capturable_stream;
use crate::stop::StopFlag;

pub(crate) struct Host {
    pub(crate) device: Device,
    /// Bytes that tensors may take on the device.
    pub(crate) allowed: u64,
    pub(crate) style: ProgressStyle,
    pub(crate) stop: StopFlag,
    /// The folder of copies in memory, if launcher and recipe enable them.
    pub(crate) copies: Option<PathBuf>,
    /// Removes its socket when dropped.
    _control: Option<Control>,
}

impl Host {
    /// Called first, on the main thread.
    pub(crate) fn enter(recipe: &Recipe, env: &WorkerEnv) -> Result<Self, WorkerError> {
        let stop = StopFlag::listen().map_err(WorkerError::Signals)?;
        let style = ProgressStyle::detect(env.rank);
        let _progress = Progress::of_rank(env.rank, "starting the device");
        budget::configure(recipe.memory.budget.value(), env)?;
        let device = device::choose(env)?;
        use_capturable_stream(recipe.model.compile, device).map_err(TrainError::from)?;
        let allowed =
            budget::allow(recipe.memory.budget, device, env.local_world_size).map_err(TrainError::from)?;
        let control = Control::listen(env.rank, device);
        if let Err(error) = dtrain_torch_shim::keep_freed_memory() {
            tracing::debug!("{error}");
        }
        let copies = std::env::var_os(DTRAIN_MEMORY_COPIES).map(PathBuf::from);
        let copies = copies.filter(|_| recipe.checkpoint.in_memory);
        Ok(Self { device, allowed, style, stop, copies, _control: control })
    }
}
