//! The resources of a worker on its machine: signals, device and memory.

use std::path::PathBuf;

use dtrain_common::env::{DTRAIN_MEMORY_COPIES, WorkerEnv};
use dtrain_common::units::ByteSize;
use dtrain_recipe::{DataKind, Recipe};
use dtrain_torch_shim::ShimError;
use tch::Device;

use crate::control::Control;
use crate::data::cache_bytes;
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
        let (device, allowed) =
            enter_device(recipe, env, |device| use_capturable_stream(recipe.model.compile, device))?;
        let control = Control::listen(env.rank, device);
        if let Err(error) = dtrain_torch_shim::keep_freed_memory() {
            tracing::debug!("{error}");
        }
        let copies = std::env::var_os(DTRAIN_MEMORY_COPIES).map(PathBuf::from);
        let copies = copies.filter(|_| recipe.checkpoint.in_memory);
        Ok(Self { device, allowed, style, stop, copies, _control: control })
    }

    /// Leaves host memory beside the tensors of a CPU for `copies` bytes of checkpoints and for the cache of images. Returns a
    /// note if that leaves less. [`Host::enforce`] applies the limit, after a plan that knows it.
    pub(crate) fn leave_room(&mut self, recipe: &Recipe, copies: u64, local_ranks: usize) -> Option<String> {
        let before = self.allowed;
        self.allowed = beside_copies(recipe, self.device, before, copies, local_ranks);
        (self.allowed < before).then(|| {
            format!(
                "a copy of the state for checkpoints takes {} of the host's memory per rank: tensors may take {}, not {}",
                ByteSize(copies),
                ByteSize(self.allowed),
                ByteSize(before)
            )
        })
    }

    /// Limits the tensors from now on.
    pub(crate) fn enforce(&self) {
        budget::enforce(self.allowed, self.device);
    }
}

/// Returns the bytes of `allowed` that are left for the tensors of one of `local_ranks` ranks if each has `copies` bytes for
/// checkpoints and its share of the cache of images, where these count.
pub(crate) fn beside_copies(
    recipe: &Recipe,
    device: Device,
    allowed: u64,
    copies: u64,
    local_ranks: usize,
) -> u64 {
    if !counts_copies(recipe, device) {
        return allowed;
    }
    let has_images = recipe.data.kind == DataKind::Folder;
    let cache = if has_images { cache_bytes(recipe.data.cache, local_ranks) } else { 0 };
    budget::beside(allowed, copies + cache)
}

/// Returns whether copies of the state are in the memory that the budget divides: copies of a GPU's state are not, and a stated
/// budget is that of the tensors.
pub(crate) fn counts_copies(recipe: &Recipe, device: Device) -> bool {
    !device.is_cuda() && recipe.memory.budget.value().is_none()
}

/// Returns the device of this rank and its limit in bytes. `prepare` runs before the first tensor.
pub(crate) fn enter_device(
    recipe: &Recipe,
    env: &WorkerEnv,
    prepare: impl FnOnce(Device) -> Result<(), ShimError>,
) -> Result<(Device, u64), WorkerError> {
    let budget = recipe.memory.budget;
    let device = device::choose(env, budget.value().map(|size| size.0))?;
    prepare(device).map_err(TrainError::from)?;
    let allowed = budget::bytes(budget, device, env.local_world_size).map_err(TrainError::from)?;
    budget::enforce(allowed, device);
    Ok((device, allowed))
}
