//! How the libraries of a GPU compute, where they leave a choice: docs/decisions/0048-gpu-settings.md.

use dtrain_common::recipe::{Recipe, Switch};
use dtrain_torch_shim::{ShimError, cuda};
use tch::Device;

use super::precision::{PrecisionError, tf32};

/// Settings of the process for kernels on its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernels {
    /// float32 matrix products and convolutions compute in TF32.
    tf32: bool,
    /// cuDNN tries which algorithm is the fastest.
    cudnn_benchmark: bool,
}

impl Kernels {
    /// What the recipe asks for on `device`; none on a CPU, which has no such choice.
    pub(crate) fn new(recipe: &Recipe, device: Device) -> Result<Option<Self>, PrecisionError> {
        let tf32 = tf32(recipe.precision.tf32, device)?;
        let cudnn_benchmark = recipe.model.cudnn_benchmark;
        if !device.is_cuda() {
            return match cudnn_benchmark {
                Switch::Is(true) => Err(PrecisionError::BenchmarkOnCpu),
                Switch::Auto | Switch::Is(false) => Ok(None),
            };
        }
        Ok(Some(Self {
            tf32,
            // A data set's samples have one shape, so that few shapes of batches are met, and tried once each.
            cudnn_benchmark: cudnn_benchmark.stated().unwrap_or(true),
        }))
    }

    pub(crate) fn apply(self) -> Result<(), ShimError> {
        cuda::set_tf32(self.tf32)?;
        cuda::set_cudnn_benchmark(self.cudnn_benchmark)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use dtrain_common::gpu::all_compute_in_bf16;

    fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Recipe::load("demo", &sets).unwrap()
    }

    #[test]
    fn a_cpu_has_nothing_to_set_and_says_so() {
        assert_eq!(Kernels::new(&recipe(&[]), Device::Cpu).unwrap(), None);
        let off = recipe(&["precision.tf32=false", "model.cudnn_benchmark=false"]);
        assert_eq!(Kernels::new(&off, Device::Cpu).unwrap(), None);
        for set in ["precision.tf32=true", "model.cudnn_benchmark=true"] {
            let error = Kernels::new(&recipe(&[set]), Device::Cpu).unwrap_err().to_string();
            let key = set.split('=').next().unwrap();
            assert!(error.contains(key) && error.contains("needs a GPU"), "{error}");
        }
    }

    #[test]
    fn a_gpu_does_what_is_stated() {
        let gpu = Device::Cuda(0);
        let auto = Kernels::new(&recipe(&[]), gpu).unwrap().unwrap();
        assert_eq!(auto, Kernels { tf32: all_compute_in_bf16(), cudnn_benchmark: true });
        let off = recipe(&["precision.tf32=false", "model.cudnn_benchmark=false"]);
        let off = Kernels::new(&off, gpu).unwrap().unwrap();
        assert_eq!(off, Kernels { tf32: false, cudnn_benchmark: false });
        let on = tf32(Switch::Is(true), gpu);
        assert_eq!(on.is_ok(), all_compute_in_bf16());
    }
}
