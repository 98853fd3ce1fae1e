//! Modules of TorchScript that `save()` wrote.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tch::{Device, Tensor};
use thiserror::Error;

use crate::error::{ErrorKind, ShimError, checked, fetched, made, tensor};
use crate::ffi::{self, Lent, LentList, NewTensor, Text};
use crate::tensor::device_index;

/// A file from which no module can be made.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("{}: the module cannot be read: {}", .0.display(), .1)]
    Read(PathBuf, #[source] io::Error),
    /// The file is no TorchScript, or uses operators that libtorch lacks, as it says in one line.
    #[error(
        "{}: not a TorchScript module that can be loaded here ({}). Write it in Python by \
         torch.jit.script(model).save(\"model.pt\"), with PyTorch's own operators.",
        .0.display(),
        .1
    )]
    NotTorchScript(PathBuf, String),
    /// The device or its memory.
    #[error("{}: {}", .0.display(), .1)]
    Load(PathBuf, #[source] ShimError),
}

/// One tensor of a module.
#[derive(Debug)]
pub struct NamedTensor {
    /// The name in PyTorch's style, such as `layer1.0.conv1.weight`.
    pub name: String,
    /// The very tensor that the module computes with.
    pub tensor: Tensor,
    /// The name under which the module holds the same tensor before this one, if it does: a tied weight.
    pub same_as: Option<String>,
}

/// A module in memory. Not for use by several threads.
#[derive(Debug)]
pub struct Module(ffi::Owned<ffi::ModuleHandle>);

impl Module {
    /// Loads a module, its tensors onto `device`, wherever they were when it was saved. It is in training mode or not as it
    /// was saved.
    pub fn load(path: &Path, device: Device) -> Result<Self, LoadError> {
        let op = "load a TorchScript module";
        let read = |source| LoadError::Read(path.to_owned(), source);
        let failed = |source: ShimError| LoadError::Load(path.to_owned(), source);
        // libtorch does not tell a missing file from a damaged one.
        let file = File::open(path).and_then(|file| file.metadata()).map_err(read)?;
        if !file.is_file() {
            return Err(read(io::ErrorKind::IsADirectory.into()));
        }
        let index = device_index(op, device).map_err(failed)?;
        let text = path.to_str().ok_or_else(|| {
            let error = io::Error::new(io::ErrorKind::InvalidFilename, "the path is not UTF-8; rename it");
            read(error)
        })?;
        let loaded = made(op, |out, error| ffi::dt_module_load(text.into(), index, out, error));
        loaded.map(Self).map_err(|error| match error.kind {
            ErrorKind::OutOfMemory => failed(error),
            _ => LoadError::NotTorchScript(path.to_owned(), first_sentence(&error.message)),
        })
    }

    /// The parameters, in the order of the module's `state_dict`.
    pub fn named_parameters(&self) -> Result<Vec<NamedTensor>, ShimError> {
        self.tensors(true)
    }

    /// The buffers, in the order of the module's `state_dict`; other tensors that it holds as attributes count as buffers.
    pub fn named_buffers(&self) -> Result<Vec<NamedTensor>, ShimError> {
        self.tensors(false)
    }

    fn tensors(&self, parameters: bool) -> Result<Vec<NamedTensor>, ShimError> {
        let mut found: Vec<(NamedTensor, u64)> = Vec::new();
        checked("list a module's tensors", |error| {
            let context = (&raw mut found).cast();
            // SAFETY: take_tensor is called during the call only, with this context.
            unsafe { ffi::dt_module_tensors(&self.0, parameters, context, take_tensor, error) }
        })?;
        Ok(found.into_iter().map(|(tensor, _)| tensor).collect())
    }

    /// Sets training or evaluation mode, on the module and all within it.
    pub fn train(&mut self, on: bool) -> Result<(), ShimError> {
        checked("set a module's mode", |error| ffi::dt_module_train(&mut self.0, on, error))
    }

    /// Calls the module. Its operations run one by one as they are written, under the calling thread's gradient mode and
    /// autocast, just as if they were called from outside.
    /// `InvalidArgument` where it returns anything but a tensor.
    pub fn forward(&self, inputs: &[&Tensor]) -> Result<Tensor, ShimError> {
        let inputs: Vec<Lent<'_>> = inputs.iter().map(|input| Lent::from(*input)).collect();
        tensor("call the module", |out, error| {
            ffi::dt_module_forward(&self.0, LentList::new(&inputs), out, error)
        })
    }

    /// Whether the module draws random numbers somewhere: dropout, for example, which does so in training.
    pub fn draws_random_numbers(&self) -> Result<bool, ShimError> {
        fetched("read a module's graph", |out, error| ffi::dt_module_draws(&self.0, out, error))
    }

    /// The operations whose mode is a constant of the module's graph, each once: those of `torch.jit.trace`, which writes down what
    /// a module did in the mode that it was in.
    pub fn fixed_modes(&self) -> Result<BTreeSet<Fixed>, ShimError> {
        let mut found: BTreeSet<Fixed> = BTreeSet::new();
        checked("read a module's graph", |error| {
            let context = (&raw mut found).cast();
            // SAFETY: take_fixed is called during the call only, with this context.
            unsafe { ffi::dt_module_fixed(&self.0, context, take_fixed, error) }
        })?;
        Ok(found)
    }
}

/// An operation that would do something else in training than in evaluation, but cannot.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Fixed {
    /// Its name in PyTorch, such as `batch_norm`.
    pub operation: String,
    /// Whether it does what it should in training, whatever the module's mode is; else what it should in evaluation.
    pub training: bool,
}

/// libtorch's messages go on with advice, traces and lists of operators.
fn first_sentence(message: &str) -> String {
    let line = message.lines().map(str::trim).find(|line| !line.is_empty());
    let line = line.unwrap_or("no reason given");
    let sentence = line.split(". ").next().unwrap_or(line);
    sentence.trim_end_matches(['.', ':']).to_owned()
}

extern "C" fn take_tensor(context: *mut c_void, name: Text<'_>, tensor: NewTensor, identity: u64) {
    // SAFETY: the context is the Vec of Module::tensors, which nothing else touches during the call.
    let found = unsafe { &mut *context.cast::<Vec<(NamedTensor, u64)>>() };
    let same = found.iter().find(|(_, known)| *known == identity);
    let same_as = same.map(|(first, _)| first.same_as.clone().unwrap_or_else(|| first.name.clone()));
    let (name, tensor) = (name.to_owned(), tensor.take());
    found.push((NamedTensor { name, tensor, same_as }, identity));
}

extern "C" fn take_fixed(context: *mut c_void, operation: Text<'_>, training: bool) {
    // SAFETY: the context is the set of Module::fixed_modes, which nothing else touches during the call.
    let found = unsafe { &mut *context.cast::<BTreeSet<Fixed>>() };
    let operation = operation.to_owned();
    found.insert(Fixed { operation, training });
}

#[cfg(test)]
mod tests;
