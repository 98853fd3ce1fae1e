//! Modules of `torch.jit.script`: the old way to train models from PyTorch without Python. Modules of `torch.jit.trace`
//! work if nothing in them differs between training and evaluation.
//!
//! The module's input are images, N x C x H x W float32. `model.loss` determines the loss from its output:
//!
//! | `model.loss` | The module returns | Loss of a sample |
//! |---|---|---|
//! | `cross-entropy` | logits, N x K with K at least the number of classes | cross-entropy of the class |
//! | `mse` | N or N x 1 | squared difference to the class number |
//! | `mse` | N x classes | mean squared difference to the one-hot class |
//! | `mse` | the shape of the images | mean squared difference to the image: an autoencoder |
//! | `module` | for (image, label): N | its output |
//!
//! TorchScript's optimiser is off: it would change the arithmetic after each process's first steps.

pub(super) mod error;

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dtrain_common::recipe::{self, Recipe};
use dtrain_torch_shim::ShimError;
use dtrain_torch_shim::jit::Module;
use tch::{Device, Kind, Reduction, Tensor};

use error::{ScriptError, modes};

use super::images::{self, ImageSets, sample_means};
use super::{Batch, BuildContext, BuildTask, Loss, Mode, StageView, SurveyContext, Task, TaskError, Totals};
use crate::data::Dataset;
use crate::models::{Registry, Role, dtype_of};

/// The task `torchscript`.
pub struct TorchScript {
    /// Each call sets its mode first.
    module: RefCell<Module>,
    path: PathBuf,
    loss: recipe::Loss,
    sets: ImageSets,
    /// Whether the module draws random numbers.
    draws: bool,
}

impl BuildTask for TorchScript {
    type Survey = images::Survey;

    fn survey(recipe: &Recipe, context: &mut SurveyContext<'_>) -> Result<Self::Survey, TaskError> {
        recipe.check_paths()?;
        let stages = (0..recipe.stages()).map(|number| recipe.of_stage(number).model.loss);
        let classifies = stages.into_iter().any(|loss| loss == recipe::Loss::CrossEntropy);
        images::survey(recipe, classifies, context)
    }

    fn build(recipe: &Recipe, survey: Self::Survey, context: BuildContext<'_>) -> Result<Self, TaskError> {
        let sets = images::sets(recipe, survey, context.local_ranks);
        // A loaded recipe of this task has a file.
        let path = recipe.model.file.clone().unwrap_or_default();
        let device = context.registry.device();
        let module = Module::load(&path, device).map_err(|error| ScriptError::of_load(&path, error))?;
        let fixed = module.fixed_modes().map_err(torch_error(&path))?;
        if !fixed.is_empty() {
            let reason = format!(
                "the module cannot switch between training and evaluation: {}, as torch.jit.trace does; save it with \
                 torch.jit.script(model).save(\"model.pt\"), which keeps both modes",
                modes(&fixed)
            );
            return Err(ScriptError::Unfit { path, reason }.into());
        }
        register_tensors(&module, &path, context.registry)?;
        let draws = module.draws_random_numbers().map_err(torch_error(&path))?;
        let mut task = Self { module: RefCell::new(module), path, loss: recipe.model.loss, sets, draws };
        // Ends with the first stage, with which the run begins.
        for number in (0..recipe.stages()).rev() {
            task.loss = recipe.of_stage(number).model.loss;
            task.check_shapes(device)?;
        }
        Ok(task)
    }
}

fn torch_error(path: &Path) -> impl Fn(ShimError) -> ScriptError {
    let path = path.to_owned();
    move |source| ScriptError::Torch { path: path.clone(), source }
}

/// Lists the module's tensors in the registry, except buffers of a dtype that checkpoints do not support, which keep the
/// file's values.
fn register_tensors(module: &Module, path: &Path, registry: &mut Registry) -> Result<(), TaskError> {
    let mut root = registry.root();
    let parameters = module.named_parameters().map_err(torch_error(path))?;
    if parameters.is_empty() {
        let reason = "the module has no parameters, so it cannot be trained; save the network itself, before torch.jit.freeze: \
                      torch.jit.script(model).save(\"model.pt\")";
        return Err(ScriptError::Unfit { path: path.to_owned(), reason: reason.to_owned() }.into());
    }
    let buffers = module.named_buffers().map_err(torch_error(path))?;
    let saved = buffers.into_iter().filter(|it| dtype_of(it.tensor.kind()).is_some());
    let entries = parameters.into_iter().map(|it| (it, Role::Parameter));
    for (entry, role) in entries.chain(saved.map(|it| (it, Role::Buffer))) {
        match &entry.same_as {
            Some(first) => root.tie(&entry.name, first),
            None => root.adopt(&entry.name, &entry.tensor, role)?,
        }
    }
    Ok(())
}

