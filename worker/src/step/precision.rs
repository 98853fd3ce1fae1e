//! Automatic mixed precision (Micikevicius et al. 2018, arXiv 1710.03740): matrix products and convolutions
//! in a shorter dtype, parameters and their updates in float32.

use dtrain_common::gpu::all_support_bf16;
use dtrain_common::manifest::LossScale;
use dtrain_recipe::{self as recipe, Amp, Recipe, Switch};
use dtrain_torch_shim::autocast::Autocast;
use dtrain_torch_shim::{ShimError, cuda, fused};
use tch::{Device, Kind, TchError, Tensor};
use thiserror::Error;

use super::scaler::{GradScaler, ScalerError, ScalerOptions};
use crate::state::Table;
use crate::step::error::{Result, StepError};

#[derive(Debug)]
pub(crate) struct Precision {
    device: Device,
    /// The dtype of autocast regions, if there are any.
    pub(super) autocast: Option<Kind>,
    /// Whether float32 matrix products and convolutions use TF32.
    tf32: bool,
    scaler: Option<GradScaler>,
    /// Result and input of the unscaling kernel: not 0 if a gradient is not finite; the scale's reciprocal.
    figures: Option<(Tensor, Tensor)>,
}

/// A precision that is not available.
#[derive(Debug, Error)]
pub enum PrecisionError {
    #[error(
        "precision.amp = \"fp16\" needs a GPU, and this run is on the CPU; choose \"bf16\", which needs no loss scale, or \"off\""
    )]
    HalfOnCpu,
    #[error(
        "precision.tf32 = true needs a GPU, and this run is on the CPU; leave it out, or set it to \"auto\""
    )]
    Tf32OnCpu,
    #[error(
        "precision.tf32 = true needs compute capability 8.0 (Ampere) or newer, and a GPU of this machine is older; leave it out, or \
         set it to \"auto\""
    )]
    NoTf32,
    #[error(
        "model.cudnn_benchmark = true needs a GPU, and this run is on the CPU; leave it out, or set it to \"auto\""
    )]
    BenchmarkOnCpu,
    #[error("precision.loss_scale: {0}")]
    Scaler(#[from] ScalerError),
}

impl Precision {
    /// Returns the recipe's precision on `device`. `auto` is full precision on a CPU. On GPUs it is bfloat16,
    /// which needs no loss scale, if all of them support it, otherwise float16.
    pub(crate) fn new(settings: &recipe::Precision, device: Device) -> Result<Self, PrecisionError> {
        let amp = match settings.amp {
            Amp::Fp16 if device == Device::Cpu => return Err(PrecisionError::HalfOnCpu),
            Amp::Auto if device == Device::Cpu => Amp::Off,
            Amp::Auto if all_support_bf16() => Amp::Bf16,
            Amp::Auto => Amp::Fp16,
            stated => stated,
        };
        let mut precision = Self::for_rehearsal(amp, device)?;
        precision.tf32 = uses_tf32(settings.tf32, device)?;
        if let (Some(scaler), Some(init)) = (&mut precision.scaler, settings.loss_scale) {
            *scaler = GradScaler::new(ScalerOptions { init, ..ScalerOptions::default() })?;
        }
        Ok(precision)
    }

    /// Returns the precision of another device for a rehearsal; `amp` is not `auto`.
    pub(crate) fn for_rehearsal(amp: Amp, device: Device) -> Result<Self, PrecisionError> {
        let autocast = match amp {
            Amp::Off | Amp::Auto => None,
            Amp::Bf16 => Some(Kind::BFloat16),
            Amp::Fp16 => Some(Kind::Half),
        };
        let scaler = (amp == Amp::Fp16).then(|| GradScaler::new(ScalerOptions::default()));
        Ok(Self { device, autocast, tf32: false, scaler: scaler.transpose()?, figures: None })
    }

    /// Continues with the loss scale of a checkpoint, if both it and this run have one.
    pub(crate) fn resume(&mut self, state: Option<LossScale>) -> Result<(), ScalerError> {
        match (&mut self.scaler, state) {
            (Some(scaler), Some(state)) => scaler.restore(state),
            _ => Ok(()),
        }
    }

    pub(crate) fn state(&self) -> Option<LossScale> {
        self.scaler.as_ref().map(GradScaler::state)
    }

