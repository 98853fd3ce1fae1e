//! `dtrain ckpt export` of a checkpoint that lacks the parameters of its base: the whole model, with adapters added to their weights.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use dtrain_common::exit::ExitStatus;
use dtrain_common::files::write_atomic_with;
use dtrain_common::manifest::Manifest;
use dtrain_common::progress::{Progress, Unit};
use dtrain_common::question::{Floats, MergeQuestion};
use dtrain_common::safetensors_file::{StoredTensor, header, widest_first};
use dtrain_common::units::ByteSize;
use dtrain_recipe::Recipe;
use dtrain_torch_shim::frozen::widen;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use tch::{Device, Kind, TchError, Tensor};

use crate::checkpoint;
use crate::models::{Adapted, Entry, Lora, Registry, dtype_of};
use crate::setup::error::{Result, WorkerError};
use crate::setup::{base, weights};
use crate::tasks::BuildTask;
use crate::tasks::predict::{Saved, Unlabelled};
use crate::tensors::write;
use crate::train::evaluation::{build_empty, find_checkpoint};

/// The metadata key for the class names.
const CLASS_NAMES: &str = "class_names";

/// Writes the file, and prints what it has.
pub(super) fn run<T: BuildTask + 'static>(recipe: &Recipe, question: &MergeQuestion) -> Result<ExitStatus> {
    let folder = find_checkpoint(&question.checkpoint)?;
    let read = |error| WorkerError::Evaluate(checkpoint::CheckpointError::from(error));
    let manifest = Manifest::read(&folder).map_err(read)?;
    let verifying = Progress::start(format!("checking {}", folder.display()));
    manifest.verify(&folder).map_err(read)?;
    drop(verifying);
    let survey = T::inputs(Unlabelled::new(Saved::of(&manifest, recipe), 1, None))?;
    let building = Progress::start("building the model");
    let (task, registry) = build_empty::<T>(recipe, survey, Device::Cpu, 1)?;
    weights::load(recipe, &registry, task.facts().lacks_weights)?;
    base::check_same(&folder, manifest.base.as_ref(), base::describe(&registry)?.as_ref())?;
    drop(building);
    let is_average = checkpoint::restore_weights(&folder, &manifest, &registry, question.average)
        .map_err(WorkerError::Evaluate)?;
    let merge = Merge {
        registry: &registry,
        scale: registry.lora.as_ref().map_or(0.0, Lora::scale),
        floats: question.floats,
    };
    let mut outputs = merge.outputs()?;
    outputs.sort_by_key(|output| widest_first(output.target.dtype));
    let names = &manifest.class_names;
    let metadata = (!names.is_empty()).then(|| (CLASS_NAMES, serde_json::json!(names).to_string()));
    let targets = || outputs.iter().map(|output| &output.target);
    let cannot = |reason: String| WorkerError::Merge { path: question.out.clone(), reason };
    let head = header(targets(), metadata).map_err(|reason| cannot(reason.to_string()))?;
    // From here on, a stop must remove the unfinished file.
    let stop = Arc::new(AtomicUsize::new(0));
    for signal in [SIGINT, SIGTERM] {
        flag::register_usize(signal, Arc::clone(&stop), signal as usize).map_err(WorkerError::Signals)?;
    }
    let total = targets().map(|target| target.bytes).sum();
    let progress = Progress::of(format!("writing {}", question.out.display()), total, Unit::Bytes);
    let written = write_atomic_with(&question.out, question.force, |file: &mut File| {
        file.write_all(&head)?;
        for output in &outputs {
            if stop.load(Ordering::Relaxed) != 0 {
                return Err(ErrorKind::Interrupted.into());
            }
            let tensor = merge.value(output).map_err(|error| std::io::Error::other(error.to_string()))?;
            write(&tensor, file)?;
            progress.add(output.target.bytes);
        }
        Ok::<_, std::io::Error>(())
    });
    drop(progress);
    let signal = stop.load(Ordering::Relaxed) as i32;
    if signal != 0 && written.is_err() {
        tracing::error!("stopped by signal {signal}; {} was not written", question.out.display());
        return Ok(ExitStatus::Signal(signal));
    }
    written.map_err(|error| cannot(error.to_string()))?;
    let which = if is_average { "the moving average" } else { "as trained" };
    println!("{}: {} tensors, {}", question.out.display(), outputs.len(), ByteSize(total));
    println!("  checkpoint  {}", folder.display());
    println!("  model       {}, step {}", manifest.model, manifest.step);
    println!("  weights     {which}; {} with their adapters", registry.adapted().len());
    Ok(ExitStatus::Success)
}