impl TorchScript {
    /// Runs the module on one image, so that a module that does not fit the data fails before the run.
    fn check_shapes(&self, device: Device) -> Result<(), TaskError> {
        let fields = self.sets.test.fields();
        let image = fields.iter().filter(|field| field.name == "image");
        let sides = image.flat_map(|field| &field.shape).map(|&length| length as i64);
        let shape: Vec<i64> = std::iter::once(1).chain(sides).collect();
        let images = Tensor::f_zeros(shape.as_slice(), (Kind::Float, device))?;
        let labels = Tensor::f_zeros([1], (Kind::Int64, device))?;
        let _ = tch::no_grad(|| self.losses(&images, &labels, Mode::Evaluate))?;
        Ok(())
    }

    /// Returns the loss of each sample, N float32, and for cross-entropy whether each was right, N.
    fn losses(
        &self,
        images: &Tensor,
        labels: &Tensor,
        mode: Mode,
    ) -> Result<(Tensor, Option<Tensor>), TaskError> {
        let with_label = self.loss == recipe::Loss::Module;
        let inputs: &[&Tensor] = if with_label { &[images, labels] } else { &[images] };
        let mut module = self.module.borrow_mut();
        module.train(mode == Mode::Train).map_err(torch_error(&self.path))?;
        let output = module.forward(inputs).map_err(|source| {
            tracing::debug!("{}: {}", self.path.display(), source.message);
            ScriptError::Call { path: self.path.clone(), with_label, source }
        })?;
        let output = output.f_to_kind(Kind::Float)?;
        let (samples, classes) = (images.size()[0], self.sets.classes as i64);
        let wrong = |expected: String| {
            let reason = format!(
                "model.loss = \"{}\" needs {expected}, but the module returned the shape {:?} for {samples} image(s); change the \
                 module or model.loss",
                self.loss,
                output.size()
            );
            Err(ScriptError::Unfit { path: self.path.clone(), reason }.into())
        };
        match (self.loss, output.size().as_slice()) {
            (recipe::Loss::CrossEntropy, &[n, k]) if n == samples && k >= classes => {
                let losses =
                    output.f_cross_entropy_loss(labels, None::<Tensor>, Reduction::None, -100, 0.0)?;
                Ok((losses, Some(output.f_argmax(1, false)?.f_eq_tensor(labels)?)))
            }
            (recipe::Loss::CrossEntropy, _) => wrong(format!(
                "logits of the shape N x K for N images, with K at least the {classes} classes of the data"
            )),
            (recipe::Loss::Mse, &[n] | &[n, 1]) if n == samples => {
                let target = labels.f_to_kind(Kind::Float)?;
                Ok((output.f_view([-1])?.f_sub(&target)?.f_square()?, None))
            }
            (recipe::Loss::Mse, &[n, k]) if n == samples && k == classes => {
                let target = labels.f_one_hot(classes)?.f_to_kind(Kind::Float)?;
                Ok((sample_means(&output.f_sub(&target)?.f_square()?)?, None))
            }
            (recipe::Loss::Mse, shape) if shape == images.size() => {
                Ok((sample_means(&output.f_sub(images)?.f_square()?)?, None))
            }
            (recipe::Loss::Mse, _) => wrong(format!(
                "for N images a number each (N, or N x 1), a number for each class (N x {classes}), or images of the same shape"
            )),
            (recipe::Loss::Module, &[n]) if n == samples => Ok((output, None)),
            (recipe::Loss::Module, _) => wrong(
                "the loss of every sample, of shape N for N images (in PyTorch: reduction=\"none\")"
                    .to_owned(),
            ),
            // A loaded recipe has a loss that this task takes.
            (recipe::Loss::L1 | recipe::Loss::Huber, _) => wrong("another model.loss".to_owned()),
        }
    }
}

impl Task for TorchScript {
    fn train_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.sets.train)
    }

    fn test_set(&self) -> Arc<dyn Dataset> {
        Arc::clone(&self.sets.test)
    }

    fn loss(&self, batch: &Batch, mode: Mode) -> Result<Loss, TaskError> {
        let (losses, right) = self.losses(batch.field("image")?, batch.field("label")?, mode)?;
        // The loss of an unreadable image may not be finite and must not reach the sum.
        let losses = losses.f_masked_fill(&batch.weights.f_eq(0.0)?, 0.0)?;
        images::loss_of(&losses, right, &batch.weights)
    }

    fn begin_stage(&mut self, stage: &StageView<'_>) -> Result<(), TaskError> {
        self.loss = stage.recipe.model.loss;
        Ok(())
    }

    fn sums(&self) -> usize {
        usize::from(self.loss == recipe::Loss::CrossEntropy)
    }

    fn metrics(&self, totals: &Totals) -> Vec<(&'static str, f64)> {
        let right = totals.sums.iter();
        right.map(|right| ("accuracy", right / totals.weight)).collect()
    }

    fn micro_batch_warning(&self) -> Option<String> {
        let words = "the module draws random numbers, such as dropout, for each micro-batch";
        self.draws.then(|| words.to_owned())
    }

    fn describe(&self) -> String {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy();
        format!("{} classes, module {name}", self.sets.classes)
    }

    fn classes(&self) -> usize {
        self.sets.classes
    }

    fn class_names(&self) -> &[String] {
        &self.sets.class_names
    }
}

#[cfg(test)]
mod tests;