    /// Returns the precision as a recipe spells it; never `auto`.
    pub(crate) fn amp(&self) -> Amp {
        match self.autocast {
            Some(Kind::Half) => Amp::Fp16,
            Some(_) => Amp::Bf16,
            None => Amp::Off,
        }
    }

    pub(crate) fn describe(&self) -> &'static str {
        match self.autocast {
            Some(Kind::Half) => "fp16 with a loss scale",
            Some(_) => "bf16",
            None if self.tf32 => "fp32 with products in TF32",
            None => "fp32",
        }
    }

    /// Runs a forward pass. Backward runs outside, with the dtypes of the recorded graph.
    pub(crate) fn run<T>(&self, forward: impl FnOnce() -> T) -> Result<T, ShimError> {
        let _region = self.autocast.map(|kind| Autocast::enter(self.device, kind)).transpose()?;
        Ok(forward())
    }

    pub(crate) fn loss_scale(&self) -> f64 {
        self.scaler.as_ref().map_or(1.0, GradScaler::scale)
    }

    /// Allocates memory for [`Precision::unscale`] once. Call it before the ranks decide about a step.
    pub(crate) fn allocate_figures(&mut self) -> Result<(), TchError> {
        if self.scaler.is_some() && self.figures.is_none() {
            let one = || Tensor::f_zeros([1], (Kind::Float, self.device));
            self.figures = Some((one()?, one()?));
        }
        Ok(())
    }

    /// Divides the reduced gradients by the loss scale. Call it once per step, before clipping. Returns,
    /// without a wait, a scalar: not 0 if a gradient of this rank is not finite. None without a loss scale.
    pub(crate) fn unscale(&mut self, table: &Table) -> Result<Option<&Tensor>> {
        self.allocate_figures()?;
        let (Some(scaler), Some((found, inverse))) = (&self.scaler, &mut self.figures) else {
            return Ok(None);
        };
        let grads = table.own_grads()?;
        let _ = found.f_zero_()?;
        let _ = inverse.f_fill_(f64::from(scaler.inverse()))?;
        fused::unscale(&grads.iter().collect::<Vec<_>>(), found, inverse)?;
        Ok(Some(found))
    }

    /// Updates the loss scale after a step. An exhausted scale is an error.
    pub(crate) fn update(&mut self, finite: bool) -> Result<()> {
        if let Some(scaler) = &mut self.scaler {
            scaler.update(!finite);
            if scaler.is_exhausted() {
                return Err(StepError::LossScale { scale: scaler.scale() });
            }
        }
        Ok(())
    }
}

/// Returns whether float32 products and convolutions use TF32; `auto` is true on GPUs that support it.
pub(super) fn uses_tf32(setting: Switch, device: Device) -> Result<bool, PrecisionError> {
    match (setting, device.is_cuda()) {
        (Switch::Value(true), false) => Err(PrecisionError::Tf32OnCpu),
        (Switch::Value(false), _) | (Switch::Auto, false) => Ok(false),
        // TF32 came with bfloat16, in compute capability 8.0. Asks all GPUs, so that all ranks agree.
        (Switch::Value(true), true) if !all_support_bf16() => Err(PrecisionError::NoTf32),
        (Switch::Value(true), true) => Ok(true),
        (Switch::Auto, true) => Ok(all_support_bf16()),
    }
}

/// Settings of the process for kernels on its GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kernels {
    /// Whether float32 matrix products and convolutions use TF32.
    tf32: bool,
    /// Whether cuDNN measures algorithms and uses the fastest.
    cudnn_benchmark: bool,
}

impl Kernels {
    /// Returns the recipe's settings for `device`; None on a CPU.
    pub(crate) fn new(recipe: &Recipe, device: Device) -> Result<Option<Self>, PrecisionError> {
        let tf32 = uses_tf32(recipe.precision.tf32, device)?;
        match (recipe.model.cudnn_benchmark.value(), device.is_cuda()) {
            (Some(true), false) => Err(PrecisionError::BenchmarkOnCpu),
            (_, false) => Ok(None),
            // Samples have one shape, so few shapes of batches occur, and cuDNN measures each once.
            (stated, true) => Ok(Some(Self { tf32, cudnn_benchmark: stated.unwrap_or(true) })),
        }
    }

