//! Which device a rank trains on.

use dtrain_common::env::WorkerEnv;
use dtrain_torch_shim::{ErrorKind, ShimError, cuda};
use tch::Device;

use super::error::WorkerError;

/// The GPU with the rank's local number among those visible, or the CPU where there is no NVIDIA driver.
///
/// # Errors
/// `NoGpu` where a machine has GPUs, but fewer than workers.
pub(crate) fn choose(env: &WorkerEnv) -> Result<Device, WorkerError> {
    let visible = match cuda::load().and_then(|()| cuda::device_count()) {
        Ok(visible) => visible,
        Err(error) => {
            explain(env, &error);
            0
        }
    };
    match visible {
        0 => Ok(Device::Cpu),
        _ if env.local_rank < visible => Ok(Device::Cuda(env.local_rank)),
        _ => Err(WorkerError::NoGpu {
            rank: env.rank,
            local_rank: env.local_rank,
            visible,
        }),
    }
}

/// A machine without a driver is an ordinary one; a driver without libtorch's CUDA set is worth a sentence.
fn explain(env: &WorkerEnv, error: &ShimError) {
    if error.kind == ErrorKind::LibraryMissing && error.message.starts_with("no NVIDIA driver") {
        tracing::debug!("{error}");
    } else if env.rank == 0 {
        tracing::warn!(
            "training on the CPU: {error}; `cargo xtask setup --cuda` fetches libtorch's CUDA set"
        );
    }
}

/// The kind of device as the line on its memory begins.
pub(crate) fn kind(device: Device) -> &'static str {
    match device {
        Device::Cuda(_) => "GPU",
        _ => "CPU",
    }
}

/// The device's name for people: `CPU`, `GPU 0`.
pub(crate) fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("GPU {index}"),
        _ => "CPU".to_owned(),
    }
}
