//! TorchScript modules that `save()` wrote.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tch::{Device, Tensor};
use thiserror::Error;

use crate::error::{ErrorKind, ShimError, create, create_tensor, fetch, try_call};
use crate::ffi::{self, Borrowed, BorrowedList, NewTensor, Text};
use crate::tensor::device_index;

/// An error of loading a module.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("{}: cannot read the module: {}", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    /// The file is not TorchScript, or uses operators that libtorch lacks. Has libtorch's reason.
    #[error(
        "{}: cannot load the TorchScript module: {}. Write it in Python with \
         torch.jit.script(model).save(\"model.pt\"), and use only PyTorch's own operators.",
        .0.display(),
        .1
    )]
    NotTorchScript(PathBuf, String),
    /// The device failed or is out of memory.
    #[error("{}: {}", .0.display(), .1)]
    Load(PathBuf, #[source] ShimError),
}

/// One tensor of a module.
#[derive(Debug)]
pub struct NamedTensor {
    /// The name in PyTorch's style, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// The tensor that the module uses, not a copy.
    pub tensor: Tensor,
    /// The first name of the same tensor, if the module holds it twice: a tied weight.
    pub same_as: Option<String>,
}

/// A loaded module, for one thread at a time.
#[derive(Debug)]
pub struct Module(ffi::Owned<ffi::ModuleHandle>);

impl Module {
    /// Loads a module with its tensors on `device`. It keeps the training mode that was saved.
    pub fn load(path: &Path, device: Device) -> Result<Self, LoadError> {
        let op = "load a TorchScript module";
        let read = |source| LoadError::Read(path.to_owned(), source);
        let failed = |source: ShimError| LoadError::Load(path.to_owned(), source);
        // libtorch reports missing and damaged files alike.
        let file = File::open(path).and_then(|file| file.metadata()).map_err(read)?;
        if !file.is_file() {
            return Err(read(io::ErrorKind::IsADirectory.into()));
        }
        let index = device_index(op, device).map_err(failed)?;
        let text = path.to_str().ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8; rename it");
            read(error)
        })?;
        let loaded = create(op, |out, error| ffi::dt_module_load(text.into(), index, out, error));
        loaded.map(Self).map_err(|error| match error.kind {
            ErrorKind::OutOfMemory => failed(error),
            _ => LoadError::NotTorchScript(path.to_owned(), first_sentence(&error.message)),
        })
    }

    /// Returns the parameters, in the order of the module's `state_dict`.
    pub fn named_parameters(&self) -> Result<Vec<NamedTensor>, ShimError> {
        self.tensors(true)
    }

    /// Returns the buffers, in the order of the module's `state_dict`, and other tensors that are attributes.
    pub fn named_buffers(&self) -> Result<Vec<NamedTensor>, ShimError> {
        self.tensors(false)
    }

    fn tensors(&self, parameters: bool) -> Result<Vec<NamedTensor>, ShimError> {
        let mut found: Vec<(NamedTensor, u64)> = Vec::new();
        try_call("list a module's tensors", |error| {
            let context = (&raw mut found).cast();
            // SAFETY: take_tensor is called only during the call, with this context.
            unsafe { ffi::dt_module_tensors(&self.0, parameters, context, take_tensor, error) }
        })?;
        Ok(found.into_iter().map(|(tensor, _)| tensor).collect())
    }

    /// Sets training or evaluation mode on the module and all its submodules.
    pub fn train(&mut self, on: bool) -> Result<(), ShimError> {
        try_call("set a module's mode", |error| ffi::dt_module_train(&mut self.0, on, error))
    }

    /// Calls the module. Its operations run unoptimised, under the calling thread's gradient mode and
    /// autocast. Returns `InvalidArgument` if the result is not a tensor.
    pub fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor, ShimError> {
        let inputs: Vec<Borrowed<'_>> = inputs.iter().map(|input| Borrowed::from(*input)).collect();
        create_tensor("call the module", |out, error| {
            ffi::dt_module_forward(&self.0, BorrowedList::new(&inputs), out, error)
        })
    }

    /// Returns whether the module draws random numbers, for example by dropout in training.
    pub fn draws_random_numbers(&self) -> Result<bool, ShimError> {
        fetch("read a module's graph", |out, error| ffi::dt_module_draws(&self.0, out, error))
    }

    /// Returns the operations whose mode is a constant of the graph, each once. They come from
    /// `torch.jit.trace`, which records operations in the mode that the module had.
    pub fn fixed_modes(&self) -> Result<BTreeSet<FixedMode>, ShimError> {
        let mut found: BTreeSet<FixedMode> = BTreeSet::new();
        try_call("read a module's graph", |error| {
            let context = (&raw mut found).cast();
            // SAFETY: take_fixed is called only during the call, with this context.
            unsafe { ffi::dt_module_fixed(&self.0, context, take_fixed, error) }
        })?;
        Ok(found)
    }
}

/// An operation that differs between training and evaluation, but has a fixed mode.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FixedMode {
    /// Its PyTorch name, such as `batch_norm`.
    pub operation: String,
    /// Whether its fixed mode is training; otherwise it is evaluation.
    pub training: bool,
}

/// Returns the first sentence: libtorch appends advice, traces and lists of operators.
fn first_sentence(message: &str) -> String {
    let line = message.lines().map(str::trim).find(|line| !line.is_empty());
    let line = line.unwrap_or("libtorch gives no reason");
    let sentence = line.split(". ").next().unwrap_or(line);
    sentence.trim_end_matches(['.', ':']).to_owned()
}

extern "C" fn take_tensor(context: *mut c_void, name: Text<'_>, tensor: NewTensor, identity: u64) {
    // SAFETY: the context is the Vec of Module::tensors, which nothing else uses during the call.
    let found = unsafe { &mut *context.cast::<Vec<(NamedTensor, u64)>>() };
    let same = found.iter().find(|(_, known)| *known == identity);
    let same_as = same.map(|(first, _)| first.same_as.clone().unwrap_or_else(|| first.name.clone()));
    let (name, tensor) = (name.to_owned(), tensor.take());
    found.push((NamedTensor { name, tensor, same_as }, identity));
}

extern "C" fn take_fixed(context: *mut c_void, operation: Text<'_>, training: bool) {
    // SAFETY: the context is the set of Module::fixed_modes, which nothing else uses during the call.
    let found = unsafe { &mut *context.cast::<BTreeSet<FixedMode>>() };
    let operation = operation.to_owned();
    found.insert(FixedMode { operation, training });
}

#[cfg(test)]
mod tests;