/// A tensor of the file.
struct Output<'a> {
    entry: &'a Entry,
    adapted: Option<&'a Adapted>,
    kind: Kind,
    target: StoredTensor,
}

struct Merge<'a> {
    registry: &'a Registry,
    scale: f64,
    floats: Option<Floats>,
}

impl<'a> Merge<'a> {
    fn outputs(&self) -> Result<Vec<Output<'a>>> {
        let registry = self.registry;
        let kept =
            registry.state().iter().filter(|entry| !entry.is_held() && !registry.is_adapter(entry.name()));
        let mut outputs: Vec<Output<'a>> =
            kept.map(|entry| self.output(entry, entry.name())).collect::<Result<_>>()?;
        for (second, first) in registry.repeated() {
            if let Some(entry) = registry.get(first) {
                outputs.push(self.output(entry, second)?);
            }
        }
        Ok(outputs)
    }

    fn output(&self, entry: &'a Entry, name: &str) -> Result<Output<'a>> {
        let adapted = self.registry.adapted().iter().find(|adapted| adapted.weight == entry.name());
        let own = entry.tensor().kind();
        let is_float = entry.frozen().is_some()
            || matches!(own, Kind::Float | Kind::Double | Kind::Half | Kind::BFloat16);
        let kind = match self.floats.filter(|_| is_float) {
            Some(Floats::F32) => Kind::Float,
            Some(Floats::Bf16) => Kind::BFloat16,
            Some(Floats::F16) => Kind::Half,
            None if adapted.is_some() || entry.scale().is_some() => Kind::Float,
            None => own,
        };
        let shape = entry.tensor().size().into_iter().map(|size| size as usize).collect();
        let target = dtype_of(kind).and_then(|dtype| StoredTensor::new(name.to_owned(), dtype, shape));
        let reason = || format!("no file can have {name:?}, which is {kind:?}");
        let target = target.ok_or_else(|| WorkerError::Merge { path: name.into(), reason: reason() })?;
        Ok(Output { entry, adapted, kind, target })
    }

    /// Computes the values of a tensor.
    fn value(&self, output: &Output<'_>) -> std::result::Result<Tensor, TchError> {
        let _no_grad = tch::no_grad_guard();
        let entry = output.entry;
        let mut value = match entry.frozen() {
            Some(_) => widen(entry.tensor(), entry.scale())?,
            None => entry.tensor().f_detach()?,
        };
        if let Some(adapted) = output.adapted {
            value = value.f_add(&self.product(adapted, &value.size())?)?;
        }
        let converted = value.f_to_kind(output.kind)?.f_contiguous()?;
        // A finite number that the type cannot hold would be infinite.
        if output.kind == Kind::Half
            && value.f_isfinite()?.f_all()?.f_int64_value(&[])?
                != converted.f_isfinite()?.f_all()?.f_int64_value(&[])?
        {
            let name = entry.name();
            return Err(TchError::Convert(format!(
                "a number of {name:?} is too large for float16; use --dtype bf16 or keep"
            )));
        }
        Ok(converted)
    }

    /// Returns what an adapter adds to its weight of this shape.
    fn product(&self, adapted: &Adapted, shape: &[i64]) -> std::result::Result<Tensor, TchError> {
        let [a, b] =
            adapted.names().map(|name| self.registry.get(&name).map(|entry| entry.tensor().shallow_clone()));
        let missing = || TchError::Convert(format!("{:?} has no adapter", adapted.weight));
        let (a, b) = (a.ok_or_else(missing)?, b.ok_or_else(missing)?);
        let rows = |tensor: &Tensor| tensor.f_flatten(1, -1);
        let product = rows(&b)?.f_matmul(&rows(&a)?)?.f_mul_scalar(self.scale)?;
        match adapted.is_transposed {
            true => product.f_transpose(0, 1),
            false => product.f_view(shape),
        }
    }
}
