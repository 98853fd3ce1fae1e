//! Chooses the device of a rank, or explains why its GPU cannot be used.

use dtrain_common::env::{CUDA_VISIBLE_DEVICES, WorkerEnv};
use dtrain_common::gpu::{Visible, inventory};
use dtrain_common::installation::install_own_cuda;
use dtrain_common::text::counted;
use dtrain_torch_shim::{ErrorKind, ShimError, cuda, memory};
use tch::Device;
use thiserror::Error;

use crate::OutOfMemory;

/// An error that keeps a rank from using its GPU.
#[derive(Debug, Error)]
pub enum DeviceError {
    #[error("{asked}: no GPU is usable: {why}, or train on the CPU with --gpu-ids none")]
    Unusable { asked: String, why: String },
    #[error(
        "{asked}: CUDA finds none of these GPUs; list the GPUs with `dtrain gpu info`, start a container with `--gpus all`, or \
         train on the CPU with --gpu-ids none"
    )]
    NoneVisible { asked: String },
    #[error(
        "rank {rank} needs GPU {gpu}, but only {visible} GPU(s) are visible on its machine; start at most {visible} worker(s) \
         there, or train on the CPU with --gpu-ids none"
    )]
    TooFew { rank: usize, gpu: usize, visible: usize },
    #[error(
        "rank {rank} cannot use its GPU: {source}; check it with `nvidia-smi`: another process may use it exclusively, or it needs \
         a reset"
    )]
    Failed { rank: usize, source: ShimError },
}

impl OutOfMemory for DeviceError {
    fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Failed { source, .. } if source.is_out_of_memory())
    }
}

/// Returns the GPU of the local rank, made current for the calling thread; the CPU if GPUs are hidden, or if
/// the user requests no GPU and the machine has no GPU. Called once, on the main thread, after
/// [`budget::configure`](crate::memory::budget::configure) and before any other use of libtorch.
pub(crate) fn choose(env: &WorkerEnv) -> Result<Device, DeviceError> {
    let list = visible();
    if hides_all(list.as_deref()) {
        return Ok(Device::Cpu);
    }
    let found = cuda::load().and_then(|()| cuda::device_count());
    let listed = || inventory().map_or(0, |inventory| inventory.gpus.len());
    let (device, why_not) = select(env, list, found, listed)?;
    why_not.inspect(|why| log_fallback(env, why));
    enter(device).map_err(|source| device_failed(env, source))?;
    Ok(device)
}

/// Counts tensors from now on, and loads CUDA unless all GPUs are hidden. Returns whether it is loaded; [`choose`] says why not.
pub(crate) fn load_cuda(env: &WorkerEnv) -> Result<bool, DeviceError> {
    memory::enable_stats().map_err(|source| device_failed(env, source))?;
    // A run on the CPU does not wait for CUDA to load.
    Ok(!hides_all(visible().as_deref()) && cuda::load().is_ok())
}

fn visible() -> Option<String> {
    std::env::var_os(CUDA_VISIBLE_DEVICES).map(|list| list.to_string_lossy().into_owned())
}

fn hides_all(list: Option<&str>) -> bool {
    list.is_some_and(|list| !Visible::names_a_device(list))
}

/// Makes `device` current for the calling thread, which must not touch another GPU. Every thread that uses
/// tensors on the device calls this first.
pub(crate) fn enter(device: Device) -> Result<(), ShimError> {
    match device {
        Device::Cuda(index) => cuda::set_device(index),
        _ => Ok(()),
    }
}

/// Returns the device, and the error that prevented the use of a GPU. `list` is CUDA_VISIBLE_DEVICES; without
/// a list, any GPU may be used. `found` is the number of GPUs that CUDA reports, `listed` that of the driver's management
/// library: a machine with GPUs does not train on the CPU unasked.
fn select(
    env: &WorkerEnv,
    list: Option<String>,
    found: Result<usize, ShimError>,
    listed: impl FnOnce() -> usize,
) -> Result<(Device, Option<ShimError>), DeviceError> {
    let asked = || match list {
        Some(list) => Some(format!("{CUDA_VISIBLE_DEVICES}={list}")),
        None => Some(listed())
            .filter(|listed| *listed > 0)
            .map(|listed| format!("the driver lists {}", counted(listed, "GPU"))),
    };
    match found {
        Ok(visible) if env.gpu < visible => Ok((Device::Cuda(env.gpu), None)),
        Ok(0) => match asked() {
            Some(asked) => Err(DeviceError::NoneVisible { asked }),
            None => Ok((Device::Cpu, None)),
        },
        Ok(visible) => Err(DeviceError::TooFew { rank: env.rank, gpu: env.gpu, visible }),
        Err(error) => {
            let Some(asked) = asked() else { return Ok((Device::Cpu, Some(error))) };
            let reason = &error.message;
            let why = match error.kind {
                ErrorKind::DriverMissing => format!(
                    "no NVIDIA driver was found ({reason}); install driver R580 or newer for CUDA 13.0, start a container with \
                     `--gpus all`"
                ),
                ErrorKind::LibraryMissing => format!(
                    "libtorch's CUDA libraries are missing ({reason}); install them with {}",
                    install_own_cuda()
                ),
                ErrorKind::DriverTooOld => format!(
                    "the NVIDIA driver is too old for CUDA 13.0 ({reason}); install driver R580 or newer"
                ),
                _ => return Err(device_failed(env, error)),
            };
            Err(DeviceError::Unusable { asked, why })
        }
    }
}