    pub(crate) fn apply(self) -> Result<(), ShimError> {
        tch::Cuda::cudnn_set_benchmark(self.cudnn_benchmark);
        cuda::set_tf32(self.tf32)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use dtrain_common::gpu::all_support_bf16;

    use super::*;
    use crate::collectives::Ranks;
    use crate::step::decide::measure_gradients;
    use crate::step::exchange::Exchange;

    fn settings(amp: Amp, loss_scale: Option<f64>) -> recipe::Precision {
        recipe::Precision { amp, loss_scale, ..recipe::Precision::default() }
    }

    #[test]
    fn auto_precision_depends_on_the_device() {
        let on_cpu = |amp| Precision::new(&settings(amp, None), Device::Cpu);
        assert_eq!(on_cpu(Amp::Auto).unwrap().describe(), "fp32");
        assert_eq!(on_cpu(Amp::Bf16).unwrap().describe(), "bf16");
        let error = on_cpu(Amp::Fp16).unwrap_err().to_string();
        assert!(error.contains("needs a GPU") && error.contains("bf16"), "{error}");
        let half = Precision::new(&settings(Amp::Fp16, Some(8.0)), Device::Cuda(0)).unwrap();
        assert_eq!(half.loss_scale(), 8.0);
        assert!(Precision::new(&settings(Amp::Fp16, Some(1e300)), Device::Cuda(0)).is_err());
    }

    #[test]
    fn autocast_ends_with_its_region() {
        let precision = Precision::new(&settings(Amp::Bf16, None), Device::Cpu).unwrap();
        let x = Tensor::ones([4, 4], (Kind::Float, Device::Cpu));
        assert_eq!(precision.run(|| x.mm(&x)).unwrap().kind(), Kind::BFloat16);
        assert_eq!(x.mm(&x).kind(), Kind::Float);
    }

    #[test]
    fn unscaling_detects_infinities() {
        let x = Tensor::from_slice(&[1.0f32, 2.0]).set_requires_grad(true);
        let table = Table::of([("x", &x)]).unwrap();
        let exchange = Exchange::new(Ranks::single(), None, &table, recipe::Reduce::default()).unwrap();
        let scaled = || Precision {
            scaler: Some(GradScaler::new(ScalerOptions::default()).unwrap()),
            ..Precision::new(&settings(Amp::Off, None), Device::Cpu).unwrap()
        };
        let mut precision = scaled();
        (&x * 3.0 * precision.loss_scale()).sum(Kind::Float).backward();
        let measure = |precision: &mut Precision| {
            let found = precision.unscale(&table).unwrap();
            measure_gradients(&exchange, &table, found).unwrap()
        };
        let measured = measure(&mut precision);
        assert_eq!(measured, (18f64.sqrt(), true));
        assert_eq!(Vec::<f32>::try_from(x.grad()).unwrap(), [3.0, 3.0]);
        let _ = x.grad().fill_(f64::INFINITY);
        assert!(!measure(&mut precision).1);
        precision.update(false).unwrap();
        assert_eq!(precision.loss_scale(), 32768.0);
        let state = precision.state();
        let mut other = scaled();
        other.resume(state).unwrap();
        assert_eq!(other.loss_scale(), 32768.0);
        // A scale that is too small ends the run.
        let ended = (0..100).find_map(|_| precision.update(false).err()).unwrap();
        assert!(matches!(ended, StepError::LossScale { .. }), "{ended}");
    }

    fn recipe(sets: &[&str]) -> Recipe {
        let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
        Recipe::load("demo", &sets).unwrap()
    }

    #[test]
    fn gpu_settings_on_a_cpu_are_errors() {
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
    fn gpu_settings_follow_the_recipe() {
        let gpu = Device::Cuda(0);
        let auto = Kernels::new(&recipe(&[]), gpu).unwrap().unwrap();
        assert_eq!(auto, Kernels { tf32: all_support_bf16(), cudnn_benchmark: true });
        let off = recipe(&["precision.tf32=false", "model.cudnn_benchmark=false"]);
        let off = Kernels::new(&off, gpu).unwrap().unwrap();
        assert_eq!(off, Kernels { tf32: false, cudnn_benchmark: false });
        let on = uses_tf32(Switch::Value(true), gpu);
        assert_eq!(on.is_ok(), all_support_bf16());
    }
}