fn device_failed(env: &WorkerEnv, source: ShimError) -> DeviceError {
    DeviceError::Failed { rank: env.rank, source }
}

/// Logs why no GPU is used. A missing driver is usual, and no warning.
fn log_fallback(env: &WorkerEnv, error: &ShimError) {
    let missing = format!("install libtorch's CUDA libraries with {}", install_own_cuda());
    let remedy = match error.kind {
        ErrorKind::DriverMissing => return tracing::debug!("training on the CPU: {error}"),
        ErrorKind::LibraryMissing => &missing,
        ErrorKind::DriverTooOld => "install driver R580 or newer for CUDA 13.0",
        _ => "check the GPU with `nvidia-smi`",
    };
    if env.rank == 0 {
        tracing::warn!("training on the CPU: {error}; {remedy}");
    }
}

/// Returns the kind of device, for all ranks of a run.
pub(crate) fn kind(device: Device) -> &'static str {
    if device.is_cuda() { "GPU" } else { "CPU" }
}

pub(crate) fn name(device: Device) -> String {
    match device {
        Device::Cuda(index) => format!("GPU {index}"),
        _ => "CPU".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn worker(local_rank: usize) -> WorkerEnv {
        WorkerEnv { rank: local_rank + 4, local_rank, gpu: local_rank, ..WorkerEnv::single() }
    }

    fn error(kind: ErrorKind) -> ShimError {
        ShimError { op: "load CUDA", kind, message: "the reason.".to_owned() }
    }

    #[test]
    fn a_rank_uses_the_gpu_of_its_local_rank() {
        for list in [None, Some("6,4".to_owned())] {
            let (device, why) = select(&worker(1), list, Ok(2), || 2).unwrap();
            assert_eq!(device, Device::Cuda(1));
            assert!(why.is_none());
        }
    }

    #[test]
    fn without_a_list_the_cpu_is_used_and_the_reason_is_kept() {
        let (device, why) = select(&worker(0), None, Ok(0), || 0).unwrap();
        assert!(device == Device::Cpu && why.is_none());
        for kind in
            [ErrorKind::DriverMissing, ErrorKind::LibraryMissing, ErrorKind::DriverTooOld, ErrorKind::Other]
        {
            let (device, why) = select(&worker(0), None, Err(error(kind)), || 0).unwrap();
            assert_eq!((device, why.unwrap().kind), (Device::Cpu, kind));
        }
    }

    #[test]
    fn a_machine_with_gpus_does_not_train_on_the_cpu_unasked() {
        for (found, words) in [
            (Ok(0), "CUDA finds none of these GPUs"),
            (Err(error(ErrorKind::DriverMissing)), "no NVIDIA driver was found"),
            (Err(error(ErrorKind::LibraryMissing)), "setup --cuda"),
            (Err(error(ErrorKind::DriverTooOld)), "too old"),
        ] {
            let text = select(&worker(0), None, found, || 2).unwrap_err().to_string();
            assert!(text.starts_with("the driver lists 2 GPUs: "), "{text}");
            assert!(text.contains(words) && text.contains("--gpu-ids none"), "{text}");
        }
        assert!(matches!(
            select(&worker(0), None, Err(error(ErrorKind::Other)), || 1),
            Err(DeviceError::Failed { .. })
        ));
    }

    #[test]
    fn a_missing_listed_gpu_is_an_error_with_a_remedy() {
        let error_of = |found| select(&worker(2), Some("GPU-7,3".to_owned()), found, || 0).unwrap_err();
        let cases = [
            (error_of(Err(error(ErrorKind::DriverMissing))), "R580"),
            (error_of(Err(error(ErrorKind::LibraryMissing))), "setup --cuda"),
            (error_of(Err(error(ErrorKind::DriverTooOld))), "R580"),
            (error_of(Ok(0)), "dtrain gpu info"),
        ];
        for (error, remedy) in cases {
            let text = error.to_string();
            assert!(text.contains("CUDA_VISIBLE_DEVICES=GPU-7,3"), "{text}");
            assert!(text.contains(remedy) && text.contains("--gpu-ids none"), "{text}");
            assert!(!error.is_out_of_memory());
            let status = crate::WorkerError::from(error).exit_status();
            assert_eq!(status, dtrain_common::exit::ExitStatus::Usage);
        }
        let few = error_of(Ok(2)).to_string();
        assert!(few.contains("rank 6 needs GPU 2") && few.contains("at most 2"), "{few}");
        // The same error without a list: the machine has too few GPUs.
        assert!(matches!(select(&worker(2), None, Ok(2), || 2), Err(DeviceError::TooFew { visible: 2, .. })));
    }

    #[test]
    fn a_failing_gpu_is_no_usage_error() {
        let failed =
            select(&worker(0), Some("0".to_owned()), Err(error(ErrorKind::Device)), || 1).unwrap_err();
        assert!(failed.to_string().contains("nvidia-smi"), "{failed}");
        let status = crate::WorkerError::from(failed).exit_status();
        assert_eq!(status, dtrain_common::exit::ExitStatus::Program(1));
        let full = DeviceError::Failed { rank: 0, source: error(ErrorKind::OutOfMemory) };
        assert!(full.is_out_of_memory());
    }

    #[test]
    fn entering_the_cpu_succeeds() {
        assert!(enter(Device::Cpu).is_ok());
    }
}
